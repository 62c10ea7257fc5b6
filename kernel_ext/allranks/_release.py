"""Free ranks from a collective that cannot be broken, by having the missing ranks come after all.

MPI, JACCL and NCCL offer no way to make a blocked call raise. But ranks that never came can enter the missing
collectives with zeros of the recorded shape and dtype, in the ledger's order: then the blocked ranks return, the SIGINT
that waits for them is delivered, and the world stays whole. What they computed is void, so the cell fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from ._known_rank import Rank
from ._lifeline import Lifeline
from ._monitor import Monitor

RECORDS_WITHIN = 0.5
"""Seconds a waiting rank's agent gets to say what it waits for."""


class Release:
    """Called again and again while ranks wait: a rank that is let go may be missing in the next collective."""

    def __init__(self, monitor: Monitor, lifeline: Lifeline) -> None:
        self._monitor, self._lifeline = monitor, lifeline
        self._settled: set[int] = set()

    def step(self, waiting: Sequence[int]) -> None:
        """Have every idle rank that lags behind the `waiting` ones enter what it missed."""
        ranks = self._monitor.ranks
        if not waiting:
            return
        leader = max((ranks[number] for number in waiting), key=lambda rank: rank.seq)
        for rank in self._monitor.alive():
            if rank.cell is not None or rank.replaying:
                continue
            if rank.seq < leader.seq:
                self._replay(rank, leader)
            elif rank.rank not in self._settled:
                # It asked for the collective but never evaluated it.
                self._settled.add(rank.rank)
                self._have(rank, {"do": "settle"})

    def _replay(self, rank: Rank, leader: Rank) -> None:
        try:
            header, _ = self._lifeline.ask(leader.uuid, {"do": "records", "after": rank.seq}).result(RECORDS_WITHIN)
        except (TimeoutError, ConnectionError):
            return
        self._have(rank, {"do": "replay", "records": header["records"]})

    def _have(self, rank: Rank, order: dict[str, Any]) -> None:
        """Have an idle rank enter collectives; it is busy until it is through."""
        rank.replaying = True

        def note(answer: Future[tuple[dict[str, Any], list[Any]]]) -> None:
            rank.replaying = False
            if answer.exception() is None:
                rank.seq = answer.result()[0].get("seq", rank.seq)

        self._lifeline.ask(rank.uuid, order).add_done_callback(note)
