"""Detects that this process waits for a compiler, which MLX runs in ``mx.eval`` to build the CPU's kernels.

The first compilation takes a second on a fast machine and minutes on a slow one, and looks like a hang.
"""

from __future__ import annotations

import re
import time

import psutil

from allranks.messages.events import Compiler

STANDS_FOR = 1.0
"""Seconds for which the main thread must stay at one location before this process's children are listed."""
LOOK_EVERY = 1.0
_COMPILER = re.compile(r"(.*-)?(g\+\+|gcc|clang\+\+|clang|c\+\+|cc|nvcc)(-[\d.]+)?")


class CompilerWatch:
    """Called for each report; lists child processes once a second while the main thread stays at one location."""

    def __init__(self) -> None:
        self._place: object = None
        self._since = self._looked_at = 0.0
        self._found: psutil.Process | None = None

    def look(self, place: object, now: float) -> Compiler | None:
        """The compiler found while the main thread stays at `place` (None: no cell runs); None if none was found."""
        if place is None or place != self._place:
            self._place, self._since, self._found = place, now, None
        elif now - self._since >= STANDS_FOR and now - self._looked_at >= LOOK_EVERY:
            self._looked_at, self._found = now, running()
        return described(self._found) if self._found is not None else None


def running() -> psutil.Process | None:
    """The first compiler among this process's descendants; None if none runs."""
    try:
        children = psutil.Process().children(recursive=True)
    except psutil.Error:
        return None
    return next((each for each in children if _is_compiler(each)), None)


def _is_compiler(process: psutil.Process) -> bool:
    try:
        return _COMPILER.fullmatch(process.name()) is not None
    except psutil.Error:  # it has just ended
        return False


def described(process: psutil.Process) -> Compiler | None:
    """The compiler's name and how long it has run, in whole seconds; None if it has ended."""
    try:
        return Compiler(process.name(), int(time.time() - process.create_time()))
    except psutil.Error:
        return None
