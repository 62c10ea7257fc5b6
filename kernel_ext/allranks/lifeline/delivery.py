"""Delivery of cells, and of requests that stop cells, even if the connection is lost at that moment.

ZeroMQ silently drops messages to a connection that has ended. So a cell is kept until its rank reports that the cell
has begun, and is sent again whenever the rank has a new connection. The rank begins each cell number only once and
ignores later copies.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Container, Sequence
from typing import NamedTuple

from allranks.messages.requests import Interrupt, Request, RunCell

BEGUN_WITHIN = 10.0
"""Seconds that an exiting program waits for the cells that it sent to begin."""


class Before(NamedTuple):
    """What a rank must handle before a cell."""

    comms: int = 0
    """Number of messages from the page's widgets that were sent to the rank."""
    after: Sequence[str] = ()
    """Ids of the requests that ipyparallel's client has sent to the rank's engine."""


class _Sent(NamedTuple):
    number: int
    request: RunCell


class Deliveries:
    """Cells not yet begun. `back` and `begun` are called in the lifeline's thread, the other methods in any thread."""

    def __init__(self, send: Callable[[str, Request], None]) -> None:
        """`send` sends a request to the rank with the given uuid."""
        self._send = send
        self._lock = threading.Lock()
        self._cells: dict[str, list[_Sent]] = {}
        self._stops: dict[str, Interrupt] = {}

    def add(self, uuid: str, number: int, request: RunCell) -> None:
        """Keep a cell that is about to be sent to a rank."""
        with self._lock:
            self._cells.setdefault(uuid, []).append(_Sent(number, request))

    def told(self, uuid: str, request: Request) -> None:
        """Keep a request that is about to be sent to a rank, if it is an `Interrupt`."""
        if isinstance(request, Interrupt):
            self._stops[uuid] = request

    def back(self, uuid: str) -> None:
        """Send kept cells and the last `Interrupt` to a rank that has connected.

        The rank ignores an `Interrupt` of a cell that it does not run.
        """
        with self._lock:
            cells = [*self._cells.get(uuid, ())]
        for sent in cells:
            self._send(uuid, sent.request)
        if (stop := self._stops.pop(uuid, None)) is not None:
            self._send(uuid, stop)

    def begun(self, uuid: str, cell: int) -> None:
        """Drop the cells up to `cell`, which the rank has begun."""
        if uuid not in self._cells:  # the usual case: most reports of ranks contain the cell number
            return
        with self._lock:
            if left := [each for each in self._cells.get(uuid, ()) if each.number > cell]:
                self._cells[uuid] = left
            else:
                self._cells.pop(uuid, None)

    def forget(self, uuid: str) -> None:
        """Drop everything kept for a rank that was replaced."""
        with self._lock:
            self._cells.pop(uuid, None)
        self._stops.pop(uuid, None)

    @property
    def expected(self) -> set[str]:
        """The uuids of the ranks that have not yet begun all cells sent to them."""
        return set(self._cells)

    def wait(self, connected: Container[bytes]) -> None:
        """Wait until the `connected` ranks have begun their cells, for at most `BEGUN_WITHIN` seconds."""
        deadline = time.monotonic() + BEGUN_WITHIN
        while any(uuid.encode() in connected for uuid in self.expected) and time.monotonic() < deadline:
            time.sleep(0.01)
