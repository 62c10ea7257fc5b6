"""``check=strict``: no rank enters a collective before all have said that they will enter the same one."""

from __future__ import annotations

import threading

from allranks.messages.events import Entering
from allranks.messages.rank_lifeline import Lifeline
from allranks.rank.collectives.ledger import Ledger
from allranks.rank.collectives.record import Record

from .running_cell import RunningCell


class Barrier:
    """Where the main thread waits for the notebook to compare the ranks."""

    def __init__(self, cell: RunningCell, ledger: Ledger, lifeline: Lifeline) -> None:
        self._cell, self._ledger, self._lifeline = cell, ledger, lifeline
        self._opened = threading.Event()
        self._refusal: str | None = None
        self.closed = False

    def enter(self, record: Record) -> None:
        """Ask and wait; raises RuntimeError where the ranks disagree or this rank is unblocked."""
        __tracebackhide__ = True
        self._opened.clear()
        self._refusal, self.closed = None, True
        self._lifeline.send(Entering(self._cell.number, self._cell.collective(record)))
        try:
            self._opened.wait()
        finally:
            self.closed = False
        if self._refusal is not None:
            raise RuntimeError(self._refusal)

    def open(self, refusal: str | None) -> None:
        """Let the main thread go on, or have it raise.

        If it raises, its collective does not count: where missing ranks enter what others wait in, they would enter it
        alone.
        """
        self._refusal = refusal
        if refusal is not None and self.closed:
            self._ledger.forget_last()
        self._opened.set()
