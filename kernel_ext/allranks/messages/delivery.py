"""Cells on their way to the ranks: sent again until each rank has begun its cell.

A cell can get lost without a word: ipykernel drops what is queued behind a plain ipyparallel cell that raised (7.4),
and a stray connection to the controller's ports can swallow a message (ipyparallel 9.2: in 6 of 16 clusters). A rank
that has not told within a second that it has begun is asked in its main thread, so that the answer waits for whatever
runs there. An idle rank without the cell gets it again. It begins each cell once, by its number: later copies do
nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from .cell_options import CellRequest
from .questions import Reply
from .requests import Begun, HasBegun, Interrupt, Request, Undelivered

ASK_AFTER = (1.0, 1.0, 2.0, 4.0, 8.0)
"""Seconds from each sending of a cell until its rank is asked whether it has begun it."""
ASK_EVERY = 1.0
"""Seconds until a rank that was busy, or unreachable, is asked again."""
BEGUN_WITHIN = 10.0
"""Seconds for which a program that ends waits until the cells that it sent have begun."""
NOT_DELIVERED = (
    "the cell did not arrive, although it was sent {} times in {:g} s: ipyparallel's controller did not deliver it. It "
    "did not run on this rank. Run it again; if that fails too, restart with %distributed down and %distributed up."
)


class Line(Protocol):
    """The way to the ranks (`messages.lifeline.Lifeline`)."""

    def ask(self, uuid: str, question: Begun) -> Future[Reply[HasBegun]]: ...
    def tell(self, uuid: str, request: Undelivered | Interrupt) -> None: ...


@dataclass
class _Underway:
    request: CellRequest
    send: Callable[[], None]
    ask_at: float
    sent: int = 1
    asked: Future[Reply[HasBegun]] | None = None


class Deliveries:
    """`add` may be called from any thread, the rest from the lifeline's."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._underway: dict[str, _Underway] = {}
        self._stops: dict[str, Interrupt] = {}

    def add(self, uuid: str, request: CellRequest, send: Callable[[], None], now: float) -> None:
        """A cell was sent to this rank; `send` does it again."""
        self._underway[uuid] = _Underway(request, send, now + ASK_AFTER[0])

    def told(self, uuid: str, request: Request) -> None:
        """A rank is sent a request; a stop of its cell may get lost with the connection, and is kept."""
        if isinstance(request, Interrupt):
            self._stops[uuid] = request

    def back(self, uuid: str) -> None:
        """A rank has a connection, perhaps again; it ignores a stop of a cell that it does not run."""
        if (stop := self._stops.pop(uuid, None)) is not None:
            self._line.tell(uuid, stop)

    def begun(self, uuid: str, cell: int) -> None:
        """This rank has begun that cell, and all before it."""
        underway = self._underway.get(uuid)
        if underway is not None and cell >= underway.request.number:
            del self._underway[uuid]

    @property
    def expected(self) -> set[str]:
        """The ranks that have yet to begin a cell."""
        return set(self._underway)

    def wait(self, connected: Container[bytes]) -> None:
        """Until these ranks have begun the cells that they were sent, for no longer than that should take."""
        deadline = time.monotonic() + BEGUN_WITHIN
        while any(uuid.encode() in connected for uuid in self.expected) and time.monotonic() < deadline:
            time.sleep(0.01)

    def look(self, uuid: str, now: float) -> None:
        """Ask a rank, take its answer, send it the cell again, or have the cell fail there: whatever is due."""
        underway = self._underway.get(uuid)
        if underway is None:
            return
        if underway.asked is None:
            if now >= underway.ask_at:
                underway.asked = self._line.ask(uuid, Begun(underway.request.sender))
            return
        if not underway.asked.done():
            return
        asked, underway.asked = underway.asked, None
        underway.ask_at = now + ASK_EVERY
        if asked.exception() is not None:
            return
        answer = asked.result().answer
        if answer.busy:
            return
        self.begun(uuid, answer.cell)
        if uuid not in self._underway:
            return
        if underway.sent == len(ASK_AFTER):
            del self._underway[uuid]
            because = NOT_DELIVERED.format(underway.sent, sum(ASK_AFTER))
            self._line.tell(uuid, Undelivered(underway.request, because))
            return
        underway.ask_at = now + ASK_AFTER[underway.sent]
        underway.sent += 1
        underway.send()
