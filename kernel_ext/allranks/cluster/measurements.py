"""What is measured of a world while code runs on it: memory, the times of collectives, and the values that it logs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from allranks.errors import AllranksError
from allranks.head.state.collective_times import CollectiveTimes
from allranks.notebook.feed_dashboards import Nowhere
from allranks_backends.views import Snapshot

from .cells import Cells
from .live_ranks import LiveRanks

MEMORY = '{"rss": __import__("psutil").Process().memory_info().rss, "mlx_peak": mx.get_peak_memory()}'
WITHIN = 30.0
"""Seconds that a cell for measuring may take."""
REPORTED_WITHIN = 1.5
"""Seconds that a new world gets to report its machine."""


@dataclass(frozen=True)
class Measurements:
    """What `Cluster.measure` returns. None means unknown."""

    snapshot: Snapshot
    """The world; after `down`, its last state."""
    rss: int | None
    """Resident memory, in bytes, of the rank that uses most."""
    mlx_peak: int | None
    """The highest ``mx.get_peak_memory`` of all ranks, in bytes."""
    wait: float | None
    """Seconds that a rank waited for others in the collectives of cells with ``timing=True``: the mean over ranks."""
    transfer: float | None
    """Seconds that these collectives took otherwise."""
    logged: dict[str, float]
    """The last value of each name given to ``log``: the mean over ranks."""


def reset(live: LiveRanks, cells: Cells) -> None:
    """See `Cluster.reset_measurements`."""
    live.logs.clear()
    live.ranks_up().monitor.times = CollectiveTimes()
    _values(cells, "mx.reset_peak_memory()")


def measure(live: LiveRanks, cells: Cells) -> Measurements:
    """See `Cluster.measure`."""
    logs, monitor = live.logs, live.monitor
    assert monitor is not None  # `logs` is the monitor's
    if live.state == "whole":
        monitor.wait(lambda: all(rank.report.machine is not None for rank in monitor.ranks[:1]), REPORTED_WITHIN)
    asked: list[dict[str, int]] = _values(cells, MEMORY) or []
    snapshot = monitor.snapshot()
    memory = asked or [{"rss": rank.rss or 0, "mlx_peak": rank.mlx_peak or 0} for rank in snapshot.ranks]
    timed = [sums for rank in snapshot.ranks if (sums := monitor.times.of_rank(rank.rank)) is not None]
    return Measurements(
        snapshot,
        rss=max((each["rss"] for each in memory), default=0) or None,
        mlx_peak=max((each["mlx_peak"] for each in memory), default=0) or None,
        wait=sum(wait for _, wait in timed) / len(timed) if timed else None,
        transfer=sum(transfer for transfer, _ in timed) / len(timed) if timed else None,
        logged={name: sum(values.values()) / len(values) for name, values in logs.last().items()},
    )


def _values(cells: Cells, code: str) -> list[Any] | None:
    """Run a cell that no dashboard shows; return its value on each rank, or None if it failed."""
    try:
        result = cells.begin(code, screen=Nowhere(), timeout=WITHIN).finish()
        return [rank.value for rank in result.check().values()]
    except (AllranksError, ConnectionError):
        return None
