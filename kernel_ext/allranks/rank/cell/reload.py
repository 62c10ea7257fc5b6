"""Reloads the modules of the working folder whose source has changed, on all ranks or on none.

It takes two phases. `Reloader.prepare` executes the changed modules and can still put everything back.
`Reloader.decide` commits or undoes that, once the head knows whether every rank could prepare. As with
`importlib.reload`, a module stays the same object, variables at module level get the values of the new code, and names
that the new code does not define stay. Modules that did not change are not executed again: a function or class that
they imported from a changed module is updated, a constant stays as it was.

The commit makes references to old functions and classes use the new code:

- an old function gets the code of the new one;
- instances, and subclasses defined elsewhere, get the new class;
- an old class makes instances of the new one, and has its methods;
- names in the notebook and in modules of the folder get the new object.

Of IPython's autoreload (8.18 to 9.18), only `update_function` is used. `update_class` would do most of the rest, but:

- `update_function` raises ValueError where the free variables differ, as when a method begins to call `super()`, and
  `update_class` then stops halfway;
- a static method that is new in the class becomes an ordinary method of the old one;
- slots of the old class are replaced by those of the new one, which its instances cannot use;
- the first instance whose layout does not fit ends the update of all others;
- each class costs a walk over all objects of the process.
"""

from __future__ import annotations

import enum
import gc
import importlib
import linecache
import os
import sys
import sysconfig
import time
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import FunctionType, ModuleType
from typing import Any

Stat = tuple[int, int]
"""Time of modification in ns, and size in bytes."""

MISSING_FOR = 0.05
"""Seconds after which a missing file is looked for again: some editors, and git, delete a file before they write it."""

_UNKNOWN: Stat = (-1, -1)
_MISSING = object()
_OWN = __name__.partition(".")[0]

_read: dict[str, Stat] = {}
"""The stat of each source file as the import system began to read it, until the next `note`."""
_path_stats = SourceFileLoader.path_stats


def _record_and_stat(loader: SourceFileLoader, path: str) -> Any:
    # The first of several reads counts: if later ones differ, the module counts as changed, which is the safe side.
    with suppress(OSError):
        _read.setdefault(path, _stat(path))
    return _path_stats(loader, path)


@dataclass(frozen=True)
class Prepared:
    """The result of `Reloader.prepare` on this rank."""

    reloaded: list[str]
    """Names of the modules that were executed, each after those that it imports."""
    removed: list[str]
    """Modules whose file is gone. The commit drops them from ``sys.modules``."""
    error: str = ""
    """Empty if all went well, else one line such as ``train.py, line 3: SyntaxError: invalid syntax``."""


@dataclass
class _Source:
    """A module of the folder, and the state of its file when the module was loaded."""

    module: ModuleType
    path: str
    stat: Stat


