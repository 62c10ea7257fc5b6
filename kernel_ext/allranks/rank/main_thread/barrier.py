"""``check=strict``: no rank enters a collective before all ranks have announced the same collective."""

from __future__ import annotations

import threading

from allranks.lifeline.rank_end import RankLifeline
from allranks.messages.events import Entering
from allranks.rank.collectives.ledger import Ledger
from allranks.rank.collectives.record import Record

from .running_cell import RunningCell


class Barrier:
    """Makes the main thread wait until the notebook has compared the ranks."""

    def __init__(self, cell: RunningCell, ledger: Ledger, lifeline: RankLifeline) -> None:
        self._cell, self._ledger, self._lifeline = cell, ledger, lifeline
        self._opened = threading.Event()
        self._refusal: str | None = None
        self.closed = False

    def enter(self, record: Record) -> None:
        """Announce a collective, and wait for `open`. Raises RuntimeError if `open` is called with a refusal."""
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
        """Let the main thread go on, or make it raise RuntimeError with `refusal`.

        If there is a `refusal`, the ledger forgets the collective. If the ledger kept it, other ranks could later be
        made to enter it as a collective that they missed, and this rank would not take part.
        """
        self._refusal = refusal
        if refusal is not None and self.closed:
            self._ledger.forget_last()
        self._opened.set()
