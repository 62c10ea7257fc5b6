"""SIGINT in a rank: it stops the user's code, reports an aborted collective, or takes effect once the code begins."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from allranks.rank.collectives.aborted import Aborted, CollectiveAborted


class MainThreadInterrupt:
    """Decides what SIGINT does. The main thread handles the signals; other threads call `stop` and set `unblocked`."""

    def __init__(self, aborted: Aborted) -> None:
        self._aborted = aborted
        self.number = 0
        """Number of the cell that began last."""
        self.unblocked = False
        """Whether the next signal reports that the collective in which the main thread waited was aborted."""
        self._allowed = False
        """Whether SIGINT raises an error: in the user's code, but not in the engine around it."""
        self._stopped: int | None = None
        """Number of the cell that is to be stopped as soon as its code begins."""
        self._handler: Callable[[int, FrameType | None], None] | None = None

    def listen(self, handler: Callable[[int, FrameType | None], None]) -> None:
        """Let SIGINT call `handler` from now on; each cell sets the handler again. Called in the main thread."""
        self._handler = handler
        self._listen()

    def _listen(self) -> None:
        if self._handler is not None:
            signal.signal(signal.SIGINT, self._handler)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])

    def begin_cell(self, number: int) -> None:
        """Begin a cell, in the main thread; replaces a SIGINT handler that an earlier cell has set."""
        self.number, self.unblocked = number, False
        self._listen()

    def stop(self, number: int) -> None:
        """Stop cell `number` as soon as its code begins. If the code runs already, only SIGINT stops it."""
        self._stopped = number

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """Let SIGINT raise an error within the context; raises KeyboardInterrupt at once if `stop` came before it."""
        try:
            self._allowed = True
            if self._stopped == self.number:
                self._stopped = None
                raise KeyboardInterrupt
            yield
        finally:
            self._allowed = False

    def on_signal(self, running: bool) -> None:
        """Handle SIGINT, in the main thread; `running` says whether a cell runs, including the engine's part of it."""
        unblocked, self.unblocked = self.unblocked, False
        if self._allowed:
            self._stopped = None
            if unblocked:
                self._aborted.look()  # so that a failure is raised here, and not a second time
            owed, self._aborted.owed = self._aborted.owed, None
            if unblocked and owed is None:  # mx.eval has raised it on returning
                return
            if unblocked:
                raise CollectiveAborted(owed)
            raise KeyboardInterrupt
        if running:
            self._stopped = self.number
