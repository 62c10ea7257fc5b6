"""What each rank did in a recorded cell: its collectives, evaluations and marks, made from the ranks' traces.

In a collective that all ranks entered, the last rank did not wait. So the shortest duration is the transfer, and the
rest of each rank's own duration is that rank's wait, as in `head.state.collective_times`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from allranks.head.state.make_views import collective
from allranks.messages.requests import CellTrace
from allranks_backends.views import Collective

from .clocks import Meeting

Span = tuple[float, float]
"""When something began and ended, in seconds since the cell began on the first rank."""
Moment = TypeVar("Moment", float, float | None)


@dataclass(frozen=True, kw_only=True)
class TimelineCall(Collective):
    """A collective on one rank. Times are seconds since the cell began on the first rank."""

    rank: int
    source: str
    """The text of the line, also if the line is outside the cell."""
    place: str
    """Location of a line outside the cell: ``In[3], line 2``, ``model.py, line 40``; empty if inside or unknown."""
    asked: float
    began: float | None
    """When the collective's input had been computed; None if the collective was not evaluated at once."""
    ended: float | None
    """When the collective ended; None if it never completed (it was aborted, say), or was not evaluated at once."""
    wait: float | None = None
    """Seconds that this rank waited for the last rank to enter; None if that cannot be known."""
    transfer: float | None = None
    last: int | None = None
    """The rank that entered last; None if that cannot be known."""

    def __str__(self) -> str:
        return f"{super().__str__()} ({self.place})" if self.place else super().__str__()


@dataclass(frozen=True)
class Mark:
    """A moment or a span that the user marked."""

    rank: int
    name: str
    thread: str
    """Empty for the main thread."""
    began: float
    ended: float | None
    """None for a moment."""


@dataclass(frozen=True)
class RankTimeline:
    """The events that one rank recorded."""

    rank: int
    host: str
    began: float
    ended: float
    dropped: int
    """Number of events that were not kept, since there were too many."""
    calls: tuple[TimelineCall, ...]
    evaluations: tuple[tuple[float, float], ...]
    """Start and end of each ``mx.eval`` and ``mx.async_eval`` that the user's code called."""
    marks: tuple[Mark, ...]

    @property
    def waited(self) -> float:
        return sum(call.wait or 0.0 for call in self.calls)

    @property
    def transferred(self) -> float:
        return sum(call.transfer or 0.0 for call in self.calls)


def meetings(told: Mapping[int, CellTrace], hosts: Mapping[int, str]) -> list[Meeting]:
    """The collectives that every rank entered and left; empty if all ranks are on one host."""
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
    """Make a rank's timeline from its trace; `common` converts times to the common axis, which begins at `zero`."""

    def at(moment: Moment) -> Moment:
        return None if moment is None else common(moment) - zero

    over = at(told.ended)
    calls = tuple(
        TimelineCall(
            **vars(collective(each)),
            rank=rank,
            source=told.sources[each.source][0],
            place=told.sources[each.source][1],
            asked=at(each.asked),
            began=at(each.began),
            ended=at(each.ended),
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
    """Split the time of each call that all `ranks` recorded into wait and transfer; returns the new timelines."""
    by_number: dict[int, dict[int, float]] = {}
    for each in ranks:
        for call in each.calls:
            if call.shared and call.began is not None and call.ended is not None:
                by_number.setdefault(call.number, {})[each.rank] = call.ended - call.began
    last = {
        number: min(each, key=each.__getitem__) for number, each in by_number.items() if 1 < len(each) == len(ranks)
    }

    def split(call: TimelineCall) -> TimelineCall:
        if not call.shared or call.number not in last:
            return call
        mine, transfer = by_number[call.number][call.rank], by_number[call.number][last[call.number]]
        return replace(call, wait=mine - transfer, transfer=transfer, last=last[call.number])

    return tuple(replace(each, calls=tuple(map(split, each.calls))) for each in ranks)


def transferring(each: RankTimeline) -> Iterator[Span]:
    """The spans in which this rank transferred data."""
    for call in each.calls:
        if call.began is not None and call.ended is not None:
            yield call.began + (call.wait or 0.0), call.ended


def waiting(each: RankTimeline) -> Iterator[Span]:
    """The spans in which this rank waited for others."""
    for call in each.calls:
        if call.began is not None and call.ended is None:  # aborted
            yield call.began, each.ended
        elif call.began is not None and call.wait:
            yield call.began, call.began + call.wait


def computing(each: RankTimeline) -> Iterator[Span]:
    """The spans of ``mx.eval``, and of computing collectives' inputs. Lazy collectives run within these spans, too."""
    yield from each.evaluations
    for call in each.calls:
        if call.began is not None:
            yield call.asked, call.began


def covered(spans: Iterable[Span], seconds: float, columns: int) -> list[float]:
    """The share of each column's time that the spans cover."""
    shares = [0.0] * columns
    for began, ended in spans:
        first, last = (max(0.0, min(columns, at / seconds * columns)) for at in (began, ended))
        for column in range(int(first), min(int(last) + 1, columns)):
            shares[column] += min(last, column + 1.0) - max(first, float(column))
    return [min(share, 1.0) for share in shares]
