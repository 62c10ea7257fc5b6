"""Joining the MLX world from inside a rank, breaking out of it, and joining the next."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import threading
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from allranks.machine.files import write_private
from allranks.messages.requests import Form, Joined
from allranks.rank.collectives import poison, transforms
from allranks.rank.collectives.aborted import PEER_LOST
from allranks.rank.collectives.ledger import OPERATIONS
from allranks.rank.collectives.pending import learn_collectives
from allranks.rank.collectives.replaced import leave_out_our_frames, replaced
from allranks.rank.collectives.trace import mark
from allranks.rank.metrics.thread_times import threads
from allranks.rank.values.checkpoint import GIVEN

from . import rebind, recompile
from .held_sockets import hold
from .left_behind import Array, LeftBehind, asked, compute
from .placeholders import Placeholders
from .rendezvous import in_turn, time_limit, wait_for_listeners
from .sockets import close_refused, has_ended, own_sockets, with_ports

if TYPE_CHECKING:
    from allranks.rank.agent.agent import Agent

CLEAR_BACKENDS = "_ZN3mlx4core11distributed14clear_backendsEv"
"""``mlx::core::distributed::clear_backends()``: Python's own atexit hook calls it; nothing else exports it."""
SETTLE_WITHIN = 2.0
"""Seconds that collectives of the world before get to return."""


