"""Waiting for what ranks tell: on the events of the monitor, never on sleeps."""

from __future__ import annotations

import time
from collections.abc import Callable

from allranks import Cluster
from allranks_backends.views import AT_REST, Snapshot

WITHIN = 60.0
"""Seconds for what takes milliseconds on a machine that is not busy."""


def comes_true(cluster: Cluster, condition: Callable[[Snapshot], bool], within: float) -> bool:
    """Whether `condition` holds of the cluster's snapshot within so many seconds; looked at whenever a rank tells."""
    ranks = cluster._ranks
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
