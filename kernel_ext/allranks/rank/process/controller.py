"""ipyparallel's controller as a child of the host process.

Engines and clients only connect to it, and what ranks hold does not depend on it. So one that is killed is started
again at the same addresses with the same keys. One that gives up by itself (an address is taken) would do so again.
"""

from __future__ import annotations

import subprocess
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from . import start
from .children import CONTROLLER, Children

MOST, WITHIN = 5, 60.0
"""Starts in so many seconds: what kills one time and again will kill the next."""


class Controller:
    """The one that runs now; `again` starts the next."""

    def __init__(self, children: Children, settings: Mapping[str, Any], log: Path) -> None:
        self._children, self._settings, self._log = children, settings, log
        self._starts: deque[float] = deque(maxlen=MOST)
        self._process = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        process = start.controller(self._settings, self._log)
        self._children.add(CONTROLLER, process.pid, process)
        self._starts.append(time.monotonic())
        return process

    def again(self, code: int) -> bool:
        """Start another in the place of one that ended with `code` (as in `subprocess.Popen`), if that may help."""
        if code >= 0 or (len(self._starts) == MOST and time.monotonic() - self._starts[0] < WITHIN):
            return False
        self.close_input()
        try:
            self._process = self._started()
        except OSError:  # no memory, perhaps: the ranks must not end with that
            return False
        return True

    def forget(self, uuids: Sequence[str]) -> None:
        """Have it forget these engines, whose processes have ended."""
        if self._process.returncode is None and self._process.stdin is not None:  # `Children` sets it
            with suppress(OSError):  # it has ended this moment
                self._process.stdin.write("".join(f"{uuid}\n" for uuid in uuids).encode())
                self._process.stdin.flush()

    def close_input(self) -> None:
        """Close this process's end of its input; it ends where no other process has that open."""
        if self._process.stdin is not None:
            with suppress(OSError):  # what could not be written
                self._process.stdin.close()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
