"""``check=strict``: no rank enters a collective before all have said that they will enter the same one."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from .record import Record

if TYPE_CHECKING:
    from allranks.rank.agent.agent import Agent


class Barrier:
    """Where the main thread waits for the notebook to compare the ranks."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._opened = threading.Event()
        self._refusal: str | None = None
        self.closed = False

    def enter(self, record: Record) -> None:
        """Ask and wait; raises RuntimeError where the ranks disagree or this rank is unblocked."""
        __tracebackhide__ = True
        self._opened.clear()
        self._refusal, self.closed = None, True
        self._agent.ask_to_enter(record)
        try:
            self._opened.wait()
        finally:
            self.closed = False
        if self._refusal is not None:
            raise RuntimeError(self._refusal)

    def open(self, refusal: str | None) -> None:
        """Let the main thread go on, or have it raise.

        Then its collective does not count: where missing ranks enter what others wait in, they would enter it alone.
        """
        self._refusal = refusal
        if refusal is not None and self.closed:
            self._agent.ledger.forget_last()
        self._opened.set()
