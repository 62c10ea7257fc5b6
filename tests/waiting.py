"""Waiting for what ranks tell: on the events of the monitor, never on sleeps."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from allranks import Cluster
from allranks_backends.views import AT_REST, Snapshot

WITHIN = 60.0
"""Seconds for what takes milliseconds on a machine that is not busy."""


def comes_true(cluster: Cluster, condition: Callable[[Snapshot], bool], within: float) -> bool:
    """Whether `condition` holds of the cluster's snapshot within so many seconds; looked at whenever a rank tells."""
    ranks = cluster._live.ranks
    assert ranks is not None, "the cluster is down"
    return ranks.monitor.wait(lambda: condition(cluster.snapshot), within)


def idle(cluster: Cluster, within: float = WITHIN) -> bool:
    """Whether all ranks are done with their cells, within so many seconds."""
    return comes_true(cluster, lambda now: all(rank.state in {*AT_REST, "dead"} for rank in now.ranks), within)


def eventually(look: Callable[[], object], within: float = WITHIN) -> bool:
    """Whether `look` finds something within so many seconds: for what no rank tells."""
    deadline = time.monotonic() + within
    while not (found := look()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return bool(found)


def stacks(cluster: Cluster) -> str:
    """Where the threads of all ranks of this machine stand, for a test that fails. It ends these ranks."""
    said = ""
    for rank in cluster.snapshot.ranks:
        if rank.pid is None:
            continue
        with suppress(OSError, StopIteration, psutil.Error):  # it has ended
            descriptors = Path(f"/proc/{rank.pid}/fd").iterdir()
            log = next(each for each in descriptors if os.readlink(each).endswith("rank.log"))
            with log.open() as text:
                text.seek(0, os.SEEK_END)
                os.kill(rank.pid, signal.SIGABRT)
                psutil.wait_procs([psutil.Process(rank.pid)], WITHIN)
                said += f"\nrank {rank.rank}: {text.read()}"
    return said
