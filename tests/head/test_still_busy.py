"""What is said of ranks that a stop has not ended."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest

from allranks.head.cell.still_busy import still_busy
from allranks_backends.views import Collective, RankState, RankView, Snapshot
from tests.head.whole_world import whole_world

SUM = Collective(1, "all_sum", (3,), "float32", 12, 4)
COMPUTES = RankView(0, "a", state="running", line=5, source="mx.eval(x)")
BLOCKED = RankView(0, "a", state="waiting", collective=SUM)
WAITS = RankView(1, "a", state="waiting", collective=SUM)
KILL = "%distributed heal --kill"


def said(*ranks: RankView, abortable: bool = True, **rest: Any) -> str:
    left = [view.rank for view in ranks if view.state != "dead"]
    return still_busy(Snapshot("main", "ring", "whole", 1, ranks), left, after=4.6, abortable=abortable, **rest)


def test_a_long_call_is_named_with_its_line_and_waited_for() -> None:
    text = said(COMPUTES)
    assert text.startswith("Still busy after 5 s: rank 0 running line 5: mx.eval(x). It was interrupted, but a call of")
    assert "MLX or C cannot be interrupted" in text
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
    assert (
        "Rank 0: it was interrupted, but a call of MLX or C cannot" in text
        and "Rank 1: its collectives were aborted" in text
    )


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


@pytest.mark.parametrize("state", ["silent", "running"])
def test_a_rank_that_only_is_silent_is_not_to_be_replaced(state: RankState) -> None:
    text = said(RankView(0, "a", state=state, silent=6))
    assert "It has reported nothing for 6 s: the machine is very busy" in text
    assert text.endswith("takes effect when it responds; nothing is lost, and the next cell waits for up to 2 min.")
    assert KILL not in text
    assert "next cell" not in said(RankView(0, "a", state=state, silent=6), RankView(1, "a", state="dead"))


def test_a_suspended_process_is_to_be_continued_on_its_host() -> None:
    ranks = [
        RankView(rank, host, pid, "suspended", silent=5, suspended=True)
        for rank, host, pid in ((0, "a", 40), (1, "a", 41), (2, "b", 40))
    ]
    text = said(*ranks)
    assert text.endswith(
        "Their process is suspended: continue it with kill -CONT 40 41 on a and kill -CONT 40 on b. They will be "
        "interrupted then."
    )
    assert KILL not in text


def test_a_host_out_of_reach_is_waited_for() -> None:
    text = said(RankView(0, "a", state="silent", away=9))
    assert text.endswith("It will be interrupted when it is reached again. Nothing is lost.") and KILL not in text


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
