"""What ranks report of a cell, seen by the notebook that follows it."""

from __future__ import annotations

from allranks.head.cell.outcome import Outcome
from allranks.head.state.cell_updates import CellUpdate, Died
from allranks.messages.events import State
from allranks.notebook.fold import Fold
from tests.head.whole_world import done


def test_a_rank_that_was_done_before_another_notebook_took_over_reports_still() -> None:
    outcome = Outcome([1], Fold([1]))
    for event in (State(), Died("killed")):
        outcome.take(CellUpdate(0, event))
    assert outcome.open == {1} and list(outcome.results) == [1]
    outcome.take(CellUpdate(1, Died("killed")))
    assert not outcome.open and outcome.results[1].dead == "killed"


def test_output_that_comes_with_the_end_is_shown_before_it() -> None:
    outcome = Outcome([0, 1], fold := Fold([0, 1]))
    for rank in (0, 1):
        outcome.take(CellUpdate(rank, done(), items=[("text", "stdout", ["a\n"])]))
    assert [(block.ranks, block.content) for block in fold.drain(0.0, flush=True)] == [((0, 1), "a\n")]
    assert not outcome.open and outcome.results[1].stdout == "a\n"
