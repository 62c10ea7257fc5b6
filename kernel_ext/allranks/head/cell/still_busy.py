"""The message about ranks that still run a stopped cell: what they do, for how long, and what to type."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from allranks.head.state.shared_advice import kill_text
from allranks_backends.plan import rank_label
from allranks_backends.views import AT_REST, RankView, Snapshot

WAITED_FOR = 120.0
"""Seconds that a cell, or a request, waits for ranks that still compute a stopped cell."""
IS_AWAY = "the cell is stopped there when {they} {are} reached again. To replace {them} now: {kill}"
IS_STOPPED = "{they} {do} not respond: the process is stopped, or the machine is very busy. To replace {them}: {kill}"
CANNOT = "a call of MLX or C cannot be interrupted, nor can code that catches the stop. The cell ends when that does"
COMPUTES = f"{CANNOT}, nothing is lost, and the next cell waits for up to {WAITED_FOR / 60:g} min"
COMPUTES_IN_BROKEN = f"{CANNOT}. Then %distributed heal replaces what has died"
WAS_ABORTED = "{their} collectives were aborted. The cell ends in a moment: run the next cell, which waits for that"
ENDS = "the cell ends in a moment: run the next cell, which waits for that"
IS_TRIED = "unblocking {them} goes on{seconds}: run the next cell, which waits for that"
NEIGHBOUR_DIED = "{they} {wait} for a rank that has died. %distributed heal replaces it and ends the wait"
STUCK = "interrupting did not help. To replace {them}: {kill}"
_ONE = {"they": "it", "them": "it", "their": "its", "are": "is", "do": "does", "wait": "waits"}
_SEVERAL = {"they": "they", "them": "them", "their": "their", "are": "are", "do": "do", "wait": "wait"}


def still_busy(
    snapshot: Snapshot,
    left: Sequence[int],
    *,
    abortable: bool,
    aborted: Collection[int] = (),
    tried_for: float | None = None,
) -> str:
    """``Still busy: rank 1 running line 5: mx.eval(x). A call of MLX or C cannot be interrupted, …``.

    `abortable`: whether blocked collectives of this world can be aborted; `aborted`: the ranks on which one was.
    `tried_for`: seconds for which missing ranks will go on entering the collectives to complete them; infinite if the
    time is not known, None if no rank enters them.
    """
    died = any(view.state == "dead" for view in snapshot.ranks)

    def goes_on(view: RankView) -> str:
        if view.away is not None:
            return IS_AWAY
        if view.state == "stopped":
            return IS_STOPPED
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
        text = what.format(kill=kill_text(ranks), seconds=seconds, **words)
        said.append(f"{rank_label(ranks).capitalize()}: {text}" if len(groups) > 1 else text[0].upper() + text[1:])
    return f"Still busy: {snapshot.doing(left)}. {'. '.join(said)}."
