"""Tracebacks for the user: without our frames below the user's, and with the line of the cell that raised."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

_NOBODY_BELOW = {
    "bdb",
    "allranks.rank.cell.output_capture",
    "allranks.rank.cell.stdio",
    "allranks.rank.debug.introspection",
    "allranks.rank.process.engine",
}
"""Modules that never call the user's code: no frame below theirs (a print, the debugger's prompt) is the user's."""

_CALLER = "allranks.rank.cell.called_functions"


def end_at_the_user(shell: Any, with_files: Callable[[], AbstractContextManager[None]]) -> None:
    """Make IPython leave out our own frames below the user's: it hides marked frames, but never the innermost.

    `with_files` lets a process that has no file descriptor left read files.
    """
    structured = shell.InteractiveTB.structured_traceback

    def structured_traceback(
        etype: object, error: object, traceback: TracebackType | None, *args: object, **kwargs: object
    ) -> object:
        _tell_inspect(traceback)
        _begin_at_function(traceback)
        _trim(traceback)
        chained, seen = error, set[int]()
        while isinstance(chained, BaseException) and id(chained) not in seen:
            seen.add(id(chained))
            _trim(chained.__traceback__)
            chained = chained.__cause__ or chained.__context__
        with with_files():
            return structured(etype, error, traceback, *args, **kwargs)

    shell.InteractiveTB.structured_traceback = structured_traceback


def _tell_inspect(traceback: TracebackType | None) -> None:
    """Tell `inspect` the module of the cells in the traceback.

    Otherwise `inspect` searches all modules for each frame of an unknown file: a thousand frames take seconds.
    """
    known = inspect.modulesbyfile
    at = traceback
    while at is not None:
        if at.tb_frame.f_globals.get("__name__") == "__main__":
            file = at.tb_frame.f_code.co_filename
            known[file] = known[os.path.normcase(os.path.abspath(file))] = "__main__"
        at = at.tb_next


def _begin_at_function(traceback: Any) -> None:
    """Remove the frames that call a function sent with the cell: they follow the first frame, which is IPython's."""
    at = traceback
    while at is not None:
        if at.tb_frame.f_globals.get("__name__") == _CALLER:
            traceback.tb_next = at.tb_next
        at = at.tb_next


def _trim(traceback: TracebackType | None) -> None:
    """Cut a traceback after its last frame that is not ours, and before any frame of a `_NOBODY_BELOW` module."""
    last = at = traceback
    while at is not None and (name := str(at.tb_frame.f_globals.get("__name__"))) not in _NOBODY_BELOW:
        if not name.startswith("allranks."):
            last = at
        at = at.tb_next
    if last is not None:
        last.tb_next = None


def without_hidden(traceback: Sequence[str]) -> list[str]:
    """The parts of a traceback without "[... skipping hidden 1 frame]" (IPython 9.18)."""
    return [part for part in traceback if "skipping hidden" not in part]


def raised() -> BaseException | None:
    """The error that is being handled, else the last unhandled one; None if there is neither."""
    return sys.exc_info()[1] or getattr(sys, "last_value", None)


def place_of_error(error: BaseException | None, file: str | None) -> tuple[int | None, str]:
    """The line at which the code in `file` raised `error`, and a message.

    The line is from that code's innermost frame in the traceback, or from the syntax error; None without either. The
    message is empty except for syntax errors, whose own text names a file that the user has never seen.
    """
    if isinstance(error, SyntaxError):
        return error.lineno, error.msg
    line = None
    at = error.__traceback__ if error is not None else None
    while at is not None:
        if at.tb_frame.f_code.co_filename == file:
            line = at.tb_lineno
        at = at.tb_next
    return line, ""
