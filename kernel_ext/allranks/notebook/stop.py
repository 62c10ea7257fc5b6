"""Ctrl-C and the stop button while a cell is followed: noted, and acted on where nothing can be torn in two.

Python raises KeyboardInterrupt between any two instructions: in the middle of handling a rank's message, which would
then be lost, or of re-forming the world.
"""

from __future__ import annotations

import queue
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

PATIENCE = 5.0
"""Seconds after which a stop is no longer put off."""
AGAIN_AFTER = 0.1
"""Seconds after which a stop that came between two waits is tried again."""
_WAIT, _START = threading.Condition.wait.__code__, threading.Thread.start.__code__


class Stop:
    """Whether the user has pressed stop; `raise_if_pressed` raises KeyboardInterrupt.

    One that is `around` several cells notes what comes between them, and leaves the rest to the cells' own.
    """

    def __init__(self, *, around: bool = False, in_waits: bool = False) -> None:
        self._around, self._in_waits = around, in_waits
        """Raised late, it is raised anywhere, or only where the main thread waits, and leaves nothing half done."""
        self._over = threading.Event()
        self._again: threading.Thread | None = None
        """Sends the signal again and again until it comes in a wait, or all is `_over`."""
        self.pressed = False
        self._deaf_since: float | None = None
        self._wake: queue.SimpleQueue[Any] | None = None

    def press(self, wake: queue.SimpleQueue[Any]) -> None:
        """Stop, as the user would, and put None into `wake`."""
        self.pressed = True
        wake.put(None)

    def raise_if_pressed(self) -> None:
        """Once for each press."""
        if self.pressed:
            self.pressed = False
            raise KeyboardInterrupt

    @contextmanager
    def noted(self, wake: queue.SimpleQueue[Any] | None = None) -> Iterator[None]:
        """Within, SIGINT is only noted, and None put into `wake`; does nothing outside the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.getsignal(signal.SIGINT)
        outer = getattr(before, "__self__", None)
        if before is not signal.default_int_handler and not (isinstance(outer, Stop) and outer._around):
            yield  # somebody else's business, or noted already
            return
        self._wake, self._deaf_since, self._again = wake, None, None
        self._over.clear()
        signal.signal(signal.SIGINT, self._on_signal)
        try:
            yield
        finally:
            self._deaf_since = None
            self._over.set()
            if self._again is not None:
                self._again.join()
            signal.signal(signal.SIGINT, before)  # Python has handled every signal that came before

    def put_off(self) -> None:
        """From here on a press is ignored, unless it comes late: something is being brought to its end."""
        self.pressed, self._deaf_since = False, time.monotonic()

    def _on_signal(self, _number: int, frame: FrameType | None) -> None:
        self.pressed = True
        if self._deaf_since is not None and time.monotonic() - self._deaf_since > PATIENCE:
            if not self._in_waits or _waits(frame):
                self.pressed = False
                raise KeyboardInterrupt
            if self._again is None:
                self._again = threading.Thread(target=self._send_again, args=(threading.get_ident(),), daemon=True)
                self._again.start()
        if self._wake is not None:
            self._wake.put(None)  # SimpleQueue.put is made for signal handlers

    def _send_again(self, thread: int) -> None:
        while not self._over.wait(AGAIN_AFTER):
            signal.pthread_kill(thread, signal.SIGINT)


def _waits(frame: FrameType | None) -> bool:
    """Whether the frame waits, but not for a thread to start: a wait that is cut short there would lose the thread."""
    if frame is None or frame.f_code is not _WAIT:
        return False
    callers = (frame.f_back, frame.f_back and frame.f_back.f_back)
    return all(each is None or each.f_code is not _START for each in callers)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Within, a stop is put off to the end: half a change of the world would be worse than a moment's wait.

    One that comes late is raised in the next wait.
    """
    stop = Stop(in_waits=True)
    with stop.noted():
        stop.put_off()
        yield
    stop.raise_if_pressed()
