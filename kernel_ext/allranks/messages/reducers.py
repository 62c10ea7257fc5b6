"""How objects are pickled that would not come back by their own way of pickling.

Each function returns what `pickle` calls a reduced value, or None where the object's own way will do.
"""

from __future__ import annotations

import copyreg
import functools
import sys
import types
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

Reduced = tuple[Any, ...]
REDUCERS: dict[type, Callable[[Any], Reduced | None]] = {}
"""More ways, by type: those of objects that only ranks have."""
SET_BY_LRU_CACHE = frozenset({*functools.WRAPPER_ASSIGNMENTS, "__wrapped__", "cache_parameters"})
"""Attributes that ``functools.lru_cache`` gives its functions."""


def reduced(obj: Any) -> Reduced | None:
    if (way := REDUCERS.get(type(obj))) is not None and (own := way(obj)) is not None:
        return own
    if type(obj) is functools._lru_cache_wrapper:
        return _reduced_cached(obj)
    if issubclass(type(obj), BaseException):
        return _reduced_exception(obj)
    mx = sys.modules.get("mlx.core")
    if mx is None:
        return None
    if obj is mx.random.state:
        return _random_state, ()
    return _reduced_function_of_mlx(mx, obj) if type(obj).__name__ == "nb_func" else None


def _reduced_function_of_mlx(mx: Any, function: Any) -> Reduced | None:
    """A function of MLX's own, such as ``mx.add``, cannot be pickled (0.32.4), but is known by its name."""
    name = f"{function.__module__}.{function.__qualname__}".removeprefix("mlx.core.")
    try:
        return (from_mlx, (name,)) if attrgetter(name)(mx) is function else None
    except AttributeError:
        return None


def from_mlx(name: str, args: tuple[Any, ...] | None = None, kwargs: Mapping[str, Any] | None = None) -> Any:
    """What ``mlx.core`` has of that name, or made by calling that."""
    import mlx.core as mx

    found = attrgetter(name)(mx)
    return found if args is None else found(*args, **(kwargs or {}))


def _reduced_cached(function: Any) -> Reduced | None:
    """A function under ``functools.lru_cache`` is pickled by its name, which is not there yet in another process.

    So one that was defined in a cell, or in another function, is made again, with an empty cache.
    """
    if _importable(function):
        return None
    own = {name: value for name, value in vars(function).items() if name not in SET_BY_LRU_CACHE}
    return _cached_again, (function.__wrapped__, *function.cache_parameters().values()), own or None


def _importable(function: Any) -> bool:
    module = getattr(function, "__module__", None)
    found = sys.modules.get(module or "")
    for part in getattr(function, "__qualname__", "").split("."):
        found = getattr(found, part, None)
    return module != "__main__" and found is function


def _cached_again(function: Callable[..., Any], maxsize: int | None, typed: bool) -> Any:
    return functools.lru_cache(maxsize, typed)(function)


def _reduced_exception(error: BaseException) -> Reduced | None:
    """Exceptions are pickled as their class and ``args``, which need not be what their ``__init__`` takes.

    So an ``__init__`` written in Python is not called again: ``args`` and the attributes are all there is to restore.
    """
    cls = type(error)
    plain = not any(
        isinstance(getattr(cls, name, None), types.FunctionType) for name in ("__reduce__", "__reduce_ex__")
    )
    slots = any(vars(base).get("__slots__") for base in cls.__mro__)
    if not (plain and isinstance(cls.__init__, types.FunctionType)) or slots or cls in copyreg.dispatch_table:
        return None
    again = error.__reduce_ex__(5)
    if not isinstance(again, tuple) or again[0] is not cls:
        return None
    return _exception_again, (cls, again[1]), *again[2:]


def _exception_again(cls: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    builtin: Any = next(base for base in cls.__mro__ if base.__module__ == "builtins")
    error: BaseException = builtin.__new__(cls, *args)
    builtin.__init__(error, *args)
    return error


def _random_state() -> Any:
    import mlx.core as mx

    return mx.random.state
