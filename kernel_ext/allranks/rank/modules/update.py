"""After a module was reloaded, makes all references to its old functions and classes use the new ones.

- an old function gets the code of the new one;
- instances, and subclasses defined elsewhere, get the new class;
- an old class makes instances of the new class, and has the methods of the new class;
- names in the notebook and in modules of the folder get the new object.

Of IPython's autoreload (8.18 to 9.18), only `update_function` is used. `update_class` would do most of the rest, but:

- `update_function` raises ValueError where the free variables differ, as when a method begins to call `super()`, and
  `update_class` then stops halfway;
- a static method that is new in the class becomes an ordinary method of the old class;
- the old class gets the slots of the new one, which instances of the old class cannot use;
- the first instance whose layout does not fit ends the update of all other instances;
- each class costs a walk over all objects of the process.
"""

from __future__ import annotations

import enum
import gc
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any, TypeGuard

from allranks.messages.value_types import Namespace


class Older:
    """Functions and classes that reloads have replaced, while something still refers to them.

    A callback that was registered before the first edit must use the code of the third edit, too.
    """

    def __init__(self) -> None:
        self._references: dict[str, list[weakref.ref[Any]]] = {}

    def chain(self, key: str, old: object) -> list[Any]:
        """`old` and the objects that it replaced, if they still exist. `key` is the module and their path in it."""
        alive = [value for reference in self._references.get(key, []) if (value := reference()) is not None]
        if not any(value is old for value in alive):
            alive.append(old)
        self._references[key] = [weakref.ref(value) for value in alive]
        return alive


@dataclass
class _ReplacedObject:
    key: str
    old: Any
    new: Any


class Update:
    """Makes references to functions and classes of reloaded modules use the new ones."""

    def __init__(self, older: Older) -> None:
        self._older = older
        self._replaced: dict[int, _ReplacedObject] = {}
        """The replaced objects, by the ``id`` of the old object."""
        self._named: dict[tuple[int, str], object] = {}
        """The new object, by the ``id`` of the old object and the name of both in their module."""
        self._stuck: set[int] = set()
        """Ids of old classes that keep instances or subclasses, for example if the layout of the new one differs."""

    def add(self, module: ModuleType, before: Namespace) -> None:
        """Note what replaces the functions and classes in `before`, the namespace of `module` before the reload."""
        pairs = []
        for name, old in before.items():
            new = module.__dict__.get(name)
            if new is not old and _is_definition(old) and _is_definition(new) and old.__module__ == module.__name__:
                self._named[id(old), name] = new
                pairs.append((name, old, new))
        # If an object has several names, the one in its definition determines what replaces it.
        for name, old, new in sorted(pairs, key=lambda pair: pair[0] != pair[1].__name__):
            if id(old) not in self._replaced:
                with suppress(Exception):  # a commit must not fail on one rank alone
                    self._add(f"{module.__name__}:{name}", old, new)

    def _add(self, key: str, old: Any, new: Any) -> None:
        for one in self._older.chain(key, old) if _is_function(old) or _is_class(old) else [old]:
            if one is not new:
                self._replaced[id(one)] = _ReplacedObject(key, one, new)
        if not (_is_class(old) and _is_class(new)):
            return
        if issubclass(old, enum.Enum) and issubclass(new, enum.Enum):
            for name, member in old.__members__.items():
                if name in new.__members__:
                    self._replaced[id(member)] = _ReplacedObject(f"{key}.{name}", member, new[name])
            return
        for name, nested in list(vars(old).items()):
            if _is_class(nested) and _is_class(vars(new).get(name)) and _is_inside(nested, old, name):
                self._add(f"{key}.{name}", nested, vars(new)[name])

    def carry_out(self, namespaces: Sequence[Namespace]) -> None:
        """Update all old objects, and rebind their names in `namespaces`."""
        replaced = list(self._replaced.values())
        self._move([one for one in replaced if _is_class(one.old) and _is_class(one.new)])
        for one in replaced:
            with suppress(Exception):  # a class may refuse changes; names and instances get the new class anyway
                self._update(one)
        for names in namespaces:
            for name, value in list(names.items()):
                found = self._replaced.get(id(value))
                if found is not None:
                    names[name] = self._named.get((id(value), name), found.new)

    def _move(self, classes: list[_ReplacedObject]) -> None:
        """Give instances, and subclasses that are defined elsewhere, the new class."""
        new_classes = {id(one.old): one.new for one in classes}
        for instance in gc.get_referrers(*(one.old for one in classes)) if classes else ():
            kind = type(instance)
            if id(kind) in new_classes:
                try:
                    object.__setattr__(instance, "__class__", new_classes[id(kind)])
                except Exception:  # TypeError, or what a `__class__` of its own raises
                    self._stuck.add(id(kind))
        for one in classes:
            for subclass in type.__subclasses__(one.old):
                bases = tuple(one.new if base is one.old else base for base in subclass.__bases__)
                try:
                    subclass.__bases__ = bases
                except Exception:  # TypeError, or what a metaclass raises
                    self._stuck.add(id(one.old))

    def _update(self, one: _ReplacedObject) -> None:
        old, new = one.old, one.new
        if isinstance(old, enum.Enum) and isinstance(new, enum.Enum):
            old.__dict__.update(new.__dict__)
        elif _is_class(old) and _is_class(new):
            if not issubclass(old, enum.Enum):
                self._update_class(one.key, old, new)
        elif _is_function(old):
            _update_in_place(old, new)
        else:  # such as a functools.lru_cache
            _update_in_place(getattr(old, "__wrapped__", None), getattr(new, "__wrapped__", None))
            getattr(old, "cache_clear", lambda: None)()

    def _update_class(self, key: str, old: type, new: type) -> None:
        """Give the old class the methods of the new class, and make it create instances of the new class."""
        cells = [cell for value in vars(old).values() for cell in _class_cells(value)]
        for name in set(vars(old)) - set(vars(new)):
            if _is_copied(name, vars(old)[name]):
                with suppress(AttributeError, TypeError):
                    type.__delattr__(old, name)
        for name, value in list(vars(new).items()):
            if not _is_copied(name, value) or isinstance(vars(old).get(name), types.MemberDescriptorType):
                continue
            if not self._update_methods(f"{key}.{name}", vars(old).get(name), value):
                with suppress(AttributeError, TypeError):
                    type.__setattr__(old, name, value)
        if id(old) in self._stuck:
            return
        for cell in cells:  # for `super()` in bound methods: their object is now of the new class
            cell.cell_contents = new
        with suppress(AttributeError, TypeError):
            type.__setattr__(old, "__new__", staticmethod(_maker(old, new)))

    def _update_methods(self, key: str, old: object, new: object) -> bool:
        """Update the functions of a method or property in place; returns whether all functions could be updated."""
        if type(old) is not type(new) or not _functions(new):
            return False
        done = True
        for index, (ours, theirs) in enumerate(zip(_functions(old), _functions(new))):
            chain = self._older.chain(f"{key}.{index}", ours) if _is_function(ours) else [ours]
            updated = {id(one): one is theirs or _update_in_place(one, theirs) for one in chain}
            done = done and updated[id(ours)]
        return done


