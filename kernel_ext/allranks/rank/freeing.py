"""Stop what the main thread does: free it from a collective, or interrupt its Python code."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .agent import Agent

SIGNAL_AFTER = 0.4
"""Seconds a freed collective gets to raise before the main thread is sent SIGINT as well."""


class Freeing:
    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._signal_at: tuple[float, int] | None = None
        """When to send SIGINT, and for which cell."""

    def stop(self) -> None:
        """Stop the running cell; an idle rank has nothing to stop."""
        if not self._agent.cell.running:
            return
        if self.free():
            # A thread of the user's own may be what the main thread waits for: then it needs the signal too.
            self._signal_at = (time.monotonic() + SIGNAL_AFTER, self._agent.cell.number)
        else:
            self._interrupt()

    def free(self) -> bool:
        """Make the collective that the main thread waits in raise; False if it waits in none that can."""
        agent = self._agent
        record = agent.ledger.last()
        if not agent.cell.running or record is None or record.seq <= agent.cell.first_seq:
            return False
        freed = {"say": "freed", "cell": agent.cell.number, "collective": agent.reporter.collective(record)}
        if agent.gate.closed:
            agent.lifeline.send(freed)
            agent.gate.open("freed, since not every rank came")
            return True
        if not agent.world.breakable or not agent.meters.main_thread_asleep():
            return False
        agent.ledger.refuse = (
            "the world is broken, since a blocked collective was freed; it is formed anew after the cell"
        )
        agent.lifeline.send({**freed, "broke": True})
        agent.world.break_up()
        return True

    def tick(self, now: float) -> None:
        """Called by the agent again and again."""
        if self._signal_at is not None and now >= self._signal_at[0]:
            number, self._signal_at = self._signal_at[1], None
            if self._agent.cell.running and self._agent.cell.number == number:
                self._interrupt()

    def _interrupt(self) -> None:
        signal.pthread_kill(self._agent.main.ident or 0, signal.SIGINT)
