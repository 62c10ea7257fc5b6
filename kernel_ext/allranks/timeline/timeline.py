"""The timeline of one cell: what each rank did when, on one time axis, and who waited for whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from allranks.errors import UsageError
from allranks.head.state.collective_times import CollectiveTimes
from allranks.messages.events import Timed
from allranks.messages.requests import CellTrace
from allranks.units import seconds_text

from .bandwidth import bandwidths
from .clocks import Alignment, Ping, align
from .rank_timeline import Call, RankTimeline, meetings, rank_timeline, with_waits


@dataclass(frozen=True)
class Wait:
    """One collective in which a rank was waited for."""

    call: Call
    """That of the rank that waited longest."""
    last: int
    doing: str | None
    """The innermost mark that the last rank was in meanwhile."""

    def __str__(self) -> str:
        where = f' (in "{self.doing}")' if self.doing else ""
        waited = seconds_text(self.call.wait or 0.0)
        return f"rank {self.call.rank} waited {waited} in {self.call} for rank {self.last}{where}"


@dataclass(frozen=True)
class Timeline:
    """A cell's collectives, waits and marks on every rank: a picture, `frame` for pandas, `save` for Perfetto."""

    name: str
    """Of the cluster."""
    backend: str
    count: int
    """The cell's number in the notebook."""
    code: str
    size: int
    """Ranks of the world."""
    lazy: bool
    """Traced without evaluating each collective immediately: when they ran is not known."""
    at: float
    """Unix time when the cell was sent."""
    ranks: tuple[RankTimeline, ...]
    clocks: Alignment
    missing: tuple[int, ...] = ()
    """Ranks that sent no data."""
    notes: tuple[str, ...] = field(default=())

    @classmethod
    def of(
        cls,
        *,
        told: Mapping[int, CellTrace],
        ranks: Sequence[int],
        hosts: Mapping[int, str],
        pings: Sequence[Ping],
        here: str,
        **about: Any,
    ) -> Timeline:
        """From the ranks' own data, each by its own host's clock."""
        names = list(dict.fromkeys(hosts[rank] for rank in told))
        clocks = align(names, pings, meetings(told, hosts), here if here in names else None)
        common = {rank: partial(clocks.common, hosts[rank]) for rank in told}
        zero = min((common[rank](each.began) for rank, each in told.items()), default=0.0)
        found = tuple(rank_timeline(rank, hosts[rank], each, common[rank], zero) for rank, each in told.items())
        missing = tuple(rank for rank in ranks if rank not in told)
        dropped = {each.rank: each.dropped for each in found if each.dropped}
        notes = tuple(
            f"rank {rank} dropped {count:,} later events: too many for one cell." for rank, count in dropped.items()
        )
        # One that cannot tell may have been the one that all waited for.
        found = found if missing else with_waits(found)
        return cls(ranks=found, clocks=clocks, missing=missing, notes=notes, **about)

    @property
    def seconds(self) -> float:
        """From the first rank's begin to the last one's end."""
        return max((each.ended for each in self.ranks), default=0.0)

    @cached_property  # it is asked for in every sentence and looks at every call of every rank
    def straggler(self) -> str | None:
        """The rank that others waited for longest, in words."""
        timed = {
            each.rank: [call for call in each.calls if call.last is not None and call.ended] for each in self.ranks
        }
        times = CollectiveTimes()
        for rank, calls in timed.items():
            durations = [Timed(call.op, call.nbytes, (call.ended or 0.0) - (call.began or 0.0)) for call in calls]
            times.add(0, rank, durations, len(timed))
        return times.straggler

    def waits(self, most: int = 5) -> list[Wait]:
        """The collectives in which a rank waited longest, longest first."""
        longest: dict[int, Call] = {}
        for call in (call for each in self.ranks for call in each.calls if call.wait):
            if call.number not in longest or (call.wait or 0) > (longest[call.number].wait or 0):
                longest[call.number] = call
        chosen = sorted(longest.values(), key=lambda call: call.wait or 0, reverse=True)[:most]
        return [Wait(call, call.last, self._doing(call)) for call in chosen if call.last is not None]

    def _doing(self, call: Call) -> str | None:
        """The mark in which the last rank was when the other began to wait for it."""
        marks = next(each.marks for each in self.ranks if each.rank == call.last)
        middle = (call.began or 0.0) + (call.wait or 0.0) / 2
        inside = [mark for mark in marks if mark.ended is not None and mark.began <= middle <= mark.ended]
        return max(inside, key=lambda mark: mark.began).name if inside else None

    def frame(self) -> Any:
        """A pandas DataFrame with a row for each event: times in seconds since the cell began, algbw in GB/s.

        Raises UsageError without pandas.
        """
        try:
            import pandas
        except ImportError:
            raise UsageError("frame() needs pandas, which is not installed: pip install pandas.") from None
        return pandas.DataFrame(_rows(self), columns=list(_COLUMNS))

    def save(self, path: str | Path) -> None:
        """Write a trace in Chrome's trace event format, which Perfetto opens too; compressed where it ends in ``.gz``.

        Raises UsageError where the file cannot be written.
        """
        from .trace_file import write

        write(self, path)

    def __str__(self) -> str:
        from .text import text

        return text(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from .text import html

        return html(self)


_COLUMNS = (
    *("rank", "host", "kind", "name", "number", "shape", "dtype", "bytes", "line"),
    *("start", "seconds", "wait", "transfer", "last", "algbw", "busbw"),
)


def _rows(timeline: Timeline) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for each in timeline.ranks:
        where = {"rank": each.rank, "host": each.host}
        rows.append({**where, "kind": "cell", "name": f"In[{timeline.count}]"} | _span(each.began, each.ended))
        for call in each.calls:
            figures = bandwidths(call, timeline.size)
            rows.append(
                {
                    **where,
                    "kind": "collective",
                    "name": call.op,
                    "number": call.number,
                    "dtype": call.dtype,
                    "line": call.line,
                    "shape": call.shape,
                    "bytes": call.nbytes,
                    "last": call.last,
                    "wait": call.wait,
                    "transfer": call.transfer,
                    **figures,
                    **_span(call.asked if call.began is None else call.began, call.ended),
                }
            )
        rows += [{**where, "kind": "eval", "name": "mx.eval", **_span(*span)} for span in each.evaluations]
        rows += [{**where, "kind": "mark", "name": mark.name, **_span(mark.began, mark.ended)} for mark in each.marks]
    return sorted(rows, key=lambda row: (row["rank"], row["start"]))


def _span(began: float, ended: float | None) -> dict[str, float | None]:
    return {"start": began, "seconds": None if ended is None else ended - began}
