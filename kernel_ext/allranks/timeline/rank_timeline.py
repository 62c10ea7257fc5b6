"""What each rank did in a recorded cell: its collectives, evaluations and marks, made of what the ranks told.

Of a collective that all ranks entered, the one that came last did not wait: the shortest duration is the transfer, and
what each rank's lasted beyond it is that rank's wait, as in `head.state.collective_times`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from allranks.messages.requests import CellTrace
from allranks_backends.views import Collective

from .clocks import Meeting


@dataclass(frozen=True)
class Call:
    """A collective on one rank. Times are seconds since the cell began on the first rank."""

    rank: int
    number: int
    op: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    shared: bool
    """Every rank of the world must enter it alike."""
    line: int | None
    """Line of the cell; None where the code is another cell's or a module's."""
    source: str
    """The text of that line, wherever it is."""
    place: str
    """Where it is, if not in the cell: ``In[3], line 2``, ``model.py, line 40``; empty where that is not known."""
    asked: float
    began: float | None
    """When its input was there; None where it was not evaluated at once."""
    ended: float | None
    """None where it was aborted, or not evaluated at once."""
    wait: float | None = None
    """Seconds in which this rank waited for the last one to come; None where that cannot be known."""
    transfer: float | None = None
    last: int | None = None
    """The rank that came last."""

    def __str__(self) -> str:
        called = str(Collective(self.number, self.op, self.shape, self.dtype, self.nbytes, self.line))
        return f"{called} ({self.place})" if self.place else called


@dataclass(frozen=True)
class Mark:
    """What the user marked."""

    rank: int
    name: str
    thread: str
    """Empty for the main thread."""
    began: float
    ended: float | None
    """None for a moment."""


@dataclass(frozen=True)
class RankTimeline:
    """What one rank recorded."""

    rank: int
    host: str
    began: float
    ended: float
    dropped: int
    """Events beyond those that are kept."""
    calls: tuple[Call, ...]
    evaluations: tuple[tuple[float, float], ...]
    """The user's own ``mx.eval``: begin and end."""
    marks: tuple[Mark, ...]

    @property
    def waited(self) -> float:
        return sum(call.wait or 0.0 for call in self.calls)

    @property
    def transferred(self) -> float:
        return sum(call.transfer or 0.0 for call in self.calls)


def meetings(told: Mapping[int, CellTrace], hosts: Mapping[int, str]) -> list[Meeting]:
    """The collectives that every rank entered and left."""
    if len({hosts[rank] for rank in told}) < 2:
        return []
    by_number: dict[int, dict[int, tuple[float, float]]] = {}
    for rank, each in told.items():
        for call in each.collectives:
            if call.shared and call.began is not None and call.ended is not None:
                by_number.setdefault(call.number, {})[rank] = call.began, call.ended
    met: list[Meeting] = []
    for spans in by_number.values():
        if len(spans) == len(told):
            meeting: dict[str, tuple[float, float]] = {}
            for rank, (began, ended) in spans.items():
                before = meeting.get(hosts[rank], (began, ended))
                meeting[hosts[rank]] = max(began, before[0]), min(ended, before[1])
            met.append(meeting)
    return met


def rank_timeline(rank: int, host: str, told: CellTrace, common: Callable[[float], float], zero: float) -> RankTimeline:
    """From what the rank told, whose moments `common` turns into those of the axis; `zero` is where the axis begins."""

    def at(moment: float | None) -> Any:
        return None if moment is None else common(moment) - zero

    over = at(told.ended)
    calls = tuple(
        Call(
            rank,
            each.number,
            each.op,
            each.shape,
            each.dtype,
            each.nbytes,
            each.shared,
            *told.sources[each.source],
            at(each.asked),
            at(each.began),
            at(each.ended),
        )
        for each in told.collectives
    )
    marks = tuple(  # a span that is still open ends with the cell
        Mark(rank, mark.name, mark.thread, at(mark.began), over if mark.ended == 0.0 else at(mark.ended))
        for mark in told.marks
    )
    evaluations = tuple((at(began), at(ended)) for began, ended in told.evaluations)
    return RankTimeline(rank, host, at(told.began), over, told.dropped, calls, evaluations, marks)


def with_waits(ranks: Sequence[RankTimeline]) -> tuple[RankTimeline, ...]:
    """The same with each call's time split into wait and transfer, where all ranks recorded it."""
    by_number: dict[int, dict[int, float]] = {}
    for each in ranks:
        for call in each.calls:
            if call.shared and call.began is not None and call.ended is not None:
                by_number.setdefault(call.number, {})[each.rank] = call.ended - call.began
    last = {
        number: min(each, key=each.__getitem__) for number, each in by_number.items() if 1 < len(each) == len(ranks)
    }

    def split(call: Call) -> Call:
        if not call.shared or call.number not in last:
            return call
        mine, transfer = by_number[call.number][call.rank], by_number[call.number][last[call.number]]
        return replace(call, wait=mine - transfer, transfer=transfer, last=last[call.number])

    return tuple(replace(each, calls=tuple(map(split, each.calls))) for each in ranks)
