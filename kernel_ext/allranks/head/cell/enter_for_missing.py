"""Unblocks ranks from a collective that cannot be aborted, by having the missing ranks enter it after all.

NCCL offers no way to make a blocked call raise, nor do MPI and JACCL where allranks cannot abort them. But ranks that
missed collectives can still enter them with NaN (see `rank.collectives.poison`) of the recorded shape and dtype, in the
ledger's order. Then the blocked ranks return, the SIGINT that waits for them is delivered, and the world stays whole.
The results of these collectives are invalid, so the cell fails; all of its ranks are informed first, since user code
may swallow the signal.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, wait

from allranks.head.state.known_rank import Rank
from allranks.head.state.monitor import Monitor
from allranks.lifeline.head_end import Lifeline
from allranks.lifeline.open_questions import Reply, RequestFailed
from allranks.messages.requests import Abort, Entered, EnterMissed, LedgerSince, Question, Settle

RECORDS_WITHIN = 0.5
"""Seconds a rank gets to report its ledger, to confirm an `Abort`, or to finish entering collectives."""


class Release:
    """Has missing ranks enter the collectives of one cell in which others wait.

    Call `step` repeatedly while ranks wait: a rank that is unblocked may be missing in the next collective.
    """

    def __init__(
        self,
        cell: int,
        monitor: Monitor,
        lifeline: Lifeline,
        on_invalid: Callable[[int, Sequence[str]], None] = lambda _rank, _names: None,
    ) -> None:
        """`on_invalid` takes a rank that has entered collectives, and the names that are invalid because of that."""
        self._cell, self._monitor, self._lifeline, self._on_invalid = cell, monitor, lifeline, on_invalid
        self._asked: list[Future[Reply[Entered]]] = []
        self._settled: set[int] = set()
        self._told: set[int] = set()
        """Ranks that have been informed that collectives of the cell are aborted."""

    def step(self, waiting: Sequence[int], running: Collection[int]) -> None:
        """Have every idle rank that lags behind the `waiting` ones enter the collectives that it missed.

        An idle rank that called them all evaluates the ones that are pending. `running` are all ranks that still run
        the cell.
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
                # The rank called the collective but never evaluated it.
                self._settled.add(rank.rank)
                self._have(rank, Settle())

    def _abort(self, running: Sequence[Rank], newest: int) -> None:
        """Inform each running rank, once, that collectives are aborted, before missing ranks enter them."""
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
        """Have an idle rank enter collectives; it counts as busy until it has finished."""
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
        """Wait up to `RECORDS_WITHIN` seconds for the ranks that enter missed collectives to finish."""
        wait(self._asked, RECORDS_WITHIN)
