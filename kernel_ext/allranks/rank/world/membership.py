"""Joining an MLX world from inside a rank, aborting its collectives, and joining the next world."""

from __future__ import annotations

import ctypes
import gc
import os
import shlex
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

from allranks.lifeline.rank_end import RankLifeline
from allranks.machine.private_files import write_private
from allranks.messages.events import Unblocked
from allranks.messages.host_messages import RankConfig
from allranks.messages.requests import Form, Joined
from allranks.messages.value_types import Namespace
from allranks.rank.arrays.pending_arrays import learn_collectives
from allranks.rank.collectives import poison, wrap_collectives
from allranks.rank.collectives.aborted import PEER_LOST
from allranks.rank.collectives.ledger import Ledger
from allranks.rank.collectives.wrap_collectives import OPERATIONS
from allranks.rank.functions import transforms
from allranks.rank.functions.replaced import leave_out_our_frames, replaced
from allranks.rank.main_thread.background_tasks import UserThreads
from allranks.rank.main_thread.main_thread_calls import MainThread
from allranks.rank.main_thread.running_cell import RunningCell
from allranks.rank.metrics.meters import Meters
from allranks.rank.metrics.thread_times import threads

from . import rebind, recompile
from .abortable_ring import AbortableRing
from .given_names import GivenNames
from .jaccl.abortable_jaccl import AbortableJaccl
from .jaccl.jaccl_membership import JacclMember
from .left_pending import LeftBehind, Reference, asked, compute
from .mpi.abortable_mpi import AbortableMpi
from .mpi.mpi_membership import MpiMember
from .peer_datagrams import Peers
from .rendezvous import Rendezvous, in_turn, time_limit
from .reserved_descriptors import Reserve
from .ring_sockets import close_refused, own_sockets

if TYPE_CHECKING:
    from mlx.core import Stream
    from mlx.core.distributed import Group
    from mpi4py.MPI import Comm

CLEAR_BACKENDS = "_ZN3mlx4core11distributed14clear_backendsEv"
"""``mlx::core::distributed::clear_backends()``, which MLX's Python API lacks: MLX calls it in an atexit hook."""
SETTLE_WITHIN = 2.0
"""Seconds that collectives of the previous world get to return."""
FAILED_HERE = "the world is broken because a collective failed; it is re-formed after the cell"
"""Message of the error that further collectives of the cell raise."""


def communicator() -> Comm:
    """The communicator of the current world, as an mpi4py object. Call this on the ranks of an ``mpi`` cluster.

    After an abort, `heal` or `resize`, there is a new communicator, and calls on the previous one raise. Raises
    RuntimeError in a process that is not a rank of an ``mpi`` cluster.
    """
    if (world := World.current) is None:
        raise RuntimeError("allranks.communicator() is for code that runs on the ranks: call it in a cell")
    return world.mpi.communicator(world.backend)


