"""What to say of ranks whose cell was stopped and that still run it: what goes on, for how long, and what to type."""

from __future__ import annotations

from collections.abc import Sequence

from allranks_backends.plan import rank_label, rank_list
from allranks_backends.views import RankView, Snapshot

WAITED_FOR = 120.0
"""Seconds that a cell, or a question, waits for ranks whose cell was stopped and that still compute."""
IS_AWAY = "their cell is stopped when they are reached again; to replace {it} now: {kill}"
COMPUTES = (
    "a call of MLX or C cannot be interrupted, nor can code that catches the stop. The cell ends when that does, "
    f"nothing is lost, and the next cell waits for up to {WAITED_FOR / 60:g} min"
)
IS_ABORTED = "their collectives are aborted, and they end in a moment: run the next cell, which waits for them"
IS_TRIED = "unblocking them is tried for another {seconds:g} s: run the next cell, which waits for them"
NEIGHBOUR_DIED = "they wait for a rank that has died: %distributed heal replaces it, and ends their wait"
STUCK = "interrupting did not help; to replace {it}: {kill}"


def still_busy(snapshot: Snapshot, left: Sequence[int], *, abortable: bool, tried_for: float | None = None) -> str:
    """``Still busy: rank 1 running line 5: mx.eval(x). A call of MLX or C cannot be interrupted, …``.

    `abortable` says whether blocked collectives of this world are aborted, `tried_for` for how many seconds their
    completion is still tried, None where it is not.
    """
    died = any(view.state == "dead" for view in snapshot.ranks)
    blocked = NEIGHBOUR_DIED if died else IS_ABORTED if abortable else STUCK if tried_for is None else IS_TRIED
    groups: dict[str, list[int]] = {}
    for rank in left:
        groups.setdefault(_goes_on(snapshot.ranks[rank], blocked), []).append(rank)
    said = []
    for what, ranks in groups.items():
        its = "its" if len(ranks) == 1 else "their"
        kill = f"%distributed heal --kill {rank_list(ranks).replace(' ', '')} (loses {its} variables)"
        text = what.format(kill=kill, it="it" if len(ranks) == 1 else "them", seconds=tried_for or 0.0)
        said.append(f"{rank_label(ranks).capitalize()}: {text}" if len(groups) > 1 else text[0].upper() + text[1:])
    return f"Still busy: {snapshot.doing(left)}. {'. '.join(said)}."


def _goes_on(view: RankView, blocked: str) -> str:
    if view.away is not None:
        return IS_AWAY
    if view.state == "running":
        return COMPUTES
    return blocked if view.state == "waiting" else STUCK
