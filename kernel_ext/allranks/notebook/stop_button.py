"""Handles Ctrl-C and the stop button while a cell runs: notes them, and acts only where that interrupts nothing midway.

Python can raise KeyboardInterrupt between any two instructions: while a rank's message is handled, which would then be
lost, or while the world is re-formed.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from allranks.head.state.cell_updates import CellUpdates

PATIENCE = 5.0
"""Seconds after which a new stop is no longer put off."""
AGAIN_AFTER = 0.1
"""Seconds after which a stop that arrived between two waits is tried again."""
_WAIT, _START = threading.Condition.wait.__code__, threading.Thread.start.__code__


class Stop:
    """Notes whether the user has pressed stop; `raise_if_pressed` then raises KeyboardInterrupt.

    An instance with `around` encloses several cells: it notes presses between the cells, and each cell's own instance
    notes presses during the cell.
    """

    def __init__(self, *, around: bool = False, in_waits: bool = False) -> None:
        self._around, self._in_waits = around, in_waits
        """`_in_waits`: whether a late stop is raised only while the main thread waits, so nothing is left half done."""
        self._over = threading.Event()
        self._again: threading.Thread | None = None
        """Sends the signal repeatedly until it arrives in a wait, or until `noted` ends."""
        self.pressed = False
        self._deaf_since: float | None = None
        self._wake: CellUpdates | None = None

    def press(self, wake: CellUpdates) -> None:
        """Act as if the user had pressed stop, and wake the thread that follows the cell."""
        self.pressed = True
        wake.wake()

    def raise_if_pressed(self) -> None:
        """Raise KeyboardInterrupt if stop was pressed, and clear the press."""
        if self.pressed:
            self.pressed = False
            raise KeyboardInterrupt

    @contextmanager
    def noted(self, wake: CellUpdates | None = None) -> Iterator[None]:
        """Within the context, only note SIGINT, and wake the thread that follows the cell.

        No effect outside the main thread, if another handler is installed, or if another `Stop` without `around` notes
        the signal already.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.getsignal(signal.SIGINT)
        outer = getattr(before, "__self__", None)
        if before is not signal.default_int_handler and not (isinstance(outer, Stop) and outer._around):
            yield  # another handler is installed, or another `Stop` notes the signal already
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
        """Drop an earlier press, since work must now be completed; presses after `PATIENCE` seconds interrupt it."""
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
            self._wake.wake()

    def _send_again(self, thread: int) -> None:
        while not self._over.wait(AGAIN_AFTER):
            signal.pthread_kill(thread, signal.SIGINT)


def _waits(frame: FrameType | None) -> bool:
    """Whether the frame waits, but not for a thread to start, since an interrupt there would lose the thread."""
    if frame is None or frame.f_code is not _WAIT:
        return False
    callers = (frame.f_back, frame.f_back and frame.f_back.f_back)
    return all(each is None or each.f_code is not _START for each in callers)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Within the context, put off a stop to the end, since a half-changed world is worse than a short wait.

    A stop pressed after more than `PATIENCE` seconds is raised in the next wait.
    """
    stop = Stop(in_waits=True)
    with stop.noted():
        stop.put_off()
        yield
    stop.raise_if_pressed()