class Reloader:
    """The modules of this rank's working folder; one in each process."""

    def __init__(self, user_ns: dict[str, Any]) -> None:
        self._user_ns = user_ns
        self._since = time.time_ns()
        self._folder = _Folder("")
        self._seen: set[str] = set()
        """Names in ``sys.modules`` that have been looked at."""
        self._loaded: dict[str, Stat] = {}
        """The versions of source files that were read, for when their folder becomes the working folder."""
        self._sources: dict[str, _Source] = {}
        self._pending: _Reload | None = None
        self._older = _Older()
        # A module may be edited between its import and the end of the cell. So the import system itself tells which
        # version it read: it asks for the stat of a source before it reads it, whether or not it writes bytecode.
        # Comparing times of modification with the clock would fail where the clock of a file server differs.
        SourceFileLoader.path_stats = _record_and_stat  # type: ignore[assignment,method-assign]

    def note(self, folder: str) -> None:
        """Remember the sources of the modules of `folder` that were loaded since the last call."""
        read = dict(_read)
        for file, stat in read.items():
            self._loaded.setdefault(file, stat)
        if folder != self._folder.name:
            self._loaded.update((source.path, source.stat) for source in self._sources.values())
            self._folder, self._seen, self._sources = _Folder(folder), set(), {}
        for name, source in list(self._sources.items()):
            if sys.modules.get(name) is not source.module:
                del self._sources[name]
                self._seen.discard(name)
        names = set(sys.modules)
        for name in names - self._seen:
            if name not in self._sources and (path := self._folder.source_of(name)):
                with suppress(OSError):  # code that was generated, and whose file is gone already
                    self._sources[name] = _Source(sys.modules[name], path, self._loaded_stat(path, read))
        self._seen = names
        for file in read:
            _read.pop(file, None)

    def _loaded_stat(self, path: str, read: dict[str, Stat]) -> Stat:
        """The stat of the version that was loaded.

        Modules that were loaded before the reloader was there, or by another kind of loader, are not in `read`. Such a
        module counts as changed if its file is newer than the reloader.
        """
        if known := read.get(path) or self._loaded.get(path):
            return known  # though the file may be gone
        now = _stat(path)
        return now if now[0] < self._since else _UNKNOWN

    def prepare(self, number: int, committed: int, folder: str) -> Prepared:
        """Execute the modules that have changed, pending `decide`.

        An earlier reload whose decision was lost is committed first if its number is at most `committed`, else undone.
        If a module raises, everything is put back; it counts as changed until it succeeds. KeyboardInterrupt is raised.
        """
        if self._pending is not None:
            self.decide(self._pending.number, self._pending.number <= committed)
        self.note(folder)
        changed, removed = self._compared()
        if not changed and not removed:
            return Prepared([], [])
        self._pending = reload = _Reload(number, changed, removed)
        try:
            reload.execute()
        except BaseException as error:
            self.decide(number, False)
            if not isinstance(error, Exception | SystemExit):
                raise
            return Prepared([], [], self._folder.describe(error, reload.failed))
        return Prepared(list(reload.executed), list(removed))

    def _compared(self) -> tuple[dict[str, _Source], list[str]]:
        """Modules that have changed, and names of those whose file is gone."""
        stats: dict[str, Stat | None] = {}
        for path in {source.path for source in self._sources.values()}:
            stats[path] = _stat_or_none(path)
        gone = [path for path, stat in stats.items() if stat is None]
        if gone:
            time.sleep(MISSING_FOR)
            stats.update((path, _stat_or_none(path)) for path in gone)
        # A file that cannot be asked about now (a file server that does not answer) counts as unchanged.
        unchanged = (None, _UNKNOWN)
        sources = sorted(self._sources.items())  # alike on all ranks: modules may call collectives
        changed = {name: source for name, source in sources if stats[source.path] not in (*unchanged, source.stat)}
        return changed, [name for name, source in sources if stats[source.path] is None]

    def decide(self, number: int, commit: bool) -> None:
        """Commit or undo the reload `number`; ignored if that is not pending."""
        reload = self._pending
        if reload is None or reload.number != number:
            return
        self._pending = None
        if not commit:
            reload.undo()
            return
        for name, source in reload.changed.items():
            if name in self._sources:
                self._sources[name].stat = reload.stats.get(source.path, _UNKNOWN)
        for name in reload.removed:
            gone = self._sources.pop(name, None)
            if gone is not None:
                _drop(name, gone.module)
        update = _Update(self._older)
        for module, before in reload.snapshots:
            update.add(module, before)
        update.carry_out([self._user_ns, *(source.module.__dict__ for source in self._sources.values())])
        for path in reload.stats:
            linecache.checkcache(path)


