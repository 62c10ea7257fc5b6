"""Callables that replace MLX's own in a rank. As far as Python allows, code cannot tell them from the originals.

``functools.wraps`` is not enough: a Python function binds as a method, has a signature, a ``__dict__`` and a
``__wrapped__``, and can be pickled, and MLX's functions have none of these (0.32.4). So a replacement is an object that
only calls, and passes everything else on to the original. It is called through a slot named ``__call__``, which the
type looks up without binding. That takes 35 ns more than a function, half of what a method takes.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

from allranks.pickling.reducers import REDUCERS, from_mlx

Made = tuple[str, tuple[object, ...], dict[str, object]]
"""The MLX function that made an object, by name, and the arguments of that call."""


class _Kind(type):
    """The type of replacement types: `inspect` and `pydoc` see the attributes of the replaced type in them."""

    def __getattribute__(cls, name: str) -> Any:
        of = _kinds.get(cls)
        own = of is None or name == "__dict__"  # Python 3.13 looks up __call__ in it
        return type.__getattribute__(cls, name) if own else getattr(of, name)

    def __dir__(cls) -> list[str]:
        return dir(_kinds[cls])


_kinds: dict[type, type] = {}
"""Maps each replacement type to the type that it replaces."""
_replacing: dict[type, type] = {}
"""Maps each replaced type to its replacement type."""


class _Replacement(metaclass=_Kind):
    __slots__ = ("__call__", "_made", "_original")

    def __getattribute__(self, name: str) -> Any:
        found = getattr(original := _original(self), name)
        # A compiled function returns these attributes of the user's function, and so does its replacement.
        if name in ("__call__", "__get__") and getattr(found, "__self__", None) is original:
            return object.__getattribute__(self, name)
        return found

    def __setattr__(self, name: str, value: object) -> None:
        setattr(_original(self), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(_original(self), name)


_slots: dict[str, Any] = {name: vars(_Replacement)[name] for name in ("__call__", "_made", "_original")}
_original = _slots["_original"].__get__


def replaced(original: object, call: Callable[..., object], made: Made | None = None) -> Any:
    """Return an object that calls `call` and is like `original` in every other way.

    `made` is the call by which another process can make the object again; without it, the object is found by name.
    """
    if isinstance(call, types.FunctionType):
        call.__annotations__ = {}  # MLX's have none (inspect.signature, Python 3.13)
    replacement: Any = object.__new__(_kind(original))
    for name, value in (("__call__", call), ("_made", made), ("_original", original)):
        _slots[name].__set__(replacement, value)
    return replacement


def is_replaced(function: object) -> bool:
    """Whether the function is a replacement."""
    return type(type(function)) is _Kind


def original(function: object) -> Any:
    """MLX's own function behind a replacement; any other function unchanged."""
    return _original(function) if is_replaced(function) else function


def leave_out_our_frames(error: BaseException) -> None:
    """Let the traceback begin below our frames; for an ``except`` that ends with ``raise``, which adds no frame."""
    at = error.__traceback__
    while at is not None and str(at.tb_frame.f_globals.get("__name__")).startswith("allranks."):
        at = at.tb_next
    error.__traceback__ = at


def _kind(original: object) -> type:
    of = type(original)
    if (known := _replacing.get(of)) is not None:
        return known
    names: dict[str, object] = {"__slots__": (), "__module__": of.__module__, "__qualname__": of.__qualname__}
    names["__doc__"] = property(lambda self: object.__getattribute__(_original(self), "__doc__"))  # which help() reads
    if hasattr(of, "__get__"):
        names["__get__"] = _bound
    kind = _Kind(_name_in_messages(original), (_Replacement,), names)
    _kinds[kind], _replacing[of] = of, kind
    REDUCERS[kind] = _reduced
    return kind


def _name_in_messages(thing: object) -> str:
    """The name of the type of `thing` in Python's error messages; it may or may not begin with the module."""
    try:
        object.__setattr__(thing, "allranks", None)
    except AttributeError as error:
        return str(error).split("'")[1]
    return type(thing).__name__


def _bound(self: Any, instance: object, owner: type | None = None) -> Any:
    if instance is None:
        return self
    call = functools.partial(_slots["__call__"].__get__(self), instance)
    return replaced(_original(self).__get__(instance, owner), call)


def _reduced(replacement: object) -> tuple[object, ...] | None:
    made = _slots["_made"].__get__(replacement)
    return None if made is None else (from_mlx, made)