def _is_function(value: object) -> TypeGuard[FunctionType]:
    # Not isinstance: the result of mx.compile (MLX 0.32) is not a function, although its `__class__` says so.
    return type(value) is FunctionType


def _is_class(value: object) -> TypeGuard[type]:
    return issubclass(type(value), type)


def _is_definition(value: Any) -> bool:
    """Whether the value is a function, a class, or a callable that stands for a function, such as a compiled one.

    Not an instance that can be called, such as a model: it has no name of its own.
    """
    if _is_function(value) or _is_class(value):
        return True
    try:
        return callable(value) and isinstance(value.__name__, str) and isinstance(value.__module__, str)
    except Exception:
        return False


def _is_inside(nested: type, outer: type, name: str) -> bool:
    return nested.__module__ == outer.__module__ and nested.__qualname__ == f"{outer.__qualname__}.{name}"


def _is_copied(name: str, value: object) -> bool:
    """Whether an attribute may be copied between classes: not if it belongs to the layout or to the class itself."""
    own = {"__dict__", "__weakref__", "__module__", "__qualname__", "__new__", "_abc_impl"}
    return name not in own and not isinstance(value, types.MemberDescriptorType | types.GetSetDescriptorType)


def _functions(method: object) -> tuple[object, ...]:
    """The functions of an attribute of a class: one of a method, three of a property, none of anything else."""
    if isinstance(method, property):
        return method.fget, method.fset, method.fdel
    if isinstance(method, classmethod | staticmethod):
        return (method.__func__,)
    return (method,) if _is_function(method) else ()


def _class_cells(method: object) -> Iterator[types.CellType]:
    """The cells that hold the class in a method that calls `super()`."""
    for function in _functions(method):
        if _is_function(function) and "__class__" in function.__code__.co_freevars:
            yield (function.__closure__ or ())[function.__code__.co_freevars.index("__class__")]


def _update_in_place(old: object, new: object) -> bool:
    """Give the old function the code of the new one; returns whether that was possible."""
    from IPython.extensions.autoreload import update_function

    if not _is_function(old) or not _is_function(new):
        return False
    if old.__globals__ is not new.__globals__ or old.__code__.co_freevars != new.__code__.co_freevars:
        return False
    update: Callable[[object, object], None] = update_function
    old.__kwdefaults__ = new.__kwdefaults__  # IPython 8.18 does not copy these, nor the annotations
    annotations = "__annotate__" if hasattr(new, "__annotate__") else "__annotations__"
    setattr(old, annotations, getattr(new, annotations))
    with suppress(NameError):  # IPython 9.18 copies the annotations last, and Python 3.14 evaluates them for that
        update(old, new)
    for name, ours, theirs in zip(new.__code__.co_freevars, old.__closure__ or (), new.__closure__ or ()):
        with suppress(ValueError):  # an empty cell
            # Functions and classes that a decorator wraps are replaced; counters and caches in the closure stay.
            if name != "__class__" and (_is_function(theirs.cell_contents) or _is_class(theirs.cell_contents)):
                ours.cell_contents = theirs.cell_contents
    return True


def _maker(old: type, new: type) -> Callable[..., object]:
    """Return a ``__new__`` for an old class that is still referenced, which makes instances of the new class."""

    def make(cls: type, *args: object, **kwargs: object) -> object:
        if cls is old:
            return new(*args, **kwargs)
        inherited = super(old, cls).__new__  # type: ignore[arg-type]
        return inherited(cls) if inherited is object.__new__ else inherited(cls, *args, **kwargs)

    return make
