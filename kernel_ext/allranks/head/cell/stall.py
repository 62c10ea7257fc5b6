"""Reports why ranks of a cell do not go on.

Ranks may be blocked in a collective that others have not entered, or wait for a compiler. Their process may be stopped,
or their host out of reach.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from allranks.head.state.known_rank import SILENT_AFTER
from allranks_backends.views import NOT_RESPONDING, Collective, RankView, Snapshot

from .absent_ranks import EndedRank, missing
from .agreement import disagreement
from .stalled_links import report, together

STALL_AFTER = 2.0
"""Seconds a rank waits in a collective before the missing ranks are named."""
COMPILING_AFTER = 5.0
"""Seconds a rank waits for a compiler before that is reported."""
AWAY_AFTER = 2
"""Whole seconds that a host is out of reach before that is reported: a new login takes one."""
AFTER_FAILURE = 2.0
"""Seconds after a failure before the ranks that wait for the failed one are named and unblocked."""
AFTER_DEATH = 0.3
"""Seconds after a death before the ranks that wait for the dead rank are named and unblocked: it never enters late."""


@dataclass(frozen=True)
class CellFinding:
    """A message about some ranks of a cell."""

    ranks: tuple[int, ...]
    text: str


@dataclass
class StallWatch:
    """Finds stalls of one cell, and remembers what it has reported."""

    ranks: Sequence[int]
    stopping: bool = False
    """Whether the user or a timeout is stopping the cell, or the user has had its ranks unblocked."""
    began: float = field(default_factory=time.monotonic)
    """The `time.monotonic` at which the cell began."""
    _together: Collective | None = None
    """The last collective that all ranks were seen in."""
    _said: set[tuple[int, str]] = field(default_factory=set)

    def look(
        self, snapshot: Snapshot, ended: Mapping[int, EndedRank], since_failure: float | None
    ) -> tuple[list[CellFinding], list[int]]:
        """Return new findings, and the ranks to unblock because their wait is hopeless.

        `since_failure`: seconds since the first rank failed, None while none has.
        """
        views = {rank: snapshot.ranks[rank] for rank in self.ranks if rank not in ended}
        findings = [self._silent(view) for view in views.values() if self._is_silent(view)]
        findings += self._away(views.values())
        findings.append(self._compiling(views.values()))
        grace = AFTER_DEATH if any(each.dead for each in ended.values()) else AFTER_FAILURE
        hopeless = since_failure is not None and since_failure >= grace
        waiting = [view for view in views.values() if view.state == "waiting"]
        disagree = None if hopeless else self._disagreement(waiting, snapshot)
        # If all ranks wait, the disagreement already says where.
        if disagree is None or any(view.state != "waiting" for view in views.values()):
            findings += [
                self._stalled(group, snapshot, ended)
                for group in _by_place(waiting)
                if hopeless or max(view.since or 0.0 for view in group) >= STALL_AFTER
            ]
        findings.append(self._told(disagree) if disagree is not None else self._stuck(snapshot))
        lost = {view.rank for view in waiting} if hopeless or disagree is not None else set()
        lost |= self._left_to_tasks(views, snapshot, ended)
        # Repeated every second: a rank may have gone on to the next collective just before it was to be unblocked.
        unblocked = [rank for rank in sorted(lost) if self._first(rank, f"unblocked {since_failure or 0.0:.0f}")]
        return [finding for finding in findings if finding is not None], unblocked

    def was_told(self, disagreement: str | None) -> bool:
        """Whether this disagreement was reported while the cell ran."""
        return (-1, disagreement) in self._said

    def _told(self, disagreement: str) -> CellFinding | None:
        return CellFinding(tuple(self.ranks), disagreement) if self._first(-1, disagreement) else None

    def _disagreement(self, waiting: list[RankView], snapshot: Snapshot) -> str | None:
        """Return how ranks disagree about a collective in which some wait, which can never complete correctly.

        None if they do not disagree.
        """
        long = [
            view
            for view in waiting
            if view.collective and view.collective.shared and (view.since or 0.0) >= STALL_AFTER
        ]
        if not long:
            return None
        number = max(view.collective.number for view in long if view.collective)
        entered = {rank: snapshot.ranks[rank].collective for rank in self.ranks}
        same = {rank: each for rank, each in entered.items() if each and each.shared and each.number == number}
        return disagreement(same)

    def _left_to_tasks(
        self, views: Mapping[int, RankView], snapshot: Snapshot, ended: Mapping[int, EndedRank]
    ) -> set[int]:
        """Return ranks that cannot begin the cell, since a task waits in a collective that no other rank will enter."""
        open_ = [view for view in views.values() if view.in_task and (view.since or 0.0) >= STALL_AFTER]
        others = [view for view in snapshot.ranks if view.rank not in views]
        alone = not any(view.tasks or view.state in ("running", "waiting") for view in others)
        return {view.rank for view in open_} if ended and len(open_) == len(views) and alone else set()

    def _stuck(self, snapshot: Snapshot) -> CellFinding | None:
        """Report if all ranks are in one collective and nothing moves."""
        collective = together(snapshot, self.ranks)
        if collective is None:
            return None
        self._together = collective
        text = report(snapshot, collective)
        return CellFinding(tuple(self.ranks), text) if text and self._first(-2, str(collective)) else None

    def _compiling(self, views: Iterable[RankView]) -> CellFinding | None:
        """Report ranks that wait for a compiler: if all ranks do, that looks like a hang."""
        found = [view for view in views if view.compiler and (view.compiling or 0) >= COMPILING_AFTER]
        new = [view for view in found if self._first(view.rank, f"compiles line {view.line}")]
        if not new:
            return None
        line = f" for line {new[0].line}" if new[0].line else ""
        text = f"{new[0].compiler} has been compiling{line} for {new[0].compiling} s: the first call makes the kernels"
        return CellFinding(tuple(view.rank for view in new), text)

    def _away(self, views: Iterable[RankView]) -> list[CellFinding]:
        """Report hosts that cannot be reached, and hosts that are reached again."""
        findings = []
        for host, members in _by_host(views).items():
            away, numbers = members[0].away, tuple(view.rank for view in members)
            if away is not None and away >= AWAY_AFTER and self._first(numbers[0], f"away {host}"):
                text = f"{host} is out of reach; its ranks go on, and their output comes when it is back"
                findings.append(CellFinding(numbers, text))
            elif away is None and (numbers[0], f"away {host}") in self._said:
                self._said.discard((numbers[0], f"away {host}"))
                findings.append(CellFinding(numbers, f"{host} is reached again"))
        return findings

    def _is_silent(self, view: RankView) -> bool:
        """Whether the rank does not respond. One that was silent already when the cell began gets some seconds to."""
        if view.state not in NOT_RESPONDING or view.away is not None:
            return False
        return view.state == "suspended" or time.monotonic() - self.began >= SILENT_AFTER

    def _silent(self, view: RankView) -> CellFinding | None:
        if not self._first(view.rank, "silent"):
            return None
        why = f"its process is suspended (to continue it: kill -CONT {view.pid} on {view.host})"
        why = why if view.suspended else "a call holds Python's GIL, or its host is unreachable"
        return CellFinding((view.rank,), f"is not responding: {why}")

    def _stalled(self, group: list[RankView], snapshot: Snapshot, ended: Mapping[int, EndedRank]) -> CellFinding | None:
        here, waits_in = {view.rank for view in group}, group[0].collective
        if self.stopping and _is_same(self._together, waits_in):
            return None  # ranks that have left the collective were unblocked from it
        absent = missing(here, snapshot, ended, self.ranks)
        new = [view.rank for view in group if absent and self._first(view.rank, str(view.collective))]
        if not new:
            return None
        task = group[0].in_task
        blocked = f"an asyncio task of an earlier cell is blocked in {waits_in}" if task else f"blocked in {waits_in}"
        return CellFinding(tuple(sorted(new)), f"{blocked}: {absent}")

    def _first(self, rank: int, what: str) -> bool:
        new = (rank, what) not in self._said
        self._said.add((rank, what))
        return new


def _by_host(views: Iterable[RankView]) -> dict[str, list[RankView]]:
    hosts: dict[str, list[RankView]] = {}
    for view in views:
        hosts.setdefault(view.host, []).append(view)
    return hosts


def _by_place(views: list[RankView]) -> list[list[RankView]]:
    groups: dict[str, list[RankView]] = {}
    for view in views:
        groups.setdefault(str(view.collective), []).append(view)
    return list(groups.values())


def _is_same(one: Collective | None, other: Collective | None) -> bool:
    if one is None or other is None:
        return one is other
    return other.shared and one.number == other.number
