"""Answers requests of the notebook's front end about names on the ranks: completions, and what a name is."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from allranks.head.world.ranks import A
from allranks.lifeline.open_questions import RequestFailed
from allranks.messages.requests import Complete, Inspect, Question

from .live_ranks import LiveRanks

ANSWER_WITHIN = 1.0
"""Seconds that a front end waits for completions before it shows only the notebook's own."""


def complete(live: LiveRanks, code: str, cursor: int) -> dict[str, Any] | None:
    """See `Cluster.complete`."""
    found = _ask_one(live, Complete(code, cursor))
    return structs.asdict(found) if found is not None else None


def inspect(live: LiveRanks, name: str, detail: int) -> dict[str, str] | None:
    """See `Cluster.inspect`."""
    answer = _ask_one(live, Inspect(name, detail))
    return answer.found if answer is not None else None


def _ask_one(live: LiveRanks, question: Question[A]) -> A | None:
    ranks = live.ranks
    rank = next((rank for rank in ranks.monitor.alive() if rank.ready), None) if ranks is not None else None
    if ranks is None or rank is None:
        return None
    try:
        return ranks.lifeline.ask(rank.uuid, question).result(ANSWER_WITHIN).answer
    except (TimeoutError, ConnectionError, RequestFailed):
        return None
