"""The message about ranks that still run a stopped cell: what they do, for how long, and what to type."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from allranks.head.state.shared_advice import continue_text, kill_text
from allranks_backends.plan import rank_label
from allranks_backends.views import AT_REST, RankView, Snapshot

WAITED_FOR = 120.0
"""Seconds that a cell, or a request, waits for ranks that still compute a stopped cell."""
NEXT_WAITS = f"nothing is lost, and the next cell waits for up to {WAITED_FOR / 60:g} min"
IS_AWAY = "{they} will be interrupted when {they} {are} reached again. Nothing is lost"
IS_SUSPENDED = "{their} process is suspended: continue it with {cont}. {They} will be interrupted then"
IS_SILENT = (
    "{they} {have} reported nothing for {silent} s: the machine is very busy, a call does not release Python's GIL, or "
    "the connection is slow. The interrupt was sent and takes effect when {they} {respond}"
)
CANNOT = (
    "{they} {were} interrupted, but a call of MLX or C cannot be interrupted, nor can code that catches the stop. "
    "The cell ends when that does"
)
COMPUTES = f"{CANNOT}, {NEXT_WAITS}"
COMPUTES_IN_BROKEN = f"{CANNOT}. Then %distributed heal replaces what has died"
WAS_ABORTED = "{their} collectives were aborted. The cell ends in a moment: run the next cell, which waits for that"
ENDS = "the cell ends in a moment: run the next cell, which waits for that"
IS_TRIED = "unblocking {them} goes on{seconds}: run the next cell, which waits for that"
NEIGHBOUR_DIED = "{they} {wait} for a rank that has died. %distributed heal replaces it and ends the wait"
STUCK = "interrupting did not help. To replace {them}: {kill}"
_ONE = {
    "they": "it",
    "They": "It",
    "them": "it",
    "their": "its",
    "are": "is",
    "were": "was",
    "have": "has",
    "respond": "responds",
    "wait": "waits",
}
_SEVERAL = {each: each for each in _ONE}


def still_busy(
    snapshot: Snapshot,
    left: Sequence[int],
    *,
    after: float,
    abortable: bool,
    aborted: Collection[int] = (),
    tried_for: float | None = None,
) -> str:
    """``Still busy after 2 s: rank 1 running line 5: mx.eval(x). It was interrupted, but a call of MLX or C …``.

    `--kill` is advised only for ranks that are known to run the user's code and for which nothing is tried any more.

    `after`: seconds since these ranks were interrupted; `abortable`: whether blocked collectives of this world can be
    aborted; `aborted`: the ranks on which one was.
    `tried_for`: seconds for which missing ranks will go on entering the collectives to complete them; infinite if the
    time is not known, None if no rank enters them.
    """
    died = any(view.state == "dead" for view in snapshot.ranks)

    def goes_on(view: RankView) -> str:
        if view.away is not None:
            return IS_AWAY
        if view.suspended:
            return IS_SUSPENDED
        if view.silent is not None:
            return IS_SILENT if died else f"{IS_SILENT}; {NEXT_WAITS}"
        if view.state in AT_REST:
            return ENDS
        if view.state == "waiting" and died:
            return NEIGHBOUR_DIED
        if abortable and (view.rank in aborted or view.state == "waiting"):
            return WAS_ABORTED
        if view.state == "running":
            return COMPUTES_IN_BROKEN if died else COMPUTES
        return STUCK if tried_for is None else IS_TRIED

    groups: dict[str, list[int]] = {}
    for rank in left:
        groups.setdefault(goes_on(snapshot.ranks[rank]), []).append(rank)
    seconds = "" if tried_for is None or math.isinf(tried_for) else f" for another {tried_for:.0f} s"
    said = []
    for what, ranks in groups.items():
        words = _ONE if len(ranks) == 1 else _SEVERAL
        views = [snapshot.ranks[rank] for rank in ranks]
        silent = min(view.silent or 0 for view in views)
        text = what.format(kill=kill_text(ranks), cont=continue_text(views), silent=silent, seconds=seconds, **words)
        said.append(f"{rank_label(ranks).capitalize()}: {text}" if len(groups) > 1 else text[0].upper() + text[1:])
    return f"Still busy after {after:.0f} s: {snapshot.doing(left)}. {'. '.join(said)}."
