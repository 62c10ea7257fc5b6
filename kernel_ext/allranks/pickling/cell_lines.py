"""The source lines of functions from cells: saved with the functions, and shown in tracebacks where they are loaded.

A code object contains its file name; for code of a cell, this is ``<In[3]>``. In another kernel, another cell may
have that name, and a traceback would show its lines. So code is saved with its lines, and gets a file name of its own
when it is loaded: ``<In[3] (loaded)>``.
"""

from __future__ import annotations

import inspect
import itertools
import linecache
import tokenize
import types
from collections.abc import Iterator
from typing import NamedTuple

LOADED = " (loaded"
UNUSED = "\f\n"
"""Fills the lines, in a file of loaded code, that belong to no function."""


class CellLines(NamedTuple):
    """The lines of one code object."""

    file: str
    """The cell's file name where the code was saved."""
    first: int
    """The number of the first line, counted from 1."""
    lines: list[str]


def lines_of(code: types.CodeType) -> CellLines | None:
    """The lines of a cell's code (an empty list if Python does not know them); None for code that is not of a cell."""
    if not code.co_filename.startswith("<In["):
        return None
    known = _known(code.co_filename) or []
    return CellLines(code.co_filename, code.co_firstlineno, _block(known[code.co_firstlineno - 1 :], code))


def file_for(saved: CellLines) -> str:
    """The file name for loaded code: the saved name if this process has the same lines there, else a new name."""
    here = _known(saved.file)
    if saved.lines and here is not None and _part(here, saved) == saved.lines:
        return saved.file
    base = saved.file.partition(LOADED)[0].removesuffix(">")
    if not saved.lines:
        return f"{base}{LOADED}, lines unknown)>"
    names = itertools.chain([f"{base}{LOADED})>"], (f"{base}{LOADED} {number})>" for number in itertools.count(2)))
    return next(name for name in names if _add(name, saved))


def _add(name: str, saved: CellLines) -> bool:
    """Add the lines to this file in Python's `linecache`; return False if it has other lines in their place."""
    known, end = list(_known(name) or ()), saved.first - 1 + len(saved.lines)
    known += [UNUSED] * (end - len(known))
    if any(line not in (UNUSED, own) for line, own in zip(_part(known, saved), saved.lines, strict=True)):
        return False
    known[saved.first - 1 : end] = saved.lines
    linecache.cache[name] = (sum(map(len, known)), None, known, name)
    return True


def _known(file: str) -> list[str] | None:
    """The lines of a cell; None if Python does not know them."""
    entry = linecache.cache.get(file)
    return entry[2] if entry is not None and len(entry) == 4 else None


def _part(known: list[str], saved: CellLines) -> list[str]:
    return known[saved.first - 1 : saved.first - 1 + len(saved.lines)]


def _block(lines: list[str], code: types.CodeType) -> list[str]:
    """The part of `lines` that belongs to `code`, which begins at the first line."""
    try:
        return inspect.getblock(lines)
    except (tokenize.TokenError, SyntaxError):  # such as IPython's own lines below a lambda
        return lines[: max(_ends(code), default=code.co_firstlineno) - code.co_firstlineno + 1]


def _ends(code: types.CodeType) -> Iterator[int]:
    """The line numbers at which parts of a code object end, including those of functions inside it."""
    yield from (end for _, end, _, _ in code.co_positions() if end is not None)
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _ends(inner)
