"""Tracebacks as the user may see them: none of our frames below the user's, and the line of the cell that raised."""

from __future__ import annotations

import sys
from typing import Any

_NOBODY_BELOW = {"bdb", *(f"{__package__}.{module}" for module in ("diversion", "engine", "look", "stdio"))}
"""Modules that never call the user's code: below their frames (a print, the debugger's prompt) none is the user's."""


def end_at_the_user(shell: Any) -> None:
    """Leave our own frames out below the user's: IPython hides marked frames, but never the innermost."""
    structured = shell.InteractiveTB.structured_traceback

    def structured_traceback(etype: Any, error: Any, traceback: Any, *args: Any, **kwargs: Any) -> Any:
        _trim(traceback)
        chained, seen = error, set[int]()
        while isinstance(chained, BaseException) and id(chained) not in seen:
            seen.add(id(chained))
            _trim(chained.__traceback__)
            chained = chained.__cause__ or chained.__context__
        return structured(etype, error, traceback, *args, **kwargs)

    shell.InteractiveTB.structured_traceback = structured_traceback


def _trim(traceback: Any) -> None:
    """Cut a traceback behind its last frame that is not ours."""
    last = at = traceback
    while at is not None and (name := str(at.tb_frame.f_globals.get("__name__"))) not in _NOBODY_BELOW:
        if not name.startswith("allranks."):
            last = at
        at = at.tb_next
    if last is not None:
        last.tb_next = None


def place_of_error(file: str | None) -> tuple[int | None, str]:
    """Line of the cell called `file` that raised, and a message.

    The line is that of its innermost frame in the traceback, or where the syntax broke. The message is only given for
    syntax errors, whose own text names a file the user has never seen.
    """
    error = sys.exc_info()[1] or getattr(sys, "last_value", None)
    if isinstance(error, SyntaxError):
        return error.lineno, error.msg
    line = None
    at = error.__traceback__ if error is not None else None
    while at is not None:
        if at.tb_frame.f_code.co_filename == file:
            line = at.tb_lineno
        at = at.tb_next
    return line, ""
