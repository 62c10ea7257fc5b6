"""Joining the MLX world from inside a rank, breaking out of it, and joining the next."""

from __future__ import annotations

import ctypes
import functools
import gc
import os
import sys
import threading
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import rebind, recompile, transforms
from .carry import GIVEN
from .drain import Drain
from .files import write_private
from .ledger import OPERATIONS
from .rendezvous import in_turn, time_limit, wait_for_listeners
from .sockets import close_refused, has_ended, own_sockets, with_ports
from .trace import mark

if TYPE_CHECKING:
    from .agent import Agent

CLEAR_BACKENDS = "_ZN3mlx4core11distributed14clear_backendsEv"
"""``mlx::core::distributed::clear_backends()``: Python's own atexit hook calls it; nothing else exports it."""
SETTLE_WITHIN = 2.0
"""Seconds that collectives of the world before get to return."""


class World:
    """The rank's membership: `form` joins, also again; `set_names` puts its names in every namespace."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.epoch = 0
        self.group: Any = None
        self._ports: frozenset[int] = frozenset()
        self._ring: frozenset[int] = frozenset()
        """Descriptors that came with the ring: any other socket may have a port that is one of the ring's elsewhere."""
        self._joined = 0
        """How many of the ring's own they are."""
        self._backend = ""
        self._init: Any = None
        self._given: dict[str, Any] = {}
        """What `set_names` gave the names of; not the group, to which nothing may refer when the world is left."""
        self._drain: Drain | None = None
        self._breaking = threading.Lock()
        self._places: list[rebind.Put] = []
        """Where the group was held before the world was left; kept until the next one is joined."""

    def form(self, order: dict[str, Any]) -> dict[str, Any]:
        """Join the world the notebook planned, after leaving the one before; runs in the main thread.

        `order`: ``backend`` (as ``mx.distributed.init`` calls it), ``forget``, ``env``, ``files``, ``ports`` (of the
        ring's sockets, by rank), ``limits`` (what the backend refuses), ``seq`` (the ledger goes on from there),
        ``epoch``, ``rank``, ``size``, ``tells_of_host`` (one rank of each host does), ``address`` (at which the other
        hosts reach it), ``after`` and ``delay`` (see `wait_for_listeners`), ``in_turn`` (see there), and ``timeout``
        in seconds. Raises TimeoutError when a neighbour never came, RuntimeError with MLX's own words.
        """
        self._leave()
        self._wire(order)
        import mlx.core as mx  # only now: CUDA reads which devices it may see when it is first asked

        recompile.install(mx)
        transforms.install(mx)
        self._hand_out_one_group(mx)
        self._agent.ledger.install(mx, self._agent.user_ns)
        wait_for_listeners(order.get("after", ()), order.get("delay", 0.0))
        late = f"a neighbour of rank {order['rank']} did not join in {order['timeout']:g} s"
        known = set(own_sockets())
        with time_limit(order["timeout"], late), in_turn() if order.get("in_turn") else nullcontext():
            if order["size"] == 1 and order["backend"] != "mpi":
                group = self._init()
            else:
                group = self._init(strict=True, backend=order["backend"])
        if order["ports"]:
            close_refused(set(own_sockets()) - known)
            self._ring = frozenset(own_sockets()) - known
            self._join_wire(self._ring, order["ports"], order["rank"])
        self._agent.meters.tells_of_host = order["tells_of_host"]
        self._agent.meters.address = order["address"]
        joined, meant = (group.rank(), group.size()), (order["rank"], order["size"])
        self.group, self.epoch, self._backend = group, order["epoch"], order["backend"]
        self._ports = frozenset(chain.from_iterable(order["ports"]))
        self._joined = len(with_ports(self._ring, self._ports))
        recompile.Epoch.number += 1
        if joined != meant:
            raise RuntimeError(f"this process became rank {joined[0]} of {joined[1]}, not {meant[0]} of {meant[1]}")
        for put in self._places:
            put(group)
        self._places.clear()
        self._agent.ledger.enter_world(order["seq"], joined[1])
        self._agent.ledger.limits.enter_world(order["limits"], OPERATIONS, *joined)
        self.set_names()
        return {"rank": joined[0], "size": joined[1]}

    def _join_wire(self, sockets: Iterable[int], ports: Sequence[Sequence[int]], rank: int) -> None:
        left, right = (rank - 1) % len(ports), (rank + 1) % len(ports)
        self._agent.meters.wire.join(sockets, ports[rank], {left: ports[left], right: ports[right]})

    def _hand_out_one_group(self, mx: Any) -> None:
        """Have ``mx.distributed.init`` return this world's group, always the same object.

        MLX makes a new Python object for the same group at each call (0.32.4), and only the object that is known can be
        found in what holds it, when the world is left.
        """
        if self._init is not None:
            return
        init = self._init = mx.distributed.init

        @functools.wraps(init, updated=())
        def init_once(strict: bool = False, backend: str = "any", **options: Any) -> Any:
            if self.group is not None and backend in ("any", self._backend):
                return self.group
            return init(strict, backend, **options)

        mx.distributed.init = init_once

    def _leave(self) -> None:
        """Let go of the old world, if there is one; the places that held it are remembered."""
        if self.group is None:
            return
        self._agent.meters.wire.leave()
        # Tracebacks keep the frames of what was interrupted, and these keep arrays that wait for the old group.
        for name in ("last_value", "last_traceback", "last_exc"):
            if hasattr(sys, name):
                setattr(sys, name, None)
        ledger = self._agent.ledger
        if ledger.void.asked and ledger.refuse is None and self._settle() and self.is_whole():
            ledger.void.asked.clear()  # what all ranks had entered has come to its right end
        if self._ports:
            self.break_up()
            self._settle()
        if ledger.void.asked:
            ledger.void.break_off([])
        if self._drain is not None:
            # Arrays that still wait for the old world raise from now on; they would hang.
            self._drain.close()
            self._drain = None
        self._places += rebind.take_out(self.group)
        self.group, self._ring = None, frozenset()
        gc.collect()
        clear_backends()

    def set_names(self) -> None:
        """The names every cell starts with; one that the user has given to something else stays the user's."""
        if self.group is None:
            return
        import mlx.core as mx

        # The namespace may be a new one (the engine's, once it is up): the ledger tells user frames by it.
        self._agent.ledger.install(mx, self._agent.user_ns)
        names = {"mx": mx, "world": self.group, "rank": self.group.rank(), "size": self.group.size()}
        free = self.given() | (GIVEN - self._agent.user_ns.keys())
        self._agent.user_ns.update({name: value for name, value in names.items() if name in free})
        del names["world"]
        self._given = names
        self._agent.user_ns.setdefault("mark", mark)  # a user's own of that name stays
        self._agent.user_ns.setdefault("log", self._agent.log.function)  # `from math import log` is left alone

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
        """Whether collectives of this world were let come to their end, with garbage."""
        return self._drain is not None

    def break_up(self) -> None:
        """Let the collectives that are on their way return, with garbage; from the agent's thread or the main one."""
        with self._breaking:
            if self._drain is None and (descriptors := with_ports(self._ring, self._ports)):
                self._agent.meters.wire.leave()
                self._drain = Drain()
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

    def _wire(self, order: dict[str, Any]) -> None:
        directory = self._agent.config.directory
        for name, content in order["files"].items():
            write_private(Path(directory, name), content)
        for name in order["forget"]:  # a leftover of another backend would be obeyed
            os.environ.pop(name, None)
        for name, value in order["env"].items():
            os.environ[name] = value.replace("{dir}", directory)


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
