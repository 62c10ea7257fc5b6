"""Waiting for what ranks tell: on the events of the monitor, never on sleeps."""

from __future__ import annotations

from collections.abc import Callable

from allranks import Cluster
from allranks_backends.views import Snapshot


def comes_true(cluster: Cluster, condition: Callable[[Snapshot], bool], within: float) -> bool:
    """Whether `condition` holds of the cluster's snapshot within so many seconds; looked at whenever a rank tells."""
    ranks = cluster._ranks
    assert ranks is not None, "the cluster is down"
    return ranks.monitor.wait(lambda: condition(cluster.snapshot), within)


def idle(cluster: Cluster, within: float = 60.0) -> bool:
    """Whether all ranks are done with their cells, within so many seconds."""
    return comes_true(cluster, lambda now: all(rank.state in ("idle", "failed", "dead") for rank in now.ranks), within)
