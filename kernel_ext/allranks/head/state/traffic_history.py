"""The last ten minutes of traffic and states, which the monitor records from the ranks' reports."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from allranks.dataframes import imported_pandas, utc
from allranks_backends.plan import Link
from allranks_backends.views import LinkView, RankState, RankView, Snapshot

if TYPE_CHECKING:
    import pandas

EVERY = 0.5
"""Minimum seconds between two samples; the ranks of an idle world report less often."""
KEEP = 600.0
"""Seconds for which samples are kept."""


class Sample(NamedTuple):
    """The ranks' traffic at one moment, in bytes a second; None if a figure is unknown."""

    at: float
    """Unix time in seconds."""
    generation: int
    wire: dict[tuple[int, int], float | None]
    """The rate of each link, by the pair of its sending and its receiving rank."""
    effective: dict[int, float | None]
    """By rank, the rate at which its code passes bytes to collectives."""
    states: dict[int, tuple[RankState, float | None]]
    """By rank, its state, and for how many seconds it had lasted."""


class History:
    def __init__(self) -> None:
        self._samples: deque[Sample] = deque()

    def due(self, now: float) -> bool:
        """Whether it is time for a sample."""
        return not self._samples or now - self._samples[-1].at >= EVERY

    def add(self, snapshot: Snapshot) -> None:
        # Links whose bytes are not counted are left out: with MPI, that is every pair of ranks.
        wire = {(view.link.source, view.link.target): view.rate for view in snapshot.links if view.sent is not None}
        effective = {view.rank: view.effective for view in snapshot.ranks}
        states = {view.rank: (view.state, view.since) for view in snapshot.ranks}
        self._samples.append(Sample(snapshot.at, snapshot.generation, wire, effective, states))
        while snapshot.at - self._samples[0].at > KEEP:
            self._samples.popleft()

    def samples(self) -> list[Sample]:
        """Return the samples, oldest first."""
        return list(self._samples)

    def snapshots(self, now: Snapshot) -> list[Snapshot]:
        """Return the samples as Snapshots, to be drawn; fields that a sample lacks are taken from `now`."""
        return [
            replace(
                now,
                at=sample.at,
                generation=sample.generation,
                links=tuple(LinkView(Link(*ends, ""), rate=rate) for ends, rate in sample.wire.items()),
                ranks=tuple(_view(rank, sample) for rank in sample.effective),
            )
            for sample in self.samples()
        ]

    def frame(self) -> pandas.DataFrame:
        """Return a table with a row for each sample, by ``time``. Raises UsageError without pandas.

        Columns such as (``wire``, "0-1") and (``effective``, "0") are in bytes a second; NaN if unknown.
        """
        pandas = imported_pandas("history()")
        rows: list[dict[tuple[str, str], object]] = []
        samples = self.samples()
        for sample in samples:
            row: dict[tuple[str, str], object] = {("generation", ""): sample.generation}
            row |= {("wire", f"{source}-{target}"): rate for (source, target), rate in sample.wire.items()}
            row |= {("effective", str(rank)): rate for rank, rate in sample.effective.items()}
            rows.append(row)
        index = pandas.DatetimeIndex(utc([sample.at for sample in samples]), name="time")
        frame = pandas.DataFrame(rows, index=index)
        frame.columns = pandas.MultiIndex.from_tuples(list(frame.columns), names=["figure", "of"])
        return frame


def _view(rank: int, sample: Sample) -> RankView:
    state, since = sample.states[rank]
    return RankView(rank, "", state=state, since=since, effective=sample.effective[rank])
