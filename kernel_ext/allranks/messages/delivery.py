"""What must reach a rank though its connection may be lost at that moment: cells, and stops of cells.

ZeroMQ drops without a word what is sent to a connection that has ended. So a cell is kept until its rank says that it
has begun, and sent again whenever the rank has a new connection. The rank begins each cell once, by its number: a later
copy does nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Container
from typing import NamedTuple

from .requests import Interrupt, Request, RunCell

BEGUN_WITHIN = 10.0
"""Seconds for which a program that ends waits until the cells that it sent have begun."""


class _Sent(NamedTuple):
    number: int
    request: RunCell


class Deliveries:
    """`add` and `told` may be called from any thread, the rest from the lifeline's."""

    def __init__(self, send: Callable[[str, Request], None]) -> None:
        """`send` sends a request to the rank of that uuid."""
        self._send = send
        self._lock = threading.Lock()
        self._cells: dict[str, list[_Sent]] = {}
        self._stops: dict[str, Interrupt] = {}

    def add(self, uuid: str, number: int, request: RunCell) -> None:
        """A rank is sent this cell."""
        with self._lock:
            self._cells.setdefault(uuid, []).append(_Sent(number, request))

    def told(self, uuid: str, request: Request) -> None:
        """A rank is sent a request: if it stops a cell, it is kept."""
        if isinstance(request, Interrupt):
            self._stops[uuid] = request

    def back(self, uuid: str) -> None:
        """A rank has a connection, perhaps again; it ignores a stop of a cell that it does not run."""
        with self._lock:
            cells = [*self._cells.get(uuid, ())]
        for sent in cells:
            self._send(uuid, sent.request)
        if (stop := self._stops.pop(uuid, None)) is not None:
            self._send(uuid, stop)

    def begun(self, uuid: str, cell: int) -> None:
        """This rank has begun that cell, and all before it."""
        if uuid not in self._cells:  # as a rule: ranks say it with everything that they report
            return
        with self._lock:
            if left := [each for each in self._cells[uuid] if each.number > cell]:
                self._cells[uuid] = left
            else:
                del self._cells[uuid]

    @property
    def expected(self) -> set[str]:
        """The ranks that have yet to begin a cell."""
        return set(self._cells)

    def wait(self, connected: Container[bytes]) -> None:
        """Until these ranks have begun the cells that they were sent, for no longer than that should take."""
        deadline = time.monotonic() + BEGUN_WITHIN
        while any(uuid.encode() in connected for uuid in self.expected) and time.monotonic() < deadline:
            time.sleep(0.01)