class _Folder:
    """Which modules and files belong to the working folder."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._root = os.path.join(os.path.realpath(name), "")
        self._real_folders: dict[str, str] = {}
        prefixes = {os.path.realpath(prefix) for prefix in (sys.prefix, sys.base_prefix)}
        inside = {prefix for prefix in prefixes if prefix.startswith(self._root)}
        library = {os.path.realpath(sysconfig.get_path(part)) for part in ("stdlib", "platstdlib")}
        self._others = tuple(os.path.join(path, "") for path in inside | library)
        """Folders of environments and of the standard library, whose files are never reloaded."""

    def has(self, path: str) -> bool:
        """Whether the file is under the folder, and not part of an installed package."""
        return os.path.isabs(path) and self._own(self._real(path)) is not None  # not "<string>"

    def _own(self, real: str) -> str | None:
        """The path relative to the folder."""
        if not real.startswith(self._root) or real.startswith(self._others):
            return None
        own = real[len(self._root) :]
        return None if {"site-packages", "dist-packages"} & set(own.split(os.sep)) else own

    def _real(self, path: str) -> str:
        folder, file = os.path.split(path)
        if os.path.islink(path):
            return os.path.realpath(path)
        if folder not in self._real_folders:
            self._real_folders[folder] = os.path.realpath(folder)
        return os.path.join(self._real_folders[folder], file)

    def source_of(self, name: str) -> str | None:
        """The source file of a loaded module, if it is under the folder and can be executed again."""
        module = sys.modules.get(name)
        if not self.name or name in ("__main__", "__mp_main__") or name.partition(".")[0] == _OWN:
            return None
        spec: Any = getattr(module, "__spec__", None) if isinstance(module, ModuleType) else None
        origin = getattr(spec, "origin", None)
        if not isinstance(origin, str) or not origin.endswith(".py") or not hasattr(spec.loader, "exec_module"):
            return None
        return origin if self.has(origin) else None

    def describe(self, error: BaseException, failed: str) -> str:
        """One line on what a module raised; `failed` is its file, for errors that no frame belongs to."""
        file, line = failed, 0
        if isinstance(error, SyntaxError) and error.filename and self.has(error.filename):
            file, line = error.filename, error.lineno or 0
            message = error.msg
        else:
            at = error.__traceback__
            while at is not None:
                if self.has(at.tb_frame.f_code.co_filename):
                    file, line = at.tb_frame.f_code.co_filename, at.tb_lineno
                at = at.tb_next
            try:
                message = " ".join(str(error).split())
            except Exception:
                message = ""
        place = self._own(self._real(file)) or os.path.basename(file)
        if line:
            place += f", line {line}"
        return f"{place}: {type(error).__name__}" + (f": {message}" if message else "")


class _Reload:
    """One reload: executes the changed modules in their old namespaces, and can put everything back."""

    def __init__(self, number: int, changed: dict[str, _Source], removed: Sequence[str]) -> None:
        self.number = number
        self.changed = changed
        self.removed = removed
        self.executed: list[str] = []
        self.failed = ""
        """The first file whose execution raised."""
        self.stats: dict[str, Stat] = {}
        """The state of each file before it was read."""
        modules = {id(source.module): source.module for source in changed.values()}
        self.snapshots = [(module, dict(module.__dict__)) for module in modules.values()]
        self._attributes = list(self._parents())

    def _parents(self) -> Iterator[tuple[ModuleType, str, Any, ModuleType]]:
        """Packages, the name of a changed submodule, what the package has under that name, and the submodule."""
        for name, source in self.changed.items():
            package, _, child = name.rpartition(".")
            parent = sys.modules.get(package)
            if isinstance(parent, ModuleType):
                yield parent, child, parent.__dict__.get(child, _MISSING), source.module

    def execute(self) -> None:
        """Import the changed modules as in a new process, so that each is executed before what imports it needs it."""
        importlib.invalidate_caches()  # files that are new may be imported
        finder = _Finder(self._specs())
        shadowed = self._shadowed()
        for name in self.changed:
            sys.modules.pop(name, None)
        for parent, child, value, module in self._attributes:
            if value is module or self._is_changed(parent):
                # `from package import submodule` would find the module before it was executed.
                parent.__dict__.pop(child, None)
        try:
            sys.meta_path.insert(0, finder)
            for parent, children in shadowed:
                parent.__class__ = _keeping(children)
            for name in finder.specs:
                self._import(name, finder)
        finally:
            for parent, _ in shadowed:
                parent.__class__ = ModuleType
            with suppress(ValueError):  # interrupted, or a module replaced the list
                sys.meta_path.remove(finder)
        for parent, child, value, _ in self._attributes:
            if value is not _MISSING:
                parent.__dict__.setdefault(child, value)

    def _is_changed(self, module: ModuleType) -> bool:
        return any(module is changed for changed, _ in self.snapshots)

    def _shadowed(self) -> list[tuple[ModuleType, dict[str, ModuleType]]]:
        """Packages that are not executed again and have something else under the names of changed submodules.

        After `from .train import train` in `__init__`, that is a function. Importing the submodule again must not
        replace it.
        """
        found: dict[int, tuple[ModuleType, dict[str, ModuleType]]] = {}
        for parent, child, value, module in self._attributes:
            if (
                value is not _MISSING
                and value is not module
                and type(parent) is ModuleType
                and not self._is_changed(parent)
            ):
                found.setdefault(id(parent), (parent, {}))[1][child] = module
        return list(found.values())

    def _specs(self) -> dict[str, ModuleSpec]:
        """Specs by name, which execute each module once, also one that has several names."""
        names: dict[int, list[str]] = {}
        for name, source in self.changed.items():
            names.setdefault(id(source.module), []).append(name)
        specs: dict[str, ModuleSpec] = {}
        for aliases in names.values():
            source = self.changed[aliases[0]]
            own: Any = source.module.__spec__
            main = own.name if own.name in aliases else aliases[0]
            for name in sorted(aliases, key=lambda name: name != main):
                specs[name] = copy(own)
                specs[name].name = name
                loader: Any = _Loader(self, name, source) if name == main else _AliasLoader(source.module, main)
                specs[name].loader = loader
        return specs

    def _import(self, name: str, finder: _Finder) -> None:
        package = name.rpartition(".")[0]
        if not package or package in finder.specs or hasattr(sys.modules.get(package), "__path__"):
            importlib.import_module(name)
        elif name not in sys.modules:  # was loaded from a file under a name whose package does not exist
            loader: Any = finder.specs[name].loader
            sys.modules[name] = self.changed[name].module
            loader.exec_module(self.changed[name].module)

    def undo(self) -> None:
        """Put back what was there before `execute`. Names are never missing meanwhile: other threads may use them."""
        for module, before in self.snapshots:
            names = module.__dict__
            names.update(before)
            for name in [name for name in names if name not in before]:
                names.pop(name, None)
        for name, source in self.changed.items():
            sys.modules[name] = source.module
        for parent, child, value, _ in self._attributes:
            if value is _MISSING:
                parent.__dict__.pop(child, None)
            else:
                parent.__dict__[child] = value


def _keeping(children: dict[str, ModuleType]) -> type[ModuleType]:
    """A type for a package in which these submodules are not set as attributes."""

    def set_attribute(package: ModuleType, name: str, value: Any) -> None:
        if children.get(name, _MISSING) is not value:
            ModuleType.__setattr__(package, name, value)

    return type("module", (ModuleType,), {"__setattr__": set_attribute})


class _Finder:
    """Finds the changed modules, before any other finder."""

    def __init__(self, specs: dict[str, ModuleSpec]) -> None:
        self.specs = specs

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return self.specs.get(name)


class _Loader:
    """Executes the new source of a module in the module that is there."""

    def __init__(self, reload: _Reload, name: str, source: _Source) -> None:
        self._reload = reload
        self._name = name
        self._source = source
        self._spec: Any = source.module.__spec__

    def __getattr__(self, name: str) -> Any:
        return getattr(self._spec.loader, name)  # what the module asks its loader for

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._source.module

    def exec_module(self, module: ModuleType) -> None:
        path, loader = self._source.path, self._spec.loader
        try:
            self._reload.stats[path] = _stat(path)
            if hasattr(loader, "source_to_code") and hasattr(loader, "get_data"):
                # Not `get_code`: bytecode in the cache counts as valid for another source of the same size and second.
                exec(loader.source_to_code(loader.get_data(path), path), module.__dict__)
            else:
                loader.exec_module(module)
        except BaseException:
            self._reload.failed = self._reload.failed or path
            raise
        module.__spec__ = self._spec
        self._reload.executed.append(self._name)


class _AliasLoader:
    """Gives a second name of a module, which is executed under its own."""

    def __init__(self, module: ModuleType, name: str) -> None:
        self._module = module
        self._name = name
        self._spec: Any = module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        importlib.import_module(self._name)
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


class _Older:
    """Functions and classes that reloads have replaced, while something still refers to them.

    A callback that was registered before the first edit is to use the code of the third, too.
    """

    def __init__(self) -> None:
        self._references: dict[str, list[weakref.ref[Any]]] = {}

    def chain(self, key: str, old: Any) -> list[Any]:
        """`old` and what it replaced itself, under `key`: the module, and the path in it."""
        alive = [value for reference in self._references.get(key, []) if (value := reference()) is not None]
        if not any(value is old for value in alive):
            alive.append(old)
        self._references[key] = [weakref.ref(value) for value in alive]
        return alive


@dataclass
class _Replacement:
    key: str
    old: Any
    new: Any


class _Update:
    """Makes references to functions and classes of reloaded modules use the new ones."""

    def __init__(self, older: _Older) -> None:
        self._older = older
        self._replaced: dict[int, _Replacement] = {}
        """By the id of the old object."""
        self._named: dict[tuple[int, str], Any] = {}
        """The new object, by the id of the old one and the name for both in their module."""
        self._stuck: set[int] = set()
        """Ids of old classes that still have instances or subclasses: the layout of the new one differs."""

    def add(self, module: ModuleType, before: dict[str, Any]) -> None:
        """Note what the functions and classes that `module` defined before are now."""
        pairs = []
        for name, old in before.items():
            new = module.__dict__.get(name)
            if new is not old and _is_definition(old) and _is_definition(new) and old.__module__ == module.__name__:
                self._named[id(old), name] = new
                pairs.append((name, old, new))
        # Of several names for one object, that in its definition says what replaces it.
        for name, old, new in sorted(pairs, key=lambda pair: pair[0] != pair[1].__name__):
            if id(old) not in self._replaced:
                with suppress(Exception):  # a commit must not fail on one rank alone
                    self._add(f"{module.__name__}:{name}", old, new)

    def _add(self, key: str, old: Any, new: Any) -> None:
        for one in self._older.chain(key, old) if _is_function(old) or _is_class(old) else [old]:
            if one is not new:
                self._replaced[id(one)] = _Replacement(key, one, new)
        if not (_is_class(old) and _is_class(new)):
            return
        if issubclass(old, enum.Enum) and issubclass(new, enum.Enum):
            for name, member in old.__members__.items():
                if name in new.__members__:
                    self._replaced[id(member)] = _Replacement(f"{key}.{name}", member, new[name])
            return
        for name, nested in list(vars(old).items()):
            if _is_class(nested) and _is_class(vars(new).get(name)) and _is_inside(nested, old, name):
                self._add(f"{key}.{name}", nested, vars(new)[name])

    def carry_out(self, namespaces: Sequence[dict[str, Any]]) -> None:
        """Update all old objects, and rebind their names in `namespaces`."""
        replaced = list(self._replaced.values())
        self._move([one for one in replaced if _is_class(one.old) and _is_class(one.new)])
        for one in replaced:
            with suppress(Exception):  # a class may refuse anything; names and instances have the new one nevertheless
                self._update(one)
        for names in namespaces:
            for name, value in list(names.items()):
                found = self._replaced.get(id(value))
                if found is not None:
                    names[name] = self._named.get((id(value), name), found.new)

    def _move(self, classes: list[_Replacement]) -> None:
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

    def _update(self, one: _Replacement) -> None:
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
        """Make the old class use the methods of the new one, and make instances of it."""
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
        for cell in cells:  # `super()` in bound methods, whose object is an instance of the new class now
            cell.cell_contents = new
        with suppress(AttributeError, TypeError):
            type.__setattr__(old, "__new__", staticmethod(_maker(old, new)))

    def _update_methods(self, key: str, old: Any, new: Any) -> bool:
        """Update the functions of a method or property in place; whether the old one now equals the new one."""
        if type(old) is not type(new) or not _functions(new):
            return False
        done = True
        for index, (ours, theirs) in enumerate(zip(_functions(old), _functions(new))):
            chain = self._older.chain(f"{key}.{index}", ours) if _is_function(ours) else [ours]
            updated = {id(one): one is theirs or _update_in_place(one, theirs) for one in chain}
            done = done and updated[id(ours)]
        return done


def _is_function(value: Any) -> bool:
    # Not isinstance: what mx.compile returns (MLX 0.32) has a `__class__` that says function, and is none.
    return type(value) is FunctionType


def _is_class(value: Any) -> bool:
    return issubclass(type(value), type)


def _is_definition(value: Any) -> bool:
    """Whether it is a function, a class, or a callable that stands for a function, such as a compiled one.

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


