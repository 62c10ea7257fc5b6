"""The main thread, for other threads: its innermost frame, calling a function in it, and interrupting it."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType


class MainThread:
    def __init__(self, call: Callable[[Callable[[], None]], None]) -> None:
        self.call = call
        """Calls a function in the main thread once the thread is idle."""
        self._thread = threading.main_thread()

    def is_current(self) -> bool:
        return threading.current_thread() is self._thread

    def frame(self) -> FrameType | None:
        """The innermost frame of the main thread; None if the thread has ended."""
        return sys._current_frames().get(self._thread.ident or 0)

    def interrupt(self) -> None:
        """Send SIGINT to the main thread, even while it waits in its event loop, as in a cell with `await`.

        The signal handler of such a cell (ipykernel 7.4) only asks the loop to call a function, which does not wake a
        loop that waits.
        """
        signal.pthread_kill(self._thread.ident or 0, signal.SIGINT)
        self.call(lambda: None)
