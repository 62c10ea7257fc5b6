"""Updates on a cell from each rank. The monitor passes them to the thread that tracks the cell."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from allranks.messages.events import Event, Item
from allranks.messages.wire import Buffer

LATER = 0.05
"""Maximum seconds for which an uneventful end of a rank waits."""
SHORT = 1.0
"""Seconds from the beginning of a cell in which ends wait, and its thread looks every `LATER` seconds for them."""


@dataclass(frozen=True)
class Died:
    """The rank's process has ended."""

    cause: str


@dataclass(frozen=True)
class CellUpdate:
    """Something that happened to a cell on one rank."""

    rank: int
    event: Event | Died
    buffers: Sequence[Buffer] = ()
    items: Sequence[Item] = ()
    """The output in an `Output` or `Done`, as `Fold` takes it; empty for other events."""


class CellUpdates:
    """The updates on one cell, in order for each rank, from the monitor to the thread that tracks the cell.

    Waking that thread once for each rank costs more than what a short cell does on a rank. So the uneventful ends of
    its first ranks can wait (`put_later`): until anything else comes for the cell, or for `LATER` seconds.
    """

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[CellUpdate | None] = queue.SimpleQueue()
        self._later: deque[CellUpdate] = deque()
        """Updates that wait."""
        self._ordering = threading.Lock()
        """Held while updates get into the queue, so that those of a rank stay in order; not by `wake`."""
        self._short_until = time.monotonic() + SHORT
        self._has_output = False

    def put(self, update: CellUpdate) -> None:
        """Pass an update on at once, after those that wait."""
        with self._ordering:
            self._has_output = self._has_output or bool(update.items)
            self._flush()
            self._queue.put(update)

    def put_later(self, update: CellUpdate) -> None:
        """Pass on the last update of a rank within `LATER` seconds.

        At once if the cell has run for long, or has output: other ranks' output may wait for the end of this rank.
        """
        with self._ordering:
            self._later.append(update)
            if self._has_output or time.monotonic() > self._short_until - LATER:
                self._flush()

    def wake(self) -> None:
        """Have `get` return None; can be called in a signal handler."""
        self._queue.put(None)

    def get(self, timeout: float) -> CellUpdate | None:
        """Return the next update, or None after `wake`. Raises queue.Empty after `timeout` seconds."""
        until = time.monotonic() + timeout
        while True:
            now = time.monotonic()
            left = max(0.0, until - now)
            try:
                return self._queue.get(timeout=min(left, LATER) if self._later or now < self._short_until else left)
            except queue.Empty:
                if not self._later and time.monotonic() >= until:
                    raise
            with self._ordering:
                self._flush()

    def get_nowait(self) -> CellUpdate | None:
        """Return the next update, also one that waits, or None after `wake`. Raises queue.Empty if there is none."""
        with self._ordering:
            self._flush()
        return self._queue.get_nowait()

    def _flush(self) -> None:
        while self._later:
            self._queue.put(self._later.popleft())