def _is_copied(name: str, value: Any) -> bool:
    """Whether an attribute may be copied between classes: not if it belongs to the layout or to the class itself."""
    own = {"__dict__", "__weakref__", "__module__", "__qualname__", "__new__", "_abc_impl"}
    return name not in own and not isinstance(value, types.MemberDescriptorType | types.GetSetDescriptorType)


def _functions(method: Any) -> tuple[Any, ...]:
    """The functions of what a class has under a name: one, or three of a property."""
    if isinstance(method, property):
        return method.fget, method.fset, method.fdel
    if isinstance(method, classmethod | staticmethod):
        return (method.__func__,)
    return (method,) if _is_function(method) else ()


def _class_cells(method: Any) -> Iterator[types.CellType]:
    """The cells that name the class of a method that calls `super()`."""
    for function in _functions(method):
        if _is_function(function) and "__class__" in function.__code__.co_freevars:
            yield (function.__closure__ or ())[function.__code__.co_freevars.index("__class__")]


def _update_in_place(old: Any, new: Any) -> bool:
    """Give a function the code of another; whether that was possible."""
    from IPython.extensions.autoreload import update_function

    if not _is_function(old) or not _is_function(new):
        return False
    if old.__globals__ is not new.__globals__ or old.__code__.co_freevars != new.__code__.co_freevars:
        return False
    update: Callable[[Any, Any], None] = update_function
    old.__kwdefaults__ = new.__kwdefaults__  # IPython 8.18 leaves these and the annotations
    annotations = "__annotate__" if hasattr(new, "__annotate__") else "__annotations__"
    setattr(old, annotations, getattr(new, annotations))
    with suppress(NameError):  # of annotations, which IPython 9.18 copies last and Python 3.14 evaluates for that
        update(old, new)
    for name, ours, theirs in zip(new.__code__.co_freevars, old.__closure__ or (), new.__closure__ or ()):
        with suppress(ValueError):  # an empty cell
            # What a decorator wraps is replaced; what the closure counts or caches is not.
            if name != "__class__" and (_is_function(theirs.cell_contents) or _is_class(theirs.cell_contents)):
                ours.cell_contents = theirs.cell_contents
    return True


def _maker(old: type, new: type) -> Callable[..., Any]:
    """``__new__`` of an old class that somebody still holds."""

    def make(cls: type, *args: Any, **kwargs: Any) -> Any:
        if cls is old:
            return new(*args, **kwargs)
        inherited = super(old, cls).__new__  # type: ignore[arg-type]
        return inherited(cls) if inherited is object.__new__ else inherited(cls, *args, **kwargs)

    return make


def _drop(name: str, module: ModuleType) -> None:
    """Forget a module whose file is gone."""
    if sys.modules.get(name) is module:
        del sys.modules[name]
    package, _, child = name.rpartition(".")
    parent = sys.modules.get(package)
    if parent is not None and getattr(parent, child, None) is module:
        with suppress(AttributeError):
            delattr(parent, child)


def _stat(path: str) -> Stat:
    # Opened, since NFS asks its server only then; else it may answer from its cache for a minute.
    descriptor = os.open(path, os.O_RDONLY)
    try:
        found = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    return found.st_mtime_ns, found.st_size


def _stat_or_none(path: str) -> Stat | None:
    """None if there is no such file; unknown if that cannot be told."""
    try:
        return _stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        return _UNKNOWN
