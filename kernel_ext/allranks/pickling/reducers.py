"""Pickling of objects that their own pickling methods would not restore.

Each reducer returns what `pickle` calls a reduced value, or None if the object's own method works.
"""

from __future__ import annotations

import copyreg
import functools
import itertools
import os
import struct
import sys
import types
import typing
import weakref
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

Reduced = tuple[Any, ...]
REDUCERS: dict[type, Callable[[Any], Reduced | None]] = {}
"""Maps a type to the function that reduces its objects; ranks add types that only they have."""
SET_BY_LRU_CACHE = frozenset({*functools.WRAPPER_ASSIGNMENTS, "__wrapped__", "cache_parameters"})
"""Attributes that ``functools.lru_cache`` gives its functions."""


def reduced(obj: Any) -> Reduced | None:
    if (way := REDUCERS.get(type(obj))) is not None and (own := way(obj)) is not None:
        return own
    if issubclass(type(obj), BaseException):
        return _reduced_exception(obj)
    for name in ("stdout", "stderr"):  # on a rank, these are not files
        if obj is getattr(sys, name):
            return getattr, (sys, name)
    mx = sys.modules.get("mlx.core")
    if mx is None:
        return None
    if obj is mx.random.state:
        return _random_state, ()
    if type(obj) is mx.Device:  # MLX does not expose a device's number (0.32.4)
        number = next(number for number in itertools.count() if mx.Device(obj.type, number) == obj)
        return from_mlx, ("Device", (obj.type, number))
    if type(obj) is mx.Stream:
        is_default = obj == mx.default_stream(obj.device)
        return from_mlx, ("default_stream" if is_default else "new_stream", (obj.device,))
    return _reduced_function_of_mlx(mx, obj) if type(obj).__name__ == "nb_func" else None


def _reduced_function_of_mlx(mx: types.ModuleType, function: Any) -> Reduced | None:
    """Reduce one of MLX's functions, such as ``mx.add``, to its name, since it cannot be pickled (0.32.4)."""
    name = f"{function.__module__}.{function.__qualname__}".removeprefix("mlx.core.")
    try:
        return (from_mlx, (name,)) if attrgetter(name)(mx) is function else None
    except AttributeError:
        return None


def from_mlx(name: str, args: tuple[object, ...] | None = None, kwargs: Mapping[str, object] | None = None) -> Any:
    """The attribute of ``mlx.core`` with this name; if `args` are given, the result of calling it."""
    import mlx.core as mx

    found = attrgetter(name)(mx)
    return found if args is None else found(*args, **(kwargs or {}))


def _reduced_cached(function: functools._lru_cache_wrapper[object]) -> Reduced | None:
    """Reduce a function under ``functools.lru_cache``, which pickle sends as a name that the other process may lack.

    A function that was defined in a cell or in another function is created again, with an empty cache.
    """
    if _importable(function):
        return None
    own = {name: value for name, value in vars(function).items() if name not in SET_BY_LRU_CACHE}
    return _cached_again, (function.__wrapped__, *function.cache_parameters().values()), own or None


def _importable(function: object) -> bool:
    module = getattr(function, "__module__", None)
    found = sys.modules.get(module or "")
    for part in getattr(function, "__qualname__", "").split("."):
        found = getattr(found, part, None)
    return module != "__main__" and found is function


def _cached_again(function: Callable[..., object], maxsize: int | None, typed: bool) -> object:
    return functools.lru_cache(maxsize, typed)(function)


def _reduced_exception(error: BaseException) -> Reduced | None:
    """Reduce an exception so that it is restored without calling an ``__init__`` written in Python.

    pickle would call ``__init__`` with the exception's ``args``, but it may take other arguments. The cause and the
    context, which pickle drops, are restored, too. Returns None for a class that has its own pickling methods or slots.
    """
    cls = type(error)
    own = ("__reduce__", "__reduce_ex__", "__setstate__")
    plain = not any(isinstance(getattr(cls, name, None), types.FunctionType) for name in own)
    slots = any(vars(base).get("__slots__") for base in cls.__mro__)
    if not plain or slots or cls in copyreg.dispatch_table:
        return None
    again = error.__reduce_ex__(5)
    if not isinstance(again, tuple) or again[0] is not cls:
        return None
    state = dict(again[2] or {}) if len(again) > 2 else {}
    state |= {name: came for name in ("__context__", "__cause__") if (came := getattr(error, name)) is not None}
    if error.__suppress_context__:
        state["__suppress_context__"] = True
    return _exception_again, (cls, again[1]), state or None


def _exception_again(cls: type[BaseException], args: tuple[object, ...]) -> BaseException:
    if not isinstance(cls.__init__, types.FunctionType):
        return cls(*args)
    builtin: Any = next(base for base in cls.__mro__ if base.__module__ == "builtins")
    error: BaseException = builtin.__new__(cls, *args)
    builtin.__init__(error, *args)
    return error


def _random_state() -> object:
    import mlx.core as mx

    return mx.random.state


def _reduced_cached_property(found: functools.cached_property[object]) -> Reduced:
    """Reduce a ``functools.cached_property``, which holds a lock before Python 3.12."""
    return type(found), (found.func,), {"attrname": found.attrname, "__doc__": found.__doc__}


def keep_slots(reduced: Reduced, cls: type) -> None:
    """Have a class created with its ``__slots__``: cloudpickle (3.1) sets them afterwards, when they have no effect."""
    if "__slots__" not in vars(cls) or typing.NamedTuple in vars(cls).get("__orig_bases__", ()):
        return  # NamedTuple sets its ``__slots__`` itself
    for each in reduced[1]:
        if isinstance(each, dict) and "__module__" in each:
            each["__slots__"] = vars(cls)["__slots__"]


class ClosureCell:
    """Stands for a closure cell; unpickling fills it when it fills the functions that share it."""

    def __reduce__(self) -> Reduced:
        return _empty_cell, ()


def _empty_cell() -> types.CellType:
    return types.CellType()


REDUCERS |= {
    functools._lru_cache_wrapper: _reduced_cached,
    functools.cached_property: _reduced_cached_property,
    os._Environ: lambda found: (getattr, (os, "environ")) if found is os.environ else None,
    struct.Struct: lambda found: (struct.Struct, (found.format,)),
    # Like cloudpickle's WeakSet: objects without another reference drop out after unpickling.
    weakref.WeakKeyDictionary: lambda found: (type(found), (dict(found),)),
    weakref.WeakValueDictionary: lambda found: (type(found), (dict(found),)),
}
