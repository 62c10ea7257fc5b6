"""SIGINT in a rank: it stops the user's code, tells it that a collective was aborted, or waits for the cell's start."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from allranks.rank.collectives.aborted import Aborted, CollectiveAborted


class Interrupt:
    """What SIGINT does now. The main thread enters `allowed` and takes signals; the agent's thread sets the rest."""

    def __init__(self, aborted: Aborted) -> None:
        self._aborted = aborted
        self.number = 0
        """The cell that began last."""
        self.unblocked = False
        """The next signal comes with the collective that the main thread waited in: it did not take place."""
        self._allowed = False
        """Whether SIGINT raises KeyboardInterrupt: in the user's code, but not in the engine around it."""
        self._stopped: int | None = None
        """The cell that was to be stopped before its code ran."""
        self._handler: Callable[[int, FrameType | None], None] | None = None

    def listen(self, handler: Callable[[int, FrameType | None], None]) -> None:
        """Have SIGINT call `handler` in the main thread, which calls this, now and whenever a cell begins."""
        self._handler = handler
        self._listen()

    def _listen(self) -> None:
        if self._handler is not None:
            signal.signal(signal.SIGINT, self._handler)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])

    def begin_cell(self, number: int) -> None:
        """In the main thread. An earlier cell that ignores SIGINT, or has a handler of its own, has it no more."""
        self.number, self.unblocked = number, False
        self._listen()

    def stop(self, number: int) -> None:
        """Cell `number`, whose code does not run yet, is to end as soon as it begins."""
        self._stopped = number

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """Within, SIGINT raises KeyboardInterrupt."""
        try:
            self._allowed = True
            if self._stopped == self.number:
                self._stopped = None
                raise KeyboardInterrupt
            yield
        finally:
            self._allowed = False

    def on_signal(self, running: bool) -> None:
        """SIGINT, in the main thread; whether a cell is `running`, the engine's part of it included."""
        unblocked, self.unblocked = self.unblocked, False
        if self._allowed:
            self._stopped = None
            if unblocked:
                self._aborted.look()  # so that what failed is raised here, and not once more
            owed, self._aborted.owed = self._aborted.owed, None
            if unblocked and owed is None:  # mx.eval has raised it where it returned
                return
            if unblocked:
                raise CollectiveAborted(owed)
            raise KeyboardInterrupt
        if running:
            self._stopped = self.number
