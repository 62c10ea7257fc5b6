"""ipyparallel's controller as a child of the host process.

Engines and clients only connect to it, and the ranks' state does not depend on it. So if it is killed, it is started
again at the same addresses with the same keys. If it exits on its own (say, because an address is in use), it is not
restarted, since it would exit again.
"""

from __future__ import annotations

import subprocess
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from . import start_processes
from .child_processes import CONTROLLER, Children

MOST, WITHIN = 5, 60.0
"""At most `MOST` starts in `WITHIN` seconds: a crash that repeats will repeat again."""


class ControllerChild:
    """The running controller; `again` replaces it with a new one."""

    def __init__(self, children: Children, settings: Mapping[str, object], log: Path) -> None:
        self._children, self._settings, self._log = children, settings, log
        self._starts: deque[float] = deque(maxlen=MOST)
        self._process = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        process = start_processes.controller(self._settings, self._log)
        self._children.add(CONTROLLER, process.pid, process)
        self._starts.append(time.monotonic())
        return process

    def again(self, code: int) -> bool:
        """Start a new controller after one ended with `code` (as in `subprocess.Popen`); False if none was started."""
        if code >= 0 or (len(self._starts) == MOST and time.monotonic() - self._starts[0] < WITHIN):
            return False
        self.close_input()
        try:
            self._process = self._started()
        except OSError:  # no memory, perhaps: this must not end the ranks
            return False
        return True

    def forget(self, uuids: Sequence[str]) -> None:
        """Tell the controller to forget these engines, whose processes have ended."""
        if self._process.returncode is None and self._process.stdin is not None:  # `Children` sets it
            with suppress(OSError):  # it has just ended
                self._process.stdin.write("".join(f"{uuid}\n" for uuid in uuids).encode())
                self._process.stdin.flush()

    def close_input(self) -> None:
        """Close this process's end of the controller's input; the controller ends once no process has it open."""
        if self._process.stdin is not None:
            with suppress(OSError):  # data that could not be flushed
                self._process.stdin.close()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
