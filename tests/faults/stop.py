"""The user presses stop: SIGINT to this process, at a moment that a rank tells of."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator

from allranks import Cluster
from allranks_backends.views import Snapshot
from tests.waiting import comes_true

WITHIN = 60.0
Condition = Callable[[Snapshot], bool]


@contextlib.contextmanager
def stop_pressed(cluster: Cluster, when: Condition) -> Iterator[None]:
    """Press stop once `when` holds of the cluster, if that is before the end.

    What runs within must not end before it is stopped: later, this would stop the tests.
    """
    over = threading.Event()

    def press() -> None:
        if comes_true(cluster, _either(over, when), WITHIN) and not over.is_set():
            os.kill(os.getpid(), signal.SIGINT)

    user = threading.Thread(target=press, daemon=True)
    user.start()
    try:
        yield
    finally:
        over.set()
        user.join(WITHIN)


def _either(over: threading.Event, condition: Condition) -> Condition:
    return lambda now: over.is_set() or condition(now)


def waiting(*ranks: int) -> Condition:
    """Whether these ranks wait in a collective."""
    return lambda now: all(now.ranks[rank].state == "waiting" for rank in ranks)


def running(*ranks: int) -> Condition:
    """Whether these ranks run a cell, or wait in a collective of it."""
    return lambda now: all(now.ranks[rank].state in ("running", "waiting") for rank in ranks)