class World:
    """The rank's membership in a world: `form` joins the first world, and each later one."""

    current: ClassVar[World | None] = None
    """The only instance in this process; None before it is made, and in processes that are not ranks."""

    def __init__(
        self,
        config: RankConfig,
        user_ns: Namespace,
        names: GivenNames,
        ledger: Ledger,
        meters: Meters,
        reserve: Reserve,
        main: MainThread,
        cell: RunningCell,
        threads: UserThreads,
        blocked: Callable[[], bool],
        peers: Peers,
        lifeline: RankLifeline,
    ) -> None:
        """`blocked` returns whether the main thread waits on a lock."""
        self._config, self._user_ns, self._names = config, user_ns, names
        self._ledger, self._meters, self._reserve = ledger, meters, reserve
        self._main, self._cell, self._threads, self._blocked = main, cell, threads, blocked
        self._peers, self._lifeline = peers, lifeline
        self.group: Any = None
        self._in_place: AbortableRing | AbortableMpi | AbortableJaccl | None = None
        """Aborts the collectives of this world; None where they cannot be aborted."""
        self.mpi = MpiMember(config, ledger, self._break_failed)
        self._jaccl = JacclMember(ledger, blocked, self.release)
        self.environment: set[str] = set()
        """Names of the environment variables that requests to form a world have set or unset here."""
        self.backend = ""
        self.verbs = False
        """Whether the ranks of this world communicate by verbs (RDMA)."""
        self.listener = Rendezvous(lifeline)
        self._init: Any = None
        self._breaking = threading.RLock()  # reentrant: a signal handler may need it while the main thread has it
        self._left_behind = LeftBehind()
        self._places: list[rebind.Put] = []
        """Functions that put the next group wherever the last one was held; kept until the next world is joined."""
        self.forming = False
        """Whether the main thread is leaving a world or joining one."""
        self._asked = self._begun = self._stopped = 0
        """Numbers, from 1, of the last request to form a world that arrived, was begun, or was stopped; 0 for none."""
        self._ring_before: tuple[AbortableRing, Group | None] | None = None
        """The previous ring; also its group if the user has threads, whose collectives may still be on that ring."""
        self._releasing = threading.Lock()
        World.current = self

    def asked_to_form(self) -> None:
        """Note that a request to form a world has arrived; `form` follows. Called in the agent's thread."""
        self._asked += 1

    def stop_forming(self) -> None:
        """Give up forming the MPI worlds requested so far: a rank has failed or ended. Other backends ignore this.

        Called in the agent's thread.
        """
        self._stopped = self._asked

    @property
    def is_to_be_left(self) -> bool:
        """Whether a request to form the next world waits for the main thread, which no task may block meanwhile."""
        return self._begun < self._asked

    def _is_stopped(self) -> bool:
        return self._begun <= self._stopped

    def form(self, request: Form) -> Joined:
        """Leave the previous world, if any, and join the one that the notebook planned. Called in the main thread.

        Raises TimeoutError if other ranks do not join in time, and RuntimeError with the reason if MLX or MPI fails, or
        after `stop_forming`.
        """
        self._begun += 1
        self.forming = True
        try:
            with self._reserve.lent():
                return self._form(request)
        finally:
            self.forming = False

    def _form(self, request: Form) -> Joined:
        pending = self._leave()
        self._wire(request)
        try:
            import mlx.core as mx  # only now: CUDA reads which devices are visible at its first use
        except Exception as error:
            asks = f"{shlex.quote(sys.executable)} -c 'import mlx.core'"
            raise RuntimeError(f"MLX cannot be imported there ({error}). To see why, there: {asks}") from error

        self._meters.cuda = mx.cuda.is_available()
        recompile.install(mx)
        transforms.install(mx)
        self._hand_out_one_group(mx)
        wrap_collectives.install(self._ledger, mx, self._user_ns)
        self.verbs = request.verbs and request.size > 1
        if self.verbs:
            self._jaccl.prepare(mx)
        by_mpi = request.revocable and request.size > 1
        self._in_place = self.mpi.enter(mx, request, self._is_stopped) if by_mpi else None
        late = f"a neighbour of rank {request.rank} did not join within {request.timeout:g} s"
        known, known_threads = set(own_sockets()), threads()
        with time_limit(request.timeout, late):
            self.listener.wait(request)
            with in_turn() if request.in_turn else nullcontext():
                group = self._init() if request.size == 1 else self._init(strict=True, backend=request.backend)
        if self.verbs:
            self._in_place = self._jaccl.joined(self.streams())
            if self._in_place is not None:
                self._ledger.aborted.watch = self._watch
        if request.ports:
            close_refused(set(own_sockets()) - known)
            ring = frozenset(own_sockets()) - known
            self._reserve.keep_for(len(ring))
            self._join_wire(ring, request.ports, request.rank, threads() - known_threads)
            all_ports = frozenset(chain.from_iterable(request.ports))
            self._in_place = AbortableRing(self._config.holder, self._meters.wire, ring, all_ports)
        self._meters.tells_of_host = request.describes_host
        self._meters.address = request.address
        joined, meant = (group.rank(), group.size()), (request.rank, request.size)
        self.group, self.backend = group, request.backend
        recompile.forget_traces()
        if joined != meant:
            raise RuntimeError(f"this process became rank {joined[0]} of {joined[1]}, not {meant[0]} of {meant[1]}")
        for put in self._places:
            put(group)
        self._places.clear()
        if self._ring_before is not None:
            self._ring_before[0].let_go()  # all ranks have left that ring
        learn_collectives(mx, joined[1])
        self._ledger.enter_world(request.entered, joined[1], group)
        self._ledger.limits.enter_world(request.limits, OPERATIONS, *joined)
        self._names.hand_out()
        why_not = self._jaccl.not_in_place if self.verbs else self.mpi.not_in_place
        hears_at = self._peers.listen(request.address or "127.0.0.1") if self.breakable else None
        return Joined(*joined, self.breakable, why_not, pending, hears_at)

    def _join_wire(self, sockets: Iterable[int], ports: Sequence[Sequence[int]], rank: int, ring: set[int]) -> None:
        left, right = (rank - 1) % len(ports), (rank + 1) % len(ports)
        self._meters.wire.join(sockets, ports[rank], {left: ports[left], right: ports[right]}, ring)

    def _hand_out_one_group(self, mx: ModuleType) -> None:
        """Make ``mx.distributed.init`` return this world's group, always as the same object.

        MLX makes a new Python object for the same group at each call (0.32.4). When the world is left, only the holders
        of a known object can be found.
        """
        if self._init is not None:
            return
        init = self._init = mx.distributed.init

        def init_once(*args: object, **kwargs: object) -> object:
            try:
                self._ledger.raise_if_left()
                own = self.group is not None and _backend(*args, **kwargs) in ("any", self.backend)
                try:
                    group = init(*args, **kwargs)
                except RuntimeError:  # strict, but a world of one rank has no backend
                    if not own or self.group.size() > 1:
                        raise
                return self.group if own else group
            except BaseException as error:
                leave_out_our_frames(error)
                raise

        mx.distributed.init = replaced(init, init_once)

    def _leave(self) -> list[str]:
        """Leave the current world, if any; returns the names of variables that waited for it and are now invalid."""
        if self.group is None:
            return []
        self._peers.meet(())
        self._meters.wire.leave()
        # Tracebacks keep the frames of interrupted code, and the frames keep arrays that wait for the old group.
        for name in ("last_value", "last_traceback", "last_exc"):
            if hasattr(sys, name):
                setattr(sys, name, None)
        ledger, threads = self._ledger, self._threads.exist()
        was_refused = ledger.refuse is not None
        ledger.leave_world()
        if ledger.invalid.asked and not was_refused and self._settle() and self.is_whole():
            ledger.invalid.asked.clear()  # all ranks had entered these collectives, and they have completed
        arrays, sockets, pending = list[Reference](), list[int](), list[str]()
        if (left := self._in_place) is not None:
            if ledger.seq:
                pending = ledger.invalid.give_up(self._names.user_variables())
                arrays = self._left_behind.find(self._user_ns)
            in_flight = ledger.in_flight() if ledger.invalid.asked or threads else []
            self.break_up(left.pattern([*((each.op, each.dtype) for each in in_flight), *asked(arrays)]))
            if self._settle() and ledger.aborted.sentence != PEER_LOST:  # neighbours may have left already
                compute(arrays)
        if ledger.invalid.asked:
            ledger.invalid.break_off([])
        self._end_ring()
        lingers = threads and isinstance(left, AbortableRing)
        if isinstance(left, AbortableRing):
            self._ring_before = left, self.group if lingers else None  # a thread may hold the group's last reference
        self._places += rebind.take_out(self.group)
        group, self.group, self._in_place = self.group, None, None
        if left is not None and not lingers:
            sockets = left.leave()
        gc.collect()
        clear_backends()
        self._left_behind.keep(group, sockets, arrays)
        if not threads:
            ledger.aborted.owed = None  # no thread of the user's waited in this world, so none is to raise it
        return pending

    def _end_ring(self) -> None:
        """Close the sockets of the previous ring, and its placeholders if they still serve the user's threads."""
        if self._ring_before is not None:
            ring, group = self._ring_before
            self._ring_before = None
            ring.let_go()
            if group is not None:
                ring.leave()

    def release(self) -> None:
        """Release JACCL's resources before this process ends, unless a thread still uses them. Called in any thread."""
        with self._releasing:
            if self._jaccl.is_tracked:
                self._jaccl.release(self.break_up)
            # Between cells the main thread may wait for Python's own lock, which looks like a collective.
            elif self.verbs and self.group is not None and not (self._cell.running and self._blocked()):
                rebind.take_out(self.group)
                self.group = None
                gc.collect()
                clear_backends()

    @property
    def breakable(self) -> bool:
        """Whether a blocked collective can be made to raise."""
        return self._in_place is not None

    @property
    def broken_up(self) -> bool:
        """Whether collectives of this world were aborted."""
        return self._in_place is not None and self._in_place.broken_up

    def pattern(self) -> bytes | None:
        """The pattern that marks the results of collectives aborted now (see `poison.is_marked`).

        None on MPI, and if collectives cannot be aborted.
        """
        in_flight = ((each.op, each.dtype) for each in self._ledger.in_flight())
        return self._in_place.pattern(in_flight) if self._in_place is not None else None

    def break_up(self, pattern: bytes | None) -> None:
        """Make the collectives in flight return, with invalid results that `pattern` marks (zeros if it is None).

        MPI ignores `pattern`. Does nothing if collectives cannot be aborted. Called in any thread.
        """
        with self._breaking, self._reserve.lent():
            if self._in_place is not None:
                self._in_place.break_up(pattern)

    def _break_failed(self) -> None:
        """Break the world because a collective failed without an error from MLX, and make the running cell fail.

        Called in any thread.
        """
        if not self.breakable or self.broken_up:
            return
        ledger, cell, newest = self._ledger, self._cell, self._ledger.last()
        ledger.refuse = ledger.refuse or FAILED_HERE
        self.break_up(None)
        if cell.running:
            collective = cell.collective(newest) if newest is not None else None
            self._lifeline.send(Unblocked(cell.number, collective, broke=True))
            if not self._main.is_current():  # code that read the result without mx.eval would go on
                cell.interrupt.unblocked = True
                self._main.interrupt()

    def _watch(self) -> None:
        """Break the world if a JACCL transfer has failed."""
        in_place, newest = self._in_place, self._ledger.last()
        if newest is not None and isinstance(in_place, AbortableJaccl) and in_place.has_failed():
            self._ledger.aborted.note(newest, self._ledger.in_flight() or [newest], poison.ZEROS)
            self._break_failed()

    def broken_elsewhere(self) -> None:
        """On MPI, break this world, since another rank has broken it. Called in the agent's thread."""
        with self._breaking:
            if self._in_place is not None:
                self._in_place.broken_elsewhere()

    def give_up_aborting(self, because: str) -> None:
        """Abort no more collectives, in this world and the next ones: other ranks cannot, and `because` says why.

        Called in the agent's thread.
        """
        with self._breaking:
            member = self._jaccl if isinstance(self._in_place, AbortableJaccl) else self.mpi
            member.give_up(because)
            self._in_place = None

    def help(self) -> float:
        """Continue the abort of a broken world: on MPI, answer ranks blocked in it; on JACCL, end this rank's polls.

        Returns the seconds until this must be called again.
        """
        with self._breaking:
            again = self._in_place.help() if self._in_place is not None else None
        return again if again is not None else 3600.0

    def is_whole(self) -> bool:
        """Whether no rank has left this world or broken it, as far as that can be known here."""
        return self._in_place is None or self._in_place.is_whole()

    def streams(self) -> list[Stream]:
        """The streams that collectives may be on."""
        import mlx.core as mx

        used = [mx.default_stream(mx.cpu), mx.default_stream(mx.default_device()), self._ledger.turns.stream]
        return [stream for stream in used if stream is not None]

    def _settle(self) -> bool:
        """Wait for collectives in flight, and discard the errors that MLX would otherwise raise in the next cell.

        Returns False if there was an error, or if the collectives did not return within `SETTLE_WITHIN`.
        """
        import mlx.core as mx

        well, streams = True, self.streams()  # the default streams of this thread

        def settle() -> None:
            nonlocal well
            for stream in streams:
                try:
                    mx.synchronize(stream)
                except RuntimeError:
                    well = False

        # If a neighbour has died, collectives in flight may never return.
        thread = threading.Thread(target=settle, daemon=True)
        thread.start()
        thread.join(SETTLE_WITHIN)
        return well and not thread.is_alive()

    def _wire(self, request: Form) -> None:
        directory = self._config.directory
        for name, content in request.files.items():
            write_private(Path(directory, name), content)
        for name in request.forget:  # MLX would still act on variables of another backend
            os.environ.pop(name, None)
        for name, value in request.env.items():
            os.environ[name] = value.replace("{dir}", directory)
        for name, value in request.defaults.items():
            if name not in os.environ:
                os.environ[name] = value
                self.environment.add(name)
        self.environment |= {*request.env, *request.forget}


def _backend(_strict: object = False, backend: object = "any", *_more: object, **_options: object) -> object:
    """The backend that a call of ``init`` with these arguments requests."""
    return backend


def clear_backends() -> None:
    """Make MLX forget its groups, so that ``init`` makes new ones. Raises RuntimeError if MLX lacks the function."""
    import mlx.core as mx

    try:
        clear = getattr(ctypes.CDLL(mx.__file__), CLEAR_BACKENDS)
    except (OSError, AttributeError):
        raise RuntimeError("this version of mlx cannot join a second world in one process") from None
    clear.restype = None
    clear()
