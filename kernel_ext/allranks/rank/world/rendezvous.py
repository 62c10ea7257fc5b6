"""How the ranks of a world come together in ``init``, which can neither be told to give up nor in which order to go."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from allranks.messages.events import Listens
from allranks.messages.rank_lifeline import Lifeline
from allranks.messages.requests import Form

FLUSHED_WITHIN = 0.5
"""Seconds a message gets to leave."""
_LISTEN = "0A"
"""A socket's state in /proc/net/tcp."""


@contextmanager
def time_limit(seconds: float, message: str) -> Iterator[None]:
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


class Listener:
    """The rank that listens in ``init`` for the others, as this one knows it."""

    def __init__(self, lifeline: Lifeline) -> None:
        self._lifeline = lifeline
        self._changed = threading.Condition()
        self._port: int | None = None

    def entered(self, port: int) -> None:
        """The rank that listens on this port has entered ``init``, on another host. From the agent's thread."""
        with self._changed:
            self._port = port
            self._changed.notify_all()

    def wait(self, request: Form) -> None:
        """Return when this rank should enter; on the rank that listens, the others are informed."""
        if request.told_of is not None:
            with self._changed:
                self._changed.wait_for(lambda: self._port == request.told_of, request.listen_within)
        wait_for_listeners(request.after, request.listen_within, request.delay)
        if request.tells_of is not None:
            self._lifeline.send(Listens(request.tells_of))
            self._lifeline.flushed(FLUSHED_WITHIN)  # while ``init`` holds the GIL, nothing is sent


def wait_for_listeners(ports: Collection[int], within: float, otherwise: float) -> None:
    """Return once somebody listens on each of `ports`, or `within` so many seconds.

    After `otherwise` seconds where that is not told (no Linux).
    """
    deadline = time.monotonic() + within
    while ports and time.monotonic() < deadline:
        try:
            if _listened_to().issuperset(ports):
                return
        except OSError:
            break
        time.sleep(0.002)
    time.sleep(otherwise)


def _listened_to() -> set[int]:
    """TCP ports of IPv4, which is all the ring speaks, on which this machine listens."""
    with open("/proc/net/tcp") as file:
        next(file)
        fields = [line.split(maxsplit=4) for line in file]
    return {int(local.rpartition(":")[2], 16) for _, local, _, state, _ in fields if state == _LISTEN}


@contextmanager
def in_turn() -> Iterator[None]:
    """Let the ranks of one machine connect without overtaking one another.

    The last rank of a ring connects to the first and then listens, while the others, from the first on, connect each
    to the next. Where this chain overtakes the last rank, its last link is refused and tries again a second later:
    in 20 of 30 worlds of four ranks on two cores, and in 2 of 30 so. On one processor, where none interrupts another
    by waking up (SCHED_BATCH), the last rank comes to listen before the first goes on. mlx's threads inherit both and
    are released with the main thread.
    """
    if not hasattr(os, "sched_setaffinity") or os.sched_getscheduler(0) != os.SCHED_OTHER:
        yield
        return
    processors, threads = os.sched_getaffinity(0), set(os.listdir("/proc/self/task"))
    try:
        with suppress(OSError):  # a container may forbid it
            os.sched_setaffinity(0, {min(processors)})
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        yield
    finally:
        for thread in (0, *map(int, set(os.listdir("/proc/self/task")) - threads)):
            with suppress(OSError):
                os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))
                os.sched_setaffinity(thread, processors)
