"""What is said of ranks that a stop has not ended."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest

from allranks.head.cell.still_busy import still_busy
from allranks_backends.views import Collective, RankView, Snapshot
from tests.head.whole_world import whole_world

SUM = Collective(1, "all_sum", (3,), "float32", 12, 4)
COMPUTES = RankView(0, "a", state="running", line=5, source="mx.eval(x)")
BLOCKED = RankView(0, "a", state="waiting", collective=SUM)
WAITS = RankView(1, "a", state="waiting", collective=SUM)
KILL = "%distributed heal --kill"


def said(*ranks: RankView, abortable: bool = True, **rest: Any) -> str:
    left = [view.rank for view in ranks if view.state != "dead"]
    return still_busy(Snapshot("main", "ring", "whole", 1, ranks), left, abortable=abortable, **rest)


def test_a_long_call_is_named_with_its_line_and_waited_for() -> None:
    text = said(COMPUTES)
    assert text.startswith("Still busy: rank 0 running line 5: mx.eval(x). A call of MLX or C cannot be interrupted")
    assert "nothing is lost, and the next cell waits for up to 2 min." in text and KILL not in text


@pytest.mark.parametrize(
    ("abortable", "tried_for", "words"),
    [
        (True, None, "Its collectives were aborted. The cell ends in a moment: run the next cell"),
        (False, 60.0, "Unblocking it goes on for another 60 s: run the next cell"),
        (False, inf, "Unblocking it goes on: run the next cell"),
    ],
)
def test_nothing_that_loses_variables_is_advised_while_something_is_tried(
    abortable: bool, tried_for: float | None, words: str
) -> None:
    text = said(BLOCKED, abortable=abortable, tried_for=tried_for)
    assert words in text and KILL not in text


def test_ranks_that_do_different_things_are_told_apart() -> None:
    text = said(COMPUTES, WAITS)
    assert "Rank 0: a call of MLX or C cannot" in text and "Rank 1: its collectives were aborted" in text


def test_a_rank_whose_collective_was_aborted_and_that_goes_on_ends_in_a_moment() -> None:
    text = said(COMPUTES, aborted=[0])
    assert "Its collectives were aborted. The cell ends in a moment" in text and KILL not in text


def test_a_rank_that_has_just_ended_is_not_to_be_replaced() -> None:
    assert said(RankView(0, "a", state="idle"), abortable=False).endswith(
        "The cell ends in a moment: run the next cell, which waits for that."
    )


def test_with_a_dead_rank_the_next_cell_is_not_promised_to_wait() -> None:
    text = said(COMPUTES, RankView(1, "a", state="dead", cause="killed by SIGKILL"))
    assert "Then %distributed heal replaces what has died." in text and "next cell" not in text


def test_a_stopped_process_is_called_so() -> None:
    text = said(RankView(0, "a", state="stopped"))
    assert text.endswith(
        "It does not respond: the process is stopped, or the machine is very busy. "
        f"To replace it: {KILL} 0 (loses its variables)."
    )


def test_a_world_without_dead_ranks_is_re_formed_by_the_next_cell_as_status_says() -> None:
    monitor = whole_world()
    monitor.state = "broken"
    assert monitor.snapshot().notes == ("The world is broken: the next cell re-forms it. All variables are kept.",)
    monitor.changing = True
    assert monitor.snapshot().notes == ("The world is being changed.",)


def test_what_cannot_be_ended_is_to_be_replaced() -> None:
    end = f"Interrupting did not help. To replace it: {KILL} 0 (loses its variables)."
    assert said(BLOCKED, abortable=False).endswith(end)


def test_those_that_wait_for_a_dead_rank_keep_their_variables() -> None:
    text = said(RankView(0, "a", state="dead", cause="killed by SIGKILL"), WAITS)
    assert "%distributed heal replaces it" in text and KILL not in text
