"""Joining the MLX world from inside a rank."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import SystemRandom
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .agent import Agent


class World:
    """The rank's membership: `form` joins, `set_names` puts ``mx world rank size`` into the user's namespace."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.epoch = 0
        self.group: Any = None

    def form(self, order: dict[str, Any]) -> dict[str, Any]:
        """Join the world the notebook planned; runs in the main thread.

        `order`: ``backend`` (as ``mx.distributed.init`` calls it), ``forget``, ``env``, ``files``, ``epoch``, ``rank``, ``size``,
        ``delay`` and ``timeout`` in seconds. Raises TimeoutError when a neighbour never came, RuntimeError with MLX's
        own words.
        """
        self._wire(order)
        import mlx.core as mx

        self._agent.ledger.install(mx.distributed, self._agent.user_ns)
        time.sleep(order.get("delay", 0.0))
        with _time_limit(order["timeout"], f"a neighbour of rank {order['rank']} did not join in {order['timeout']:g} s"):
            if order["size"] == 1 and order["backend"] != "mpi":
                self.group = mx.distributed.init()
            else:
                self.group = mx.distributed.init(strict=True, backend=order["backend"])
        self.epoch = order["epoch"]
        if (self.group.rank(), self.group.size()) != (order["rank"], order["size"]):
            raise RuntimeError(
                f"this process became rank {self.group.rank()} of {self.group.size()}, not {order['rank']} of {order['size']}"
            )
        self.set_names()
        return {"rank": self.group.rank(), "size": self.group.size()}

    def set_names(self) -> None:
        """The names every cell starts with."""
        if self.group is None:
            return
        import mlx.core as mx

        # The namespace may be a new one (the engine's, once it is up): the ledger tells user frames by it.
        self._agent.ledger.install(mx.distributed, self._agent.user_ns)
        self._agent.user_ns.update(mx=mx, world=self.group, rank=self.group.rank(), size=self.group.size())

    def _wire(self, order: dict[str, Any]) -> None:
        directory = self._agent.config.directory
        for name, content in order["files"].items():
            path = Path(directory, name)
            path.touch(mode=0o600)
            path.write_text(content)
        for name in order["forget"]:  # a leftover of another backend would be obeyed
            os.environ.pop(name, None)
        for name, value in order["env"].items():
            os.environ[name] = value.replace("{dir}", directory)


@contextmanager
def _time_limit(seconds: float, message: str) -> Iterator[None]:
    """Raise TimeoutError in the main thread after `seconds`.

    ``init`` holds the GIL while it waits for its neighbours, so no other thread could end it; the signal breaks its
    ``accept`` at once (seen on mlx 0.32.4).
    """
    expired = False

    def expire(_signal: int, _frame: FrameType | None) -> None:
        nonlocal expired
        expired = True
        raise TimeoutError(message)

    previous = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except RuntimeError:
        # A broken accept surfaces as MLX's RuntimeError before Python runs the handler.
        if expired:
            raise TimeoutError(message) from None
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def free_ports(count: int, address: str = "") -> list[int]:
    """`count` random TCP ports nobody listens on, below the range from which outgoing connections take theirs.

    Random, since the ring has no handshake: a stale process on a reused port would be taken for a neighbour.
    """
    random, found = SystemRandom(), list[int]()
    while len(found) < count:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind((address, port))
            except OSError:
                continue
        if port not in found:
            found.append(port)
    return found
