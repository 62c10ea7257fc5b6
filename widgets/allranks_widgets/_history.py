"""The past of the throughput chart: ten minutes of rates and states, one row a second, sent as columns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypedDict

from allranks_backends.views import RankView, Snapshot

from .status import state_word

SECONDS = 600
MOST_LINKS = 128
"""With more links than this, the rates of single links are not stored."""
LETTERS = {
    "planned": " ",
    "starting": "s",
    "idle": "i",
    "running": "r",
    "exchanging": "e",
    "waiting": "w",
    "debugging": "b",
    "failed": "f",
    "unblocked": "u",
    "suspended": "t",
    "silent": " ",
    "dead": "d",
}
"""The letter of each state of a rank, as in ``rank_states.js``; a blank means that nothing is known."""


class Columns(TypedDict):
    """Lists with an item for each second, and lists of such lists. Rates are bytes a second; None means unknown."""

    at: list[float]
    """Unix seconds."""
    wire: list[int | None]
    """Rate at which a rank sent, averaged over all ranks."""
    peak: list[float | None]
    ranks: list[list[int | None]]
    link_names: list[str]
    links: list[list[int | None]]
    """Rates by link, in the order of ``link_names``."""
    states: list[str]
    """The states of the ranks in each second: one of `LETTERS` for each rank, in their order."""


class _Row(NamedTuple):
    at: float
    wire: int | None
    peak: float | None
    effective: dict[int, int | None]
    links: dict[tuple[int, int], int | None]
    states: str


class RateHistory:
    """Receives every Snapshot shown, and keeps the rates of the last Snapshot of each second, up to `SECONDS` rows."""

    def __init__(self) -> None:
        self._rows: dict[int, _Row] = {}

    def add(self, snapshot: Snapshot) -> None:
        self._rows.pop(int(snapshot.at), None)
        self._rows[int(snapshot.at)] = _row(snapshot)
        while len(self._rows) > SECONDS:
            self._rows.pop(next(iter(self._rows)))

    def replace(self, snapshots: Iterable[Snapshot]) -> None:
        self._rows.clear()
        for snapshot in sorted(snapshots, key=lambda one: one.at):
            self.add(snapshot)

    def columns(self) -> Columns:
        rows = sorted(self._rows.values(), key=lambda row: row.at)
        size = 1 + max((rank for row in rows for rank in row.effective), default=-1)
        ends = sorted({end for row in rows for end in row.links})
        return {
            "at": [round(row.at, 2) for row in rows],
            "wire": [row.wire for row in rows],
            "peak": [row.peak for row in rows],
            "ranks": [[row.effective.get(rank) for row in rows] for rank in range(size)],
            "link_names": [f"{source} → {target}" for source, target in ends],
            "links": [[row.links.get(end) for row in rows] for end in ends],
            "states": [row.states for row in rows],
        }


def _row(snapshot: Snapshot) -> _Row:
    known = [view.rate for view in snapshot.links if view.rate is not None]
    few = len(snapshot.links) <= MOST_LINKS
    return _Row(
        snapshot.at,
        round(sum(known) / max(1, len(snapshot.ranks))) if known else None,
        snapshot.peak,
        {rank.rank: _whole(rank.effective) for rank in snapshot.ranks},
        {(view.link.source, view.link.target): _whole(view.rate) for view in snapshot.links} if few else {},
        _letters(snapshot.ranks),
    )


def _letters(ranks: Iterable[RankView]) -> str:
    """Return a letter for each rank up to the largest one; a world that changes may lack some in between.

    It is a blank for a rank that does not report: what it last reported may no longer be so.
    """
    known = {view.rank: LETTERS[state_word(view)] if _is_heard(view) else " " for view in ranks}
    return "".join(known.get(rank, " ") for rank in range(1 + max(known, default=-1)))


def _is_heard(view: RankView) -> bool:
    return view.away is None and view.silent is None


def _whole(rate: float | None) -> int | None:
    return None if rate is None else round(rate)
