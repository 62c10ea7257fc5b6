"""Values of the variables that a cell reads: numbers, text, truth values, and checksums of functions and classes."""

from __future__ import annotations

import hashlib
import types
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from allranks.pickling.pickle_values import global_names, is_code, python_function
from allranks.rank.values.checkpoint import GIVEN

CHANGES = ("STORE_GLOBAL", "DELETE_GLOBAL")
PLAIN = (bool, int, float, str)
LONGEST = 100
"""Maximum length, in characters, of a text that is returned."""
LARGEST = 1 << 63
"""Integers of this magnitude or more do not fit in a message."""
MOST = 200
"""Maximum number of names examined."""
OF_CLASSES = frozenset({"__dict__", "__weakref__", "__module__", "__firstlineno__", "__static_attributes__"})
"""Attributes of a class that are not part of its code."""


def read_values(names: Collection[str], without: Collection[str], user_ns: Mapping[str, object]) -> dict[str, Any]:
    """The plain values of these variables, and of the variables that the functions among them read in turn.

    A function or class of the user is returned as a short checksum of its code, under its name with ``()``. Names in
    `without`, which the cell itself binds, are left out. So are variables that the functions bind, since their values
    keep changing. Evaluates nothing.
    """
    found: dict[str, Any] = {}
    changed = set[str]()
    left, seen, looked_at = sorted(names), {*GIVEN, *without}, 0
    while left and looked_at < MOST:
        name = left.pop(0)
        if name in seen or name not in user_ns:
            continue
        seen.add(name)
        looked_at += 1
        value = user_ns[name]
        if type(value) in PLAIN:
            if _is_short(value):
                found[name] = value
        elif parts := list(_code_of(value, user_ns)):
            found[f"{name}()"] = _checksum(parts)
            for function in parts:
                if isinstance(function, types.FunctionType):
                    left += global_names(function.__code__)
                    changed |= set(global_names(function.__code__, CHANGES))
    return {name: value for name, value in found.items() if name not in changed}


def _is_short(value: object) -> bool:
    return len(value) <= LONGEST if type(value) is str else type(value) is not int or abs(value) < LARGEST


def _code_of(value: object, user_ns: Mapping[str, object]) -> Iterator[types.FunctionType | str]:
    """Yield the user's function that `value` is or wraps; for a user's class, its functions and plain attributes."""
    if isinstance(value, type):
        for base in value.__mro__:
            for name, each in list(vars(base).items()) if base.__module__ == "__main__" else ():
                if type(each) in PLAIN and name not in OF_CLASSES:
                    yield f"{name}={each!r}"
                methods: list[object] = (
                    [each] if isinstance(each, (types.FunctionType, staticmethod, classmethod)) else []
                )
                methods += [each.fget, each.fset] if isinstance(each, property) else []
                for method in methods:
                    if (function := python_function(method)) is not None:
                        yield function
    elif is_code(value) and (function := python_function(value)) is not None and function.__globals__ is user_ns:
        yield function


def _checksum(parts: Collection[types.FunctionType | str]) -> str:
    digest = hashlib.sha1(usedforsecurity=False)
    for part in parts:
        digest.update(part.encode() if isinstance(part, str) else _text_of(part).encode())
    return digest.hexdigest()[:6]


def _text_of(function: types.FunctionType) -> str:
    """The function's compiled code and plain default values: unlike its source, these survive a checkpoint."""
    text = _compiled(function.__code__)
    defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    return f"{text}{[each for each in defaults if type(each) in PLAIN]}"


def _compiled(code: types.CodeType) -> str:
    constants = [_constant_text(each) for each in code.co_consts]
    return f"{code.co_code.hex()}{code.co_names}{code.co_varnames}{code.co_exceptiontable!r}{constants}"


def _constant_text(value: object) -> str:
    if isinstance(value, types.CodeType):
        return _compiled(value)
    # The order of a set differs between processes.
    return str(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)
