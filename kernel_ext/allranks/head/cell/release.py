"""Unblock ranks from a collective that cannot be aborted, by having the missing ranks enter it after all.

MPI, JACCL and NCCL offer no way to make a blocked call raise. But ranks that never entered can enter the missing
collectives with NaN (see `rank.collectives.poison`) of the recorded shape and dtype, in the ledger's order: then the
blocked ranks return, the SIGINT that waits for them is delivered, and the world stays whole. What they computed is
invalid, so the cell fails; all of its ranks are told so before, since user code may swallow the signal.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, wait

from allranks.head.state.known_rank import Rank
from allranks.head.state.monitor import Monitor
from allranks.messages.lifeline import Lifeline
from allranks.messages.questions import Reply, RequestFailed
from allranks.messages.requests import Abort, Entered, EnterMissed, LedgerSince, Question, Settle

RECORDS_WITHIN = 0.5
"""Seconds a rank's agent gets to say what it waits for, or that it knows of the abort."""


class Release:
    """Called repeatedly while ranks wait: a rank that is unblocked may be missing in the next collective."""

    def __init__(
        self,
        cell: int,
        monitor: Monitor,
        lifeline: Lifeline,
        on_invalid: Callable[[int, Sequence[str]], None] = lambda _rank, _names: None,
    ) -> None:
        """`on_invalid` takes a rank that has entered collectives, and names that are invalid since."""
        self._cell, self._monitor, self._lifeline, self._on_invalid = cell, monitor, lifeline, on_invalid
        self._asked: list[Future[Reply[Entered]]] = []
        self._settled: set[int] = set()
        self._told: set[int] = set()
        """Ranks that know that collectives of the cell are aborted."""

    def step(self, waiting: Sequence[int], running: Collection[int]) -> None:
        """Have every idle rank that lags behind the `waiting` ones enter what it missed.

        `running` are all that are still at the cell.
        """
        ranks = self._monitor.ranks
        if not waiting:
            return
        leader = max((ranks[number] for number in waiting), key=lambda rank: rank.entered)
        self._abort([ranks[number] for number in running], leader.entered)
        for rank in self._monitor.alive():
            if rank.cell is not None or rank.replaying:
                continue
            if rank.entered < leader.entered:
                self._replay(rank, leader)
            elif rank.rank not in self._settled:
                # It asked for the collective but never evaluated it.
                self._settled.add(rank.rank)
                self._have(rank, Settle())

    def _abort(self, running: Sequence[Rank], newest: int) -> None:
        """Tell all that are still at the cell, once, before anything is entered that they take for a result."""
        untold = [rank for rank in running if rank.rank not in self._told]
        answers = [self._lifeline.ask(rank.uuid, Abort(self._cell, newest)) for rank in untold]
        self._told |= {rank.rank for rank in untold}
        wait(answers, RECORDS_WITHIN)

    def _replay(self, rank: Rank, leader: Rank) -> None:
        try:
            missed = self._lifeline.ask(leader.uuid, LedgerSince(rank.entered)).result(RECORDS_WITHIN).answer
        except (TimeoutError, ConnectionError, RequestFailed):
            return
        self._have(rank, EnterMissed(missed.entries))

    def _have(self, rank: Rank, request: Question[Entered]) -> None:
        """Have an idle rank enter collectives; it is busy until it is through."""
        self._monitor.begins_replay(rank)

        def note(answer: Future[Reply[Entered]]) -> None:
            entered: int | None = None
            try:
                if answer.exception() is None:
                    entered, invalid = answer.result().answer.entered, answer.result().answer.invalid
                    self._on_invalid(rank.rank, invalid)
            finally:
                self._monitor.ends_replay(rank, entered)

        self._asked.append(self._lifeline.ask(rank.uuid, request))
        self._asked[-1].add_done_callback(note)

    def wait(self) -> None:
        """Until those that enter collectives are through, for a moment."""
        wait(self._asked, RECORDS_WITHIN)
