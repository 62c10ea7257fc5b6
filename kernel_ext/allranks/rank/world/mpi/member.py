"""A rank as a member of MPI: it joins one world after the other, and learns of calls that failed."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from allranks.messages.requests import Form
from allranks.rank.collectives.aborted import FAILED
from allranks.rank.world.failure import break_failed
from allranks.rank.world.images import NotInPlace
from allranks.rank.world.rendezvous import time_limit

from .in_place import MpiInPlace

if TYPE_CHECKING:
    from allranks.rank.agent.agent import Agent


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
        self._failing = threading.RLock()  # a signal may come in between, in the main thread

    @property
    def is_in_place(self) -> bool:
        """Whether the other ranks go on when this one ends."""
        return self._in_place is not None and not self.not_in_place

    def give_up(self, because: str) -> None:
        """Other ranks cannot abort this world, so this one does not either."""
        self.not_in_place = self.not_in_place or because

    def communicator(self) -> Any:
        """See `communicator`."""
        if self._in_place is not None:
            return self._in_place.communicator
        if not self.not_in_place:  # it never entered
            raise RuntimeError(f"there is no communicator of MPI: this world runs on {self._agent.world.backend}")
        from mpi4py import MPI

        return MPI.COMM_WORLD

    def enter(self, mx: Any, request: Form, is_stopped: Callable[[], bool]) -> MpiInPlace | None:
        """Have MLX join the communicator of this world; None where MPI's collectives cannot be aborted here.

        Raises RuntimeError in MPI's words, or once it `is_stopped`, and TimeoutError.
        """
        late = f"the ranks did not form the next world of MPI within {request.timeout:g} s"
        with time_limit(request.timeout, late):
            if self._in_place is not None:
                self._in_place.next_world(request.rank, request.spawn, is_stopped)
            else:
                self._begin(mx, request, is_stopped)
        if self._in_place is None or self.not_in_place:
            return None
        self._in_place.take_failed()
        return self._in_place

    def _begin(self, mx: Any, request: Form, is_stopped: Callable[[], bool]) -> None:
        if (folder := self._agent.config.shared_memory) is not None:
            os.environ.setdefault("OMPI_MCA_btl_sm_backing_directory", folder)
        try:
            self._in_place = MpiInPlace(mx, Path(self._agent.config.directory))
        except NotInPlace as error:
            self.not_in_place = str(error)
            # Else a collective with a dead rank would return, and MLX take what its memory holds for the result.
            os.environ["OMPI_MCA_mpi_ft_enable"] = "0"  # noqa: SIM112, Open MPI's name
            return
        self._in_place.join_parents(request.rank, is_stopped)
        self._agent.ledger.aborted.on_failure = self.failed
        if not self._in_place.is_tolerant:
            self.not_in_place = "mpirun runs without fault tolerance (--with-ft ulfm)"

    def failed(self) -> None:
        """MPI returned an error, and MLX an invalid result. From the agent's thread or the main one."""
        assert self._in_place is not None
        agent, world = self._agent, self._agent.world
        with self._failing:
            if not FAILED[0]:
                return  # the other thread has noted it
            of_this_world, newest = FAILED[0] & 2, agent.ledger.last()
            if of_this_world and newest is not None:
                agent.ledger.aborted.note(newest, agent.ledger.in_flight(), None)
            else:
                agent.ledger.aborted.note_earlier()
            # Only now: who sees that nothing has failed looks no further.
            of_this_world |= self._in_place.take_failed() & 2
        if not of_this_world or not world.breakable or world.broken_up:
            return
        break_failed(agent)
