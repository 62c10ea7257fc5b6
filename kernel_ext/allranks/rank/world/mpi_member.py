"""A rank as a member of MPI: it joins one world after the other, and learns of calls that failed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from allranks.messages.events import Unblocked
from allranks.messages.requests import Form
from allranks.rank.collectives.aborted import FAILED

from .mpi_functions import NotInPlace
from .mpi_in_place import MpiInPlace
from .rendezvous import time_limit

if TYPE_CHECKING:
    from allranks.rank.agent.agent import Agent


FAILED_HERE = "the world is broken because a collective failed; it is re-formed after the cell"
"""Why no further collective is entered."""


def communicator() -> Any:
    """The communicator of the current world, as an mpi4py object; on the ranks of an ``mpi`` cluster.

    After an abort, `heal` or `resize` it is another one, and calls on the one before raise. Raises RuntimeError
    elsewhere.
    """
    engine = sys.modules.get("allranks.rank.process.engine")
    if engine is None:
        raise RuntimeError("allranks.communicator() is for code that runs on the ranks: call it in a cell")
    return engine.RankEngine.instance().agent.world.mpi.communicator()


class MpiMember:
    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._in_place: MpiInPlace | None = None
        """This process's place in MPI, once it has one that can be aborted."""
        self.not_in_place = ""
        """Why collectives of MPI cannot be aborted here, as a clause."""

    @property
    def is_in_place(self) -> bool:
        """Whether the other ranks go on when this one ends."""
        return self._in_place is not None and self._in_place.is_tolerant

    def communicator(self) -> Any:
        """See `communicator`."""
        backend = self._agent.world.backend
        if backend != "mpi":
            raise RuntimeError(f"there is no communicator of MPI: this world runs on {backend}")
        if self._in_place is not None:
            return self._in_place.communicator
        from mpi4py import MPI

        return MPI.COMM_WORLD

    def enter(self, mx: Any, request: Form) -> MpiInPlace | None:
        """Have MLX join the communicator of this world; None where MPI's collectives cannot be aborted here."""
        late = f"the ranks did not form the next world of MPI within {request.timeout:g} s"
        with time_limit(request.timeout, late):
            try:
                if self._in_place is not None:
                    self._in_place.next_world(request.rank, request.spawn)
                elif not self.not_in_place:
                    self._in_place = MpiInPlace(mx, Path(self._agent.config.directory))
                    self._in_place.join_parents(request.rank)
                    self._agent.ledger.aborted.on_failure = self.failed
            except NotInPlace as error:
                self.not_in_place = str(error)
        if self._in_place is None:
            return None
        if not self._in_place.is_tolerant:
            self.not_in_place = "mpirun runs without fault tolerance (--with-ft ulfm)"
            return None
        FAILED[0] = 0
        return self._in_place

    def failed(self) -> None:
        """MPI returned an error, and MLX an invalid result. From the agent's thread or the main one."""
        ledger, of_this_world = self._agent.ledger, FAILED[0] & 2
        FAILED[0] = 0
        if (newest := ledger.last()) is not None:
            ledger.aborted.note(newest, ledger.in_flight(), None)
        if of_this_world and not self._agent.world.broken_up:
            if self._agent.cell.running:
                collective = self._agent.reporter.collective(newest) if newest is not None else None
                self._agent.lifeline.send(Unblocked(self._agent.cell.number, collective, broke=True))
            ledger.refuse = ledger.refuse or FAILED_HERE
            self._agent.world.break_up(None)
