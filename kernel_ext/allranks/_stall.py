"""Who waits for whom: what a cell says, unasked, when ranks stand in a collective that others have not entered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from allranks_backends._plan import RankView, Snapshot, rank_label

from ._agreement import disagreement

STALL_AFTER = 2.0
"""Seconds a rank waits in a collective before the missing ones are named."""
AFTER_FAILURE = 2.0
"""Seconds after a failure before the ranks that wait for the failed one are named and freed."""
AFTER_DEATH = 0.3
"""The same after a death: a dead rank will not come late."""


@dataclass(frozen=True)
class Ended:
    """A rank that is done with the cell."""

    how: str
    """``finished the cell``, ``raised ValueError: boom (line 3)``, ``is dead (killed by SIGKILL)``."""
    failed: bool
    dead: bool = False
    came: bool = False
    """It stood in the collective before it was freed."""


@dataclass(frozen=True)
class Finding:
    """One thing to say: about these ranks, in these words."""

    ranks: tuple[int, ...]
    text: str


@dataclass
class StallWatch:
    """Remembers what it has said about one cell."""

    ranks: Sequence[int]
    _said: set[tuple[int, str]] = field(default_factory=set)

    def look(
        self, snapshot: Snapshot, ended: Mapping[int, Ended], since_failure: float | None
    ) -> tuple[list[Finding], list[int]]:
        """New findings, and the ranks to be freed because what they wait for has failed.

        `since_failure`: seconds since the first rank failed, None while none has.
        """
        views = {rank: snapshot.ranks[rank] for rank in self.ranks if rank not in ended}
        findings = [self._silent(view) for view in views.values() if view.state == "stopped"]
        grace = AFTER_DEATH if any(each.dead for each in ended.values()) else AFTER_FAILURE
        hopeless = since_failure is not None and since_failure >= grace
        waiting = [view for view in views.values() if view.state == "waiting"]
        findings += [
            self._stalled(group, snapshot, ended)
            for group in _by_place(waiting)
            if hopeless or max(view.since or 0.0 for view in group) >= STALL_AFTER
        ]
        lost = {view.rank for view in waiting} if hopeless else self._disagreeing(waiting, snapshot, findings)
        # Again every second: a rank may just have left one collective for the next when it was to be freed.
        free = [rank for rank in sorted(lost) if self._first(rank, f"freed {since_failure or 0.0:.0f}")]
        return [finding for finding in findings if finding is not None], free

    def _disagreeing(self, waiting: list[RankView], snapshot: Snapshot, findings: list[Finding | None]) -> set[int]:
        """Ranks that wait in a collective which others entered as another one; it can never complete rightly."""
        long = [view for view in waiting if view.collective and (view.since or 0.0) >= STALL_AFTER]
        if not long:
            return set()
        seq = max(view.collective.seq for view in long if view.collective)
        entered = {rank: snapshot.ranks[rank].collective for rank in self.ranks}
        same = {rank: each for rank, each in entered.items() if each is not None and each.seq == seq}
        said = disagreement(same)
        if said is None:
            return set()
        if self._first(-1, said):
            findings.append(Finding(tuple(self.ranks), said))
        return {view.rank for view in waiting}

    def _silent(self, view: RankView) -> Finding | None:
        if not self._first(view.rank, "silent"):
            return None
        return Finding((view.rank,), "does not answer: its process is stopped, or its host is out of reach")

    def _stalled(self, group: list[RankView], snapshot: Snapshot, ended: Mapping[int, Ended]) -> Finding | None:
        here = {view.rank for view in group}
        missing = _missing(here, snapshot, ended, self.ranks)
        if not missing or not self._news(group):
            return None
        return Finding(tuple(sorted(here)), f"waiting in {group[0].collective}; {missing}")

    def _news(self, group: list[RankView]) -> bool:
        return any([self._first(view.rank, str(view.collective)) for view in group])  # noqa: C419, each is to be marked

    def _first(self, rank: int, what: str) -> bool:
        new = (rank, what) not in self._said
        self._said.add((rank, what))
        return new


def _by_place(views: list[RankView]) -> list[list[RankView]]:
    groups: dict[str, list[RankView]] = {}
    for view in views:
        groups.setdefault(str(view.collective), []).append(view)
    return list(groups.values())


def _missing(here: set[int], snapshot: Snapshot, ended: Mapping[int, Ended], ranks: Sequence[int]) -> str:
    """``rank 2 raised ValueError: boom (line 3); rank 1 is running line 9: time.sleep(100)``."""
    seq = max((view.collective.seq for view in snapshot.ranks if view.rank in here and view.collective), default=0)
    kind = _kind(snapshot.ranks[min(here)])
    told: dict[str, list[int]] = {}
    for view in snapshot.ranks:
        if view.rank in here:
            continue
        if view.rank in ended:
            other = view.collective
            # Those that raised only because their neighbour was lost did come.
            if other is not None and other.seq == seq and other.shared and _kind(view) != kind:
                told.setdefault(f"entered {other} instead", []).append(view.rank)
            elif ended[view.rank].failed or not (ended[view.rank].came or _came(view, seq)):
                told.setdefault(f"never came: it {ended[view.rank].how}", []).append(view.rank)
            elif not ended[view.rank].came:
                told.setdefault("asked for it but ended the cell without evaluating it", []).append(view.rank)
        elif view.rank not in ranks:
            other_cell = view.state not in ("idle", "failed")
            what = f"it is {view.doing}" if other_cell else "stop it, and run it on all ranks"
            told.setdefault(f"is not part of this cell: {what}", []).append(view.rank)
        elif view.state == "waiting" and _came(view, seq) and _kind(view) != kind:
            told.setdefault(f"has come to another collective: it is {view.doing}", []).append(view.rank)
        elif not (view.state == "waiting" and _came(view, seq)):
            told.setdefault(f"has not come: it is {view.doing}", []).append(view.rank)
    return "; ".join(f"{rank_label(members)} {_plural(what, members)}" for what, members in told.items())


def _kind(view: RankView) -> tuple[object, ...]:
    each = view.collective
    return (each.op, each.shape, each.dtype) if each is not None else ()


def _came(view: RankView, seq: int) -> bool:
    return view.collective is not None and view.collective.seq >= seq


def _plural(what: str, ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return what
    for one, several in PLURALS.items():
        if what.startswith(one):
            return several + what.removeprefix(one)
    return what


PLURALS = {
    "never came: it ": "never came: they ",
    "has not come: it is ": "have not come: they are ",
    "has come to another collective: it is ": "have come to another collective: they are ",
    "is not part of this cell: it is ": "are not part of this cell: they are ",
    "is not part of this cell": "are not part of this cell",
}
"""How what is said of one rank begins, and how when it is said of several: what follows may be the user's own words."""
