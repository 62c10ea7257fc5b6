"""A collective that has failed without an error of MLX's: the world is broken, and the cell fails."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from allranks.messages.events import Unblocked

if TYPE_CHECKING:
    from allranks.rank.agent.agent import Agent

FAILED_HERE = "the world is broken because a collective failed; it is re-formed after the cell"
"""Why no further collective is entered."""


def break_failed(agent: Agent) -> None:
    """Break the world of this rank. From the agent's thread or the main one."""
    newest = agent.ledger.last()
    agent.ledger.refuse = agent.ledger.refuse or FAILED_HERE
    agent.world.break_up(None)
    if agent.cell.running:
        collective = agent.reporter.collective(newest) if newest is not None else None
        agent.lifeline.send(Unblocked(agent.cell.number, collective, broke=True))
        if threading.current_thread() is not agent.main:  # what read the result without mx.eval goes on with it
            agent.cell.interrupt.unblocked = True
            agent.interrupt_main()
