"""A rank as a member of MPI: it joins one world after the other, and learns of calls that failed."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from allranks.messages.host_messages import RankConfig
from allranks.messages.requests import Form
from allranks.rank.collectives.aborted import FAILED
from allranks.rank.collectives.ledger import Ledger
from allranks.rank.world.images import NotInPlace
from allranks.rank.world.rendezvous import time_limit

from .in_place import MpiInPlace


class MpiMember:
    def __init__(self, config: RankConfig, ledger: Ledger, break_failed: Callable[[], None]) -> None:
        """`break_failed` breaks the world, since a collective of it has failed."""
        self._config, self._ledger, self._break_failed = config, ledger, break_failed
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

    def communicator(self, backend: str) -> Any:
        """See `membership.communicator`; the world runs on `backend`."""
        if self._in_place is not None:
            return self._in_place.communicator
        if not self.not_in_place:  # it never entered
            raise RuntimeError(f"there is no communicator of MPI: this world runs on {backend}")
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
        if (folder := self._config.shared_memory) is not None:
            os.environ.setdefault("OMPI_MCA_btl_sm_backing_directory", folder)
        try:
            self._in_place = MpiInPlace(mx, Path(self._config.directory))
        except NotInPlace as error:
            self.not_in_place = str(error)
            # Else a collective with a dead rank would return, and MLX take what its memory holds for the result.
            os.environ["OMPI_MCA_mpi_ft_enable"] = "0"  # noqa: SIM112, Open MPI's name
            return
        self._in_place.join_parents(request.rank, is_stopped)
        self._ledger.aborted.on_failure = self.failed
        if not self._in_place.is_tolerant:
            self.not_in_place = "mpirun runs without fault tolerance (--with-ft ulfm)"

    def failed(self) -> None:
        """MPI returned an error, and MLX an invalid result. From the agent's thread or the main one."""
        assert self._in_place is not None
        ledger = self._ledger
        with self._failing:
            if not FAILED[0]:
                return  # the other thread has noted it
            of_this_world, newest = FAILED[0] & 2, ledger.last()
            if of_this_world and newest is not None:
                ledger.aborted.note(newest, ledger.in_flight(), None)
            else:
                ledger.aborted.note_earlier()
            # Only now: who sees that nothing has failed looks no further.
            of_this_world |= self._in_place.take_failed() & 2
        if of_this_world:
            self._break_failed()
