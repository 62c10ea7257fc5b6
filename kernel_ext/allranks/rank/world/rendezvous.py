"""How the ranks of a world meet in ``init``, which has no timeout and does not control the order of connections."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from allranks.lifeline.rank_end import RankLifeline
from allranks.messages.events import Listens
from allranks.messages.requests import Form

FLUSHED_WITHIN = 0.5
"""Maximum seconds to wait until a message has been sent."""
_LISTEN = "0A"
"""The state of a listening socket in /proc/net/tcp."""


@contextmanager
def time_limit(seconds: float, message: str) -> Iterator[None]:
    """Raise TimeoutError in the main thread after `seconds`.

    ``init`` holds the GIL while it waits for its neighbours, so no other thread could end it; the signal interrupts its
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
        # An interrupted accept surfaces as MLX's RuntimeError before Python runs the handler.
        if expired:
            raise TimeoutError(message) from None
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


class Rendezvous:
    """Delays ``init`` until the ranks to which this rank connects listen, and reports when this rank will listen."""

    def __init__(self, lifeline: RankLifeline) -> None:
        self._lifeline = lifeline
        self._changed = threading.Condition()
        self._port: int | None = None

    def entered(self, port: int) -> None:
        """Note that the ranks to which this one connects have entered ``init``; `port` is the port in `MayConnect`.

        Called in the agent's thread.
        """
        with self._changed:
            self._port = port
            self._changed.notify_all()

    def wait(self, request: Form) -> None:
        """Return when this rank should enter ``init``.

        If ranks of other hosts wait until this rank listens, inform the notebook first (`Listens`).
        """
        if request.told_of is not None:
            with self._changed:
                self._changed.wait_for(lambda: self._port == request.told_of, request.listen_within)
        wait_for_listeners(request.after, request.listen_within, request.delay)
        if request.tells_of is not None:
            self._lifeline.send(Listens(request.tells_of))
            self._lifeline.flushed(FLUSHED_WITHIN)  # while ``init`` holds the GIL, nothing is sent


def wait_for_listeners(ports: Collection[int], within: float, otherwise: float) -> None:
    """Return once a process of this machine listens on each of `ports`, or give up after `within` seconds.

    Sleeps for `otherwise` seconds after giving up, where listeners cannot be seen (not Linux), and without `ports`.
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
    """The TCP ports on which this machine listens, by IPv4 only, since the ring uses nothing else."""
    with open("/proc/net/tcp") as file:
        next(file)
        fields = [line.split(maxsplit=4) for line in file]
    return {int(local.rpartition(":")[2], 16) for _, local, _, state, _ in fields if state == _LISTEN}


@contextmanager
def in_turn() -> Iterator[None]:
    """Let the ranks of one machine connect without overtaking one another.

    The last rank of a ring connects to the first and then listens. Meanwhile the others connect in a chain, each to the
    next, beginning with the first. If the chain overtakes the last rank, the final connection is refused and retried a
    second later. This happened in 20 of 30 worlds of four ranks on two cores, and in 2 of 30 with this function. It
    puts all ranks on one processor, with a policy under which a process that wakes up does not preempt another
    (SCHED_BATCH), so that the last rank listens before the first goes on. MLX's threads inherit both settings, and are
    reset with the main thread.
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
