"""What code reads of the user's variables: numbers, text, truth values, and the source of functions and classes."""

from __future__ import annotations

import hashlib
import inspect
import types
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from allranks.messages.values import global_names
from allranks.rank.values.checkpoint import GIVEN

PLAIN = (bool, int, float, str)
LONGEST = 100
"""Characters of a text that counts."""
MOST = 200
"""Names that are looked at."""


def read_values(names: Collection[str], without: Collection[str], user_ns: Mapping[str, Any]) -> dict[str, Any]:
    """The plain ones of these variables, and of those that the user's functions among them read in turn.

    A function or class of the user counts as a short checksum of its source, under its name with ``()``. `without` has
    names that the code binds itself. Evaluates nothing.
    """
    found: dict[str, Any] = {}
    left, seen = sorted(names), {*GIVEN, *without}
    while left and len(seen) < MOST:
        name = left.pop(0)
        if name in seen or name not in user_ns:
            continue
        seen.add(name)
        value = user_ns[name]
        if type(value) in PLAIN:
            if type(value) is not str or len(value) <= LONGEST:
                found[name] = value
        elif functions := list(_functions(value, user_ns)):
            found[f"{name}()"] = _checksum(functions)
            left += [each for function in functions for each in global_names(function.__code__)]
    return found


def _functions(value: Any, user_ns: Mapping[str, Any]) -> Iterator[types.FunctionType]:
    """The user's function itself, or those of the user's class."""
    if isinstance(value, types.FunctionType):
        if value.__globals__ is user_ns:
            yield value
    elif isinstance(value, type) and value.__module__ == "__main__":
        yield from (each for each in vars(value).values() if isinstance(each, types.FunctionType))


def _checksum(functions: Collection[types.FunctionType]) -> str:
    digest = hashlib.sha1(usedforsecurity=False)
    for function in functions:
        try:
            digest.update(inspect.getsource(function).encode())
        except (OSError, TypeError):
            digest.update(function.__code__.co_code)
    return digest.hexdigest()[:6]
