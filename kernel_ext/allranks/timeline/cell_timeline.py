"""What each rank did in one cell, on one time axis, and which rank waited for which."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Self

from allranks.head.state.collective_times import CollectiveTimes
from allranks.messages.events import Timed
from allranks.messages.requests import CellTrace
from allranks.units import seconds_text

from .clocks import Alignment, Ping, align
from .rank_timeline import RankTimeline, TimelineCall, meetings, rank_timeline, with_waits


@dataclass(frozen=True)
class Wait:
    """A collective in which a rank waited for the rank that entered last."""

    call: TimelineCall
    """The call of the rank that waited longest."""
    last: int
    doing: str | None
    """Name of the innermost span that the last rank was in halfway through the wait; None if it was in none."""

    def __str__(self) -> str:
        where = f' (in "{self.doing}")' if self.doing else ""
        waited = seconds_text(self.call.wait or 0.0)
        return f"rank {self.call.rank} waited {waited} in {self.call} for rank {self.last}{where}"


@dataclass(frozen=True)
class CellTimeline:
    """A cell's collectives, waits and marks on every rank."""

    name: str
    """Name of the cluster."""
    backend: str
    count: int
    """The cell's number in the notebook."""
    code: str
    size: int
    """Number of ranks in the world."""
    lazy: bool
    """Whether collectives were not evaluated immediately, so that the times when they ran are unknown."""
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
    ) -> Self:
        """Make the timeline from the ranks' traces, whose times are by each host's own clock."""
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
        # A missing rank may have been the one that all others waited for.
        found = found if missing else with_waits(found)
        return cls(ranks=found, clocks=clocks, missing=missing, notes=notes, **about)

    @property
    def seconds(self) -> float:
        """Seconds from the start of the cell on the first rank to its end on the last rank."""
        return max((each.ended for each in self.ranks), default=0.0)

    @property
    def straggler(self) -> str | None:
        """A clause on the rank that others waited for longest; None if no collective was timed."""
        return self._times.straggler

    @property
    def finding(self) -> str | None:
        """The straggler in a sentence, with the share of the cell's time that others waited for it; None without."""
        return self._times.straggler_in(self.seconds)

    @cached_property  # used several times, and computed from every call of every rank
    def _times(self) -> CollectiveTimes:
        timed = {
            each.rank: [call for call in each.calls if call.last is not None and call.ended] for each in self.ranks
        }
        times = CollectiveTimes()
        for rank, calls in timed.items():
            durations = [Timed(call.op, call.nbytes, (call.ended or 0.0) - (call.began or 0.0)) for call in calls]
            times.add(0, rank, durations, len(timed))
        return times

    def waits(self, most: int = 5) -> list[Wait]:
        """The `most` collectives in which a rank waited longest, longest first."""
        longest: dict[int, TimelineCall] = {}
        for call in (call for each in self.ranks for call in each.calls if call.wait):
            if call.number not in longest or (call.wait or 0) > (longest[call.number].wait or 0):
                longest[call.number] = call
        chosen = sorted(longest.values(), key=lambda call: call.wait or 0, reverse=True)[:most]
        return [Wait(call, call.last, self._doing(call)) for call in chosen if call.last is not None]

    def _doing(self, call: TimelineCall) -> str | None:
        """Name of the innermost span that the last rank was in halfway through the other rank's wait."""
        marks = next(each.marks for each in self.ranks if each.rank == call.last)
        middle = (call.began or 0.0) + (call.wait or 0.0) / 2
        inside = [mark for mark in marks if mark.ended is not None and mark.began <= middle <= mark.ended]
        return max(inside, key=lambda mark: mark.began).name if inside else None
