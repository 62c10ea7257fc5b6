"""Whether this process waits for a compiler: MLX has one make the CPU's kernels, as a child, and waits in ``mx.eval``.

The first compilation takes a second on a fast machine and minutes on a slow one, and looks like a hang.
"""

from __future__ import annotations

import re
import time
from typing import Any

import psutil

from allranks.messages.events import Compiler

STANDS_FOR = 1.0
"""Seconds the main thread stands in one place before its process's children are listed."""
LOOK_EVERY = 1.0
_COMPILER = re.compile(r"(.*-)?(g\+\+|gcc|clang\+\+|clang|c\+\+|cc|nvcc)(-[\d.]+)?")


class CompilerWatch:
    """To be asked with each report; lists the children only while the main thread stands still, each second."""

    def __init__(self) -> None:
        self._place: Any = None
        self._since = self._looked_at = 0.0
        self._found: psutil.Process | None = None

    def look(self, place: Any, now: float) -> Compiler | None:
        """The compiler that runs while the main thread is at `place` (None: no cell runs)."""
        if place is None or place != self._place:
            self._place, self._since, self._found = place, now, None
        elif now - self._since >= STANDS_FOR and now - self._looked_at >= LOOK_EVERY:
            self._looked_at, self._found = now, running()
        return described(self._found) if self._found is not None else None


def running() -> psutil.Process | None:
    """The first compiler among this process's descendants."""
    try:
        children = psutil.Process().children(recursive=True)
    except psutil.Error:
        return None
    return next((each for each in children if _is_compiler(each)), None)


def _is_compiler(process: psutil.Process) -> bool:
    try:
        return _COMPILER.fullmatch(process.name()) is not None
    except psutil.Error:  # it has ended meanwhile
        return False


def described(process: psutil.Process) -> Compiler | None:
    """What it is and since when, in whole seconds."""
    try:
        return Compiler(process.name(), int(time.time() - process.create_time()))
    except psutil.Error:
        return None