class World:
    """The rank's membership: `form` joins, also again; `set_names` puts its names in every namespace."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.group: Any = None
        self._ports: frozenset[int] = frozenset()
        self.environment: set[str] = set()
        """Environment variables that belong to the worlds this process has been in."""
        self._ring: frozenset[int] = frozenset()
        """Descriptors that came with the ring: any other socket may have a port that is one of the ring's elsewhere."""
        self._joined = 0
        """How many of the ring's own they are."""
        self._backend = ""
        self._init: Any = None
        self._given: dict[str, Any] = {}
        """What `set_names` gave the names of; not the group, to which nothing may refer when the world is left."""
        self._drain: Placeholders | None = None
        self._breaking = threading.Lock()
        self._left_behind = LeftBehind()
        self._places: list[rebind.Put] = []
        """Where the group was held before the world was left; kept until the next one is joined."""

    def form(self, request: Form) -> Joined:
        """Join the world the notebook planned, after leaving the one before; runs in the main thread.

        Raises TimeoutError when a neighbour never came, RuntimeError with MLX's own words.
        """
        with self._agent.reserve.lent():
            return self._form(request)

    def _form(self, request: Form) -> Joined:
        pending = self._leave()
        self._wire(request)
        import mlx.core as mx  # only now: CUDA reads which devices it may see when it is first asked

        self._agent.meters.cuda = mx.cuda.is_available()
        recompile.install(mx)
        transforms.install(mx)
        self._hand_out_one_group(mx)
        self._agent.ledger.install(mx, self._agent.user_ns)
        wait_for_listeners(request.after, request.delay)
        late = f"a neighbour of rank {request.rank} did not join within {request.timeout:g} s"
        known, known_threads = set(own_sockets()), threads()
        with time_limit(request.timeout, late), in_turn() if request.in_turn else nullcontext():
            group = self._init() if request.size == 1 else self._init(strict=True, backend=request.backend)
        if request.ports:
            close_refused(set(own_sockets()) - known)
            self._ring = frozenset(own_sockets()) - known
            self._agent.reserve.keep_for(len(self._ring))
            self._join_wire(self._ring, request.ports, request.rank, threads() - known_threads)
        self._agent.meters.tells_of_host = request.describes_host
        self._agent.meters.address = request.address
        joined, meant = (group.rank(), group.size()), (request.rank, request.size)
        self.group, self._backend = group, request.backend
        self._ports = frozenset(chain.from_iterable(request.ports))
        joined_by = with_ports(self._ring, self._ports)
        hold(self._agent.config.holder, joined_by)
        self._joined = len(joined_by)
        recompile.forget_traces()
        if joined != meant:
            raise RuntimeError(f"this process became rank {joined[0]} of {joined[1]}, not {meant[0]} of {meant[1]}")
        for put in self._places:
            put(group)
        self._places.clear()
        learn_collectives(mx, joined[1])
        self._agent.ledger.enter_world(request.entered, joined[1])
        self._agent.ledger.limits.enter_world(request.limits, OPERATIONS, *joined)
        self.set_names()
        return Joined(*joined, pending)

    def _join_wire(self, sockets: Iterable[int], ports: Sequence[Sequence[int]], rank: int, ring: set[int]) -> None:
        left, right = (rank - 1) % len(ports), (rank + 1) % len(ports)
        self._agent.meters.wire.join(sockets, ports[rank], {left: ports[left], right: ports[right]}, ring)

    def _hand_out_one_group(self, mx: Any) -> None:
        """Have ``mx.distributed.init`` return this world's group, always the same object.

        MLX makes a new Python object for the same group at each call (0.32.4), and only the object that is known can be
        found in what holds it, when the world is left.
        """
        if self._init is not None:
            return
        init = self._init = mx.distributed.init

        def init_once(*args: Any, **kwargs: Any) -> Any:
            try:
                own = self.group is not None and _backend(*args, **kwargs) in ("any", self._backend)
                try:
                    group = init(*args, **kwargs)
                except RuntimeError:  # strict, where this world has one rank and so needs no backend
                    if not own or self.group.size() > 1:
                        raise
                return self.group if own else group
            except BaseException as error:
                leave_out_our_frames(error)
                raise

        mx.distributed.init = replaced(init, init_once)

    def _leave(self) -> list[str]:
        """Let go of the old world, if there is one; returns names that wait for its collectives: they are invalid."""
        if self.group is None:
            return []
        self._agent.meters.wire.leave()
        # Tracebacks keep the frames of what was interrupted, and these keep arrays that wait for the old group.
        for name in ("last_value", "last_traceback", "last_exc"):
            if hasattr(sys, name):
                setattr(sys, name, None)
        ledger = self._agent.ledger
        if ledger.invalid.asked and ledger.refuse is None and self._settle() and self.is_whole():
            ledger.invalid.asked.clear()  # what all ranks had entered has come to its right end
        arrays, sockets, pending = list[Array](), list[int](), list[str]()
        if self._ports:
            if ledger.seq:
                pending = ledger.invalid.give_up(self._agent.user_variables())
                arrays = self._left_behind.find(self._agent.user_ns)
            in_flight = ledger.in_flight() if ledger.invalid.asked else []
            self.break_up(poison.pattern([*((each.op, each.dtype) for each in in_flight), *asked(arrays)]))
            if self._settle() and ledger.aborted.sentence != PEER_LOST:  # neighbours may well have left before
                compute(arrays)
        if ledger.invalid.asked:
            ledger.invalid.break_off([])
        if self._drain is not None:
            self._drain.close()
            sockets, self._drain = self._drain.descriptors, None
        hold(self._agent.config.holder, ())
        self._places += rebind.take_out(self.group)
        group, self.group, self._ring = self.group, None, frozenset()
        ledger.in_world = False
        gc.collect()
        clear_backends()
        self._left_behind.keep(group, sockets, arrays)
        return pending

    def set_names(self) -> None:
        """The names every cell starts with; one that the user has given to something else stays the user's."""
        if self.group is None:
            return
        import mlx.core as mx

        # The namespace may be a new one (the engine's, once it is up): the ledger tells user frames by it.
        self._agent.ledger.install(mx, self._agent.user_ns)
        names = self.names()
        log = names.pop("log")
        free = self.given() | (GIVEN - self._agent.user_ns.keys())
        self._agent.user_ns.update({name: value for name, value in names.items() if name in free})
        del names["world"]
        self._given = names
        self._agent.user_ns.setdefault("mark", mark)  # a user's own of that name stays
        self._agent.user_ns.setdefault("log", log)  # `from math import log` is left alone

    def names(self) -> dict[str, Any]:
        """What ``mx``, ``world``, ``rank``, ``size`` and ``log`` stand for."""
        import mlx.core as mx

        group = self.group
        assert group is not None, "ranks take cells once they have joined a world"
        names = {"mx": mx, "world": group, "rank": group.rank(), "size": group.size()}
        return {**names, "log": self._agent.log.function}

    def given(self) -> set[str]:
        """Those of the names that are still what `set_names` made of them."""
        user_ns = self._agent.user_ns
        same = {name for name, value in self._given.items() if name in user_ns and _same(user_ns[name], value)}
        world = user_ns.get("world", "")
        return same | ({"world"} if world is None or world is self.group else set())

    def taken(self) -> set[str]:
        """Those of the names that the user has given to something else."""
        return {name for name in GIVEN if name in self._agent.user_ns} - self.given()

    @property
    def breakable(self) -> bool:
        """Whether a blocked collective can be made to raise: on ring, whose sockets are known."""
        return bool(self._ports)

    @property
    def broken_up(self) -> bool:
        """Whether collectives of this world were aborted."""
        return self._drain is not None

    def break_up(self, pattern: bytes) -> None:
        """Let the collectives that are on their way return, with invalid results that `pattern` marks.

        From the agent's thread or the main one.
        """
        with self._breaking, self._agent.reserve.lent():
            if self._drain is None and (descriptors := with_ports(self._ring, self._ports)):
                self._agent.meters.wire.leave()
                self._drain = Placeholders(pattern)
                self._drain.take(descriptors)

    def is_whole(self) -> bool:
        """Whether the neighbours' ends of a ring's sockets are open; MLX tells nobody that they are not (0.32.4)."""
        left = with_ports(self._ring, self._ports)
        return not self.broken_up and len(left) == self._joined and not any(map(has_ended, left))

    def streams(self) -> list[Any]:
        """The streams that collectives may be on."""
        import mlx.core as mx

        used = [mx.default_stream(mx.cpu), mx.default_stream(mx.default_device()), self._agent.ledger.turns.stream]
        return [stream for stream in used if stream is not None]

    def _settle(self) -> bool:
        """Wait for what is on its way to return, and take the errors that MLX would raise later, from the next cell.

        False where that was an error, or has not come in time.
        """
        import mlx.core as mx

        well, streams = True, self.streams()  # those of this thread

        def settle() -> None:
            nonlocal well
            for stream in streams:
                try:
                    mx.synchronize(stream)
                except RuntimeError:
                    well = False

        # With a neighbour that died, what is on its way may never return.
        thread = threading.Thread(target=settle, daemon=True)
        thread.start()
        thread.join(SETTLE_WITHIN)
        return well and not thread.is_alive()

    def _wire(self, request: Form) -> None:
        directory = self._agent.config.directory
        for name, content in request.files.items():
            write_private(Path(directory, name), content)
        for name in request.forget:  # a leftover of another backend would be obeyed
            os.environ.pop(name, None)
        for name, value in request.env.items():
            os.environ[name] = value.replace("{dir}", directory)
        self.environment |= {*request.env, *request.forget}


def _backend(_strict: Any = False, backend: Any = "any", *_more: Any, **_options: Any) -> Any:
    """The backend that ``init`` is asked for."""
    return backend


def _same(value: Any, given: Any) -> bool:
    return value is given or (type(value) is int and type(given) is int and value == given)


def clear_backends() -> None:
    """Have MLX forget its groups, so that ``init`` makes new ones. Raises RuntimeError where libmlx has no way."""
    import mlx.core as mx

    try:
        clear = getattr(ctypes.CDLL(mx.__file__), CLEAR_BACKENDS)
    except (OSError, AttributeError):
        raise RuntimeError("this version of mlx cannot join a second world in one process") from None
    clear.restype = None
    clear()
