"""Figures of a run's world and of its performance, which are saved with the run's results."""

from __future__ import annotations

import platform
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from allranks.errors import AllranksError
from allranks.head.state.collective_times import CollectiveTimes
from allranks.machine.describe_host import versions
from allranks.notebook.feed_dashboards import Nowhere
from allranks_backends.plan import rank_label
from allranks_backends.views import Snapshot

if TYPE_CHECKING:
    from allranks.cluster.cluster import Cluster

BUSBW_BYTES = 4 << 20
"""Size of the arrays with which busbw is measured."""
BUSBW_SECONDS = 0.1
MEMORY = '{"rss": __import__("psutil").Process().memory_info().rss, "mlx_peak": mx.get_peak_memory()}'
WITHIN = 30.0
"""Seconds that a cell for measuring may take."""
TOLD_WITHIN = 1.5


def begin(cluster: Cluster) -> None:
    """Begin the measurements of a new run: reset collective times, logged values and peak memory."""
    assert cluster._live.monitor is not None
    cluster._live.monitor.times = CollectiveTimes()
    cluster._live.logs.clear()
    _quietly(cluster, "mx.reset_peak_memory()")


def busbw(cluster: Cluster) -> float | None:
    """Bus bandwidth of all_sum as `bench` defines it, in bytes a second; None if it cannot be measured."""
    if cluster.size < 2 or cluster.state != "whole":
        return None
    try:
        return cluster.bench(smallest=BUSBW_BYTES, largest=BUSBW_BYTES, seconds=BUSBW_SECONDS).peak
    except AllranksError:
        return None


def figures(cluster: Cluster, measured: float | None = None) -> dict[str, object]:
    """The world's figures, by name; None means unknown. Also works when the cluster is down.

    ``start``, ``wait`` and ``transfer`` are in seconds, ``busbw`` is in bytes a second: `measured`, or if that is None
    the value from the last bench. ``rss`` and ``mlx_peak`` are the bytes of the rank that uses most. ``wait`` and
    ``transfer`` are means over ranks of the time spent in the collectives of cells that ran with ``timing=True``;
    ``straggler`` says in words for which rank the others waited longest.
    """
    assert cluster._live.monitor is not None
    monitor = cluster._live.monitor
    if cluster.state == "whole":  # a new world may not have reported its machines yet
        monitor.wait(lambda: all(rank.report.machine is not None for rank in monitor.ranks[:1]), TOLD_WITHIN)
    memory = _memory(cluster, monitor.snapshot())
    snapshot = monitor.snapshot()
    timed = [sums for rank in snapshot.ranks if (sums := monitor.times.of_rank(rank.rank)) is not None]
    known = versions()
    return {
        "size": len(snapshot.ranks),
        "backend": snapshot.backend,
        "topology": topology(snapshot),
        "machine": machine(snapshot),
        "start": cluster.start_times.seconds if cluster.start_times is not None else None,
        "busbw": measured if measured is not None else snapshot.peak,
        "wait": sum(wait for _, wait in timed) / len(timed) if timed else None,
        "transfer": sum(transfer for transfer, _ in timed) / len(timed) if timed else None,
        "straggler": snapshot.straggler,
        **memory,
        "mlx": known.get("mlx"),
        "allranks": known.get("allranks") or version("allranks"),
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


def _memory(cluster: Cluster, snapshot: Snapshot) -> dict[str, int | None]:
    """Return the highest ``rss`` and ``mlx_peak`` of all ranks, in bytes; None means unknown.

    Asks the ranks now; uses their last reports if they cannot be asked.
    """
    told: list[dict[str, int]] = _quietly(cluster, MEMORY) or []
    said = [{"rss": rank.rss, "mlx_peak": rank.mlx_peak} for rank in snapshot.ranks]
    return {
        name: max((int(each[name] or 0) for each in told or said), default=0) or None for name in ("rss", "mlx_peak")
    }


def _quietly(cluster: Cluster, code: str) -> list[Any] | None:
    """Run a cell without showing it; return its value on each rank, or None if it failed."""
    try:
        result = cluster.run(code, screen=Nowhere(), timeout=WITHIN)
        return [rank.value for rank in result.check().values()]
    except (AllranksError, ConnectionError):
        return None
