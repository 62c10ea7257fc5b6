"""Says why a rank is not in the collective in which others wait."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from allranks_backends.plan import rank_label
from allranks_backends.views import AT_REST, NOT_RESPONDING, Collective, RankView, Snapshot
from allranks_widgets.status import human_bytes

SWAPS = 1e6
"""Bytes a second from which swapping is named as a cause."""


@dataclass(frozen=True)
class EndedRank:
    """A rank that is done with the cell."""

    how: str
    """``finished the cell``, ``raised ValueError: boom (line 3)``, ``died: killed by SIGKILL``."""
    failed: bool
    dead: bool = False
    came: bool = False
    """Whether the rank had entered the collective before it was unblocked."""
    settled: int = 0
    """The rank has evaluated all collectives up to this number, as far as is known."""


@dataclass(frozen=True)
class Absence:
    """A reason why a rank is not in the collective in which others wait."""

    one: str
    """The text for one rank; a detail, which may be the user's own words, replaces ``{}``."""
    several: str | None = None
    """The text for several ranks, if it differs."""

    def of(self, ranks: Sequence[int], detail: str) -> str:
        """Return the text for these ranks, with `detail` filled in."""
        return (self.one if len(ranks) == 1 else self.several or self.one).format(detail)


ENTERED_ANOTHER = Absence("entered {} instead")
NEVER_ENTERED = Absence("never entered it; it {}", "never entered it; they {}")
COMPLETED = Absence(
    "has completed it, but what it sent may not have arrived",
    "have completed it, but what they sent may not have arrived",
)
NOT_EVALUATED = Absence("called it but finished the cell without evaluating it")
NOT_ASKED = Absence(
    "is not part of this cell: interrupt the cell and run it on all ranks",
    "are not part of this cell: interrupt the cell and run it on all ranks",
)
ELSEWHERE = Absence("is not part of this cell ({})", "are not part of this cell ({})")
AT_ANOTHER = Absence("is {} instead", "are {} instead")
NOT_YET = Absence("has not entered it yet ({})", "have not entered it yet ({})")
NOT_SENT_YET = Absence("has not sent it yet ({})")
NOT_RECEIVED_YET = Absence("has not received it yet ({})")
DOES = Absence("{}")
A_SEND_IS_LAZY = "a send takes place when its result is evaluated"
GROUP_UNKNOWN = "which ranks make up that smaller group is not known here"


def missing(here: set[int], snapshot: Snapshot, ended: Mapping[int, EndedRank], ranks: Sequence[int]) -> str:
    """``rank 2 raised ValueError: boom (line 3); rank 1 is running line 9: time.sleep(100)``.

    Describes the ranks missing from the collective in which the ranks `here` wait; `ranks` take part in the cell.
    """
    waits_in = snapshot.ranks[min(here)].collective
    if waits_in is not None and not waits_in.shared:
        return _missing_peer(waits_in, here, snapshot, ended, ranks)
    number, kind = waits_in.number if waits_in else 0, _kind(waits_in)
    told: dict[tuple[Absence, str], list[int]] = {}
    for view in snapshot.ranks:
        if view.rank in here:
            continue
        if view.rank in ended:
            found = _of_ended(view, ended[view.rank], number, kind)
        elif view.rank not in ranks:
            found = _elsewhere(view)
        elif view.state != "waiting" or view.entered < number:
            found = NOT_YET, _doing(view)
        else:
            found = (AT_ANOTHER, view.doing) if _kind(view.collective) != kind else None
        if found:
            told.setdefault(found, []).append(view.rank)
    said = [f"{rank_label(ranks)} {absence.of(ranks, detail)}" for (absence, detail), ranks in told.items()]
    away = [snapshot.ranks[rank] for each in told.values() for rank in each]
    return "; ".join([*said, *_troubles(snapshot, away)])


def _troubles(snapshot: Snapshot, ranks: Sequence[RankView]) -> Iterator[str]:
    """Yield, as clauses, the causes that slow down the hosts and GPUs of these ranks."""
    names = {view.host for view in ranks}
    for host in snapshot.hosts:
        if host.name not in names:
            continue
        if (host.swap_rate or 0.0) >= SWAPS:
            yield f"{host.name} is short of memory and swaps {human_bytes(host.swap_rate or 0.0)}/s"
        if host.throttled:
            yield f"{host.name} is too hot and runs slower"
        here = (view for view in ranks if view.host == host.name and view.gpu is not None)
        if hot := [view.rank for view in here if view.gpu and view.gpu.throttled]:
            yield f"the GPU of {rank_label(hot)} on {host.name} is too hot and runs slower"


def _of_ended(view: RankView, ended: EndedRank, number: int, kind: tuple[object, ...]) -> tuple[Absence, str] | None:
    """Return why a rank that is done with the cell is missing; None if it was unblocked from this collective."""
    other = view.collective
    if other is not None and other.shared and other.number == number and _kind(other) != kind:
        return ENTERED_ANOTHER, str(other)
    if ended.failed or not (ended.came or view.entered >= number):
        return NEVER_ENTERED, ended.how
    if ended.settled >= number:
        return COMPLETED, ""
    return None if ended.came else (NOT_EVALUATED, "")


def _missing_peer(
    waits_in: Collective, here: set[int], snapshot: Snapshot, ended: Mapping[int, EndedRank], ranks: Sequence[int]
) -> str:
    """Describe the peer of a ``send`` or ``recv``; if the peer is not known, all ranks that are not `here`."""
    known = [view for view in snapshot.ranks if view.rank == waits_in.peer]
    told = []
    for view in known or [view for view in snapshot.ranks if view.rank not in here]:
        if view.rank in ended:
            how = ended[view.rank].how
            lazy = not ended[view.rank].failed and waits_in.op != "send" and waits_in.peer is not None
            absence, detail = DOES, f"{how}; {A_SEND_IS_LAZY}" if lazy else how
        elif view.rank not in ranks:
            absence, detail = _elsewhere(view)
        elif view.state == "waiting" or not known:
            absence, detail = DOES, f"is {view.doing}"
        else:
            absence, detail = NOT_RECEIVED_YET if waits_in.op == "send" else NOT_SENT_YET, _doing(view)
        told.append(f"{rank_label([view.rank])} {absence.of([view.rank], detail)}")
    return "; ".join(told if known else [GROUP_UNKNOWN, *told])


def _doing(view: RankView) -> str:
    """Return what a rank does and where; if its line is not known, why."""
    if view.away is not None:
        return view.doing
    why = "its process is suspended" if view.suspended else f"nothing reported for {view.silent} s"
    if view.state in NOT_RESPONDING:
        seen = f"last seen at line {view.line}" + (f": {view.source}" if view.source else "")
        return f"{seen if view.line else 'location not known'}; {why}"
    if view.doing != "running":
        return view.doing
    if view.silent is None and not view.begun:
        return "yet to begin the cell"
    return f"running; location not known: {why if view.silent is not None else 'it has not reported one yet'}"


def _elsewhere(view: RankView) -> tuple[Absence, str]:
    """Return why a rank that did not get the cell is missing."""
    return (NOT_ASKED, "") if view.state in AT_REST else (ELSEWHERE, view.doing)


def _kind(each: Collective | None) -> tuple[object, ...]:
    return (each.op, each.shape, each.dtype) if each is not None else ()
