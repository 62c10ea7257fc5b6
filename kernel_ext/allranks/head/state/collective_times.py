"""Divides the time of collectives into transfer and waiting for the last rank.

In a call that all ranks enter, the last rank does not wait. So the shortest duration is the transfer, and the rest of
each rank's own duration is that rank's wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from allranks.messages.events import MOST_TIMED, Timed
from allranks.units import seconds_text

UNFINISHED = 16
"""Maximum number of cells that are kept while some of their ranks have not reported."""
MARKED = 0.1
"""How long the others waited for a rank, as a part of the calls' own time, from which on the rank is marked."""


class CollectiveShare(NamedTuple):
    """How much of a cell's time its ranks spent in timed collectives: the mean over ranks, from 0 to 1."""

    total: float
    waiting: float | None
    """Share spent waiting for other ranks; None if the ranks entered different calls, or if only one took part."""

    @classmethod
    def of(cls, timed: Mapping[int, Sequence[Timed]], seconds: float) -> CollectiveShare | None:
        """Return the share of the timed calls in a cell of `seconds`. `timed` has the calls of each rank.

        None if no call was timed, or if a rank has reported `MOST_TIMED` calls, since it may have made more.
        """
        spent = sum(call.seconds for calls in timed.values() for call in calls)
        if not spent or seconds <= 0 or max(map(len, timed.values())) >= MOST_TIMED:
            return None
        times = CollectiveTimes()
        for rank, calls in timed.items():
            times.add(0, rank, calls, len(timed))
        waited = sum(sums[1] for rank in timed if (sums := times.of_rank(rank)) is not None)
        of_all = seconds * len(timed)
        return cls(spent / of_all, waited / of_all if times.calls else None)

    def __str__(self) -> str:
        waiting = f" ({self.waiting:.0%} waiting for others)" if self.waiting is not None else ""
        return f"{self.total:.0%} in collectives{waiting}"


class CollectiveTimes:
    """Sums of the ranks' transfer and waiting times over all cells that ran with ``--timing``.

    Cells whose ranks entered different calls, and cells on one rank, do not count.
    """

    def __init__(self) -> None:
        self._cells: dict[int, dict[int, list[tuple[str, float]]]] = {}
        self._times: dict[tuple[int, str], tuple[float, float]] = {}
        self._last: dict[int, int] = {}
        self._waited: dict[int, float] = {}
        self._longest: dict[int, float] = {}
        """By rank, the longest time that another rank waited for it in one call."""
        self._transfer = 0.0
        self.calls = 0

    def forget(self, rank: int) -> None:
        """Forget how often and how long others waited for this rank: it is another process from here on."""
        for known in (self._last, self._waited, self._longest):
            known.pop(rank, None)

    def add(self, cell: int, rank: int, calls: Sequence[Timed], ranks: int) -> None:
        """Add the timed calls of `rank` in `cell`; they count once `ranks` ranks have reported theirs."""
        told = self._cells.setdefault(cell, {})
        while len(self._cells) > UNFINISHED:  # a rank died before it reported
            del self._cells[next(iter(self._cells))]
        told[rank] = [(call.op, call.seconds) for call in calls]
        if len(told) == ranks:
            self._settle(self._cells.pop(cell))

    def _settle(self, told: dict[int, list[tuple[str, float]]]) -> None:
        lengths = {len(calls) for calls in told.values()}
        if len(told) < 2 or len(lengths) != 1:
            return  # the ranks entered different calls: which calls belong together cannot be known
        for number in range(lengths.pop()):
            durations = {rank: calls[number][1] for rank, calls in told.items()}
            last = min(durations, key=lambda rank: durations[rank])
            transfer = durations[last]
            self._transfer += transfer
            self.calls += 1
            self._last[last] = self._last.get(last, 0) + 1
            waited = max(durations.values()) - transfer
            self._waited[last] = self._waited.get(last, 0.0) + waited
            self._longest[last] = max(self._longest.get(last, 0.0), waited)
            for rank, seconds in durations.items():
                key = (rank, told[rank][number][0])
                sums = self._times.get(key, (0.0, 0.0))
                self._times[key] = (sums[0] + transfer, sums[1] + seconds - transfer)

    def times(self, rank: int, op: str) -> tuple[float | None, float | None]:
        """Seconds that `rank` spent on transfer and on waiting in operation `op`; both None if nothing was timed."""
        return self._times.get((rank, op), (None, None))

    def of_rank(self, rank: int) -> tuple[float, float] | None:
        """Seconds that `rank` spent on transfer and on waiting in all operations; None if nothing was timed."""
        found = [sums for (each, _), sums in self._times.items() if each == rank]
        return (sum(transfer for transfer, _ in found), sum(wait for _, wait in found)) if found else None

    @property
    def straggler_rank(self) -> int | None:
        """The rank for which the others waited longest, if that is most of what they waited, and enough to matter."""
        rank = self._slowest
        if rank is None or self._waited[rank] < max(sum(self._waited.values()) / 2, MARKED * self._transfer):
            return None
        return rank

    @property
    def _slowest(self) -> int | None:
        return max(self._waited, key=lambda each: self._waited[each]) if self._waited else None

    @property
    def straggler(self) -> str | None:
        """A clause on the rank for which the others waited longest in total; None if nothing was timed."""
        return self._straggler(0.0)

    def straggler_in(self, seconds: float) -> str | None:
        """Same as `straggler`, as a sentence, and with the share of a cell of `seconds` for which they waited."""
        clause = self._straggler(seconds)
        return clause and f"{clause[0].upper()}{clause[1:]}."

    def _straggler(self, seconds: float) -> str | None:
        """The clause, without a share if `seconds` is 0 or the share is below 1%."""
        rank = self._slowest
        if rank is None:
            return None
        calls, waited = self._last[rank], self._waited[rank]
        share = min(1.0, waited / seconds) if seconds > 0 else 0.0
        of_cell = f" ({share:.0%} of the cell)" if share >= 0.01 else ""
        in_all, longest = (
            (" in all", f", {seconds_text(self._longest[rank])} at the longest") if calls > 1 else ("", "")
        )
        last = f"rank {rank} was last in {calls} of {self.calls} timed calls"
        return f"{last}; the others waited {seconds_text(waited)} for it{in_all}{of_cell}{longest}"
