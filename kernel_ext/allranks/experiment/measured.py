"""Figures of a run's world and of its performance, which are saved with the run's results."""

from __future__ import annotations

import platform
from importlib.metadata import version

from allranks.cluster.cluster import Cluster
from allranks.cluster.measurements import Measurements
from allranks.errors import AllranksError
from allranks_backends.plan import rank_label
from allranks_backends.views import Snapshot

BUSBW_BYTES = 4 << 20
"""Size of the arrays with which busbw is measured."""
BUSBW_SECONDS = 0.1


def busbw(cluster: Cluster) -> float | None:
    """Bus bandwidth of all_sum as `bench` defines it, in bytes a second; None if it cannot be measured."""
    if cluster.size < 2 or cluster.state != "whole":
        return None
    try:
        return cluster.bench(smallest=BUSBW_BYTES, largest=BUSBW_BYTES, seconds=BUSBW_SECONDS).peak
    except AllranksError:
        return None


def figures(cluster: Cluster, found: Measurements, measured: float | None = None) -> dict[str, object]:
    """The world's figures, by name; None means unknown. Also works when the cluster is down.

    ``start``, ``wait`` and ``transfer`` are in seconds, ``busbw`` is in bytes a second: `measured`, or if that is None
    the value from the last bench. ``rss`` and ``mlx_peak`` are the bytes of the rank that uses most. ``wait`` and
    ``transfer`` are means over ranks of the time spent in the collectives of cells that ran with ``timing=True``;
    ``straggler`` says in words for which rank the others waited longest.
    """
    snapshot = found.snapshot
    return {
        "size": len(snapshot.ranks),
        "backend": snapshot.backend,
        "topology": topology(snapshot),
        "machine": machine(snapshot),
        "start": cluster.start_times.seconds if cluster.start_times is not None else None,
        "busbw": measured if measured is not None else snapshot.peak,
        "wait": found.wait,
        "transfer": found.transfer,
        "straggler": snapshot.straggler,
        "rss": found.rss,
        "mlx_peak": found.mlx_peak,
        "mlx": version("mlx"),
        "allranks": version("allranks"),
        "python": platform.python_version(),
    }


def topology(snapshot: Snapshot) -> str:
    """The ranks on each host, and the kinds of their links: ``ranks 0-1 on localhost, loopback``."""
    hosts: dict[str, list[int]] = {}
    for rank in snapshot.ranks:
        hosts.setdefault(rank.host, []).append(rank.rank)
    where = "; ".join(f"{rank_label(ranks)} on {host}" for host, ranks in hosts.items())
    kinds = ", ".join(sorted({view.link.kind for view in snapshot.links}))
    return f"{where}, {kinds}" if kinds else where


def machine(snapshot: Snapshot) -> str:
    """Return the processors of the hosts, with their cores."""
    return "; ".join(
        dict.fromkeys(f"{host.chip or host.model}, {host.cores} cores" for host in snapshot.hosts if host.cores)
    )
