"""What is said of ranks that a stop has not ended."""

from __future__ import annotations

import pytest

from allranks.head.cell.still_busy import still_busy
from allranks_backends.views import Collective, RankView, Snapshot
from tests.head.whole_world import whole_world

SUM = Collective(1, "all_sum", (3,), "float32", 12, 4)
COMPUTES = RankView(0, "a", state="running", line=5, source="mx.eval(x)")
BLOCKED = RankView(0, "a", state="waiting", collective=SUM)
WAITS = RankView(1, "a", state="waiting", collective=SUM)
KILL = "%distributed heal --kill"


def said(*ranks: RankView, abortable: bool = True, tried_for: float | None = None) -> str:
    left = [view.rank for view in ranks if view.state != "dead"]
    return still_busy(Snapshot("main", "ring", "whole", 1, ranks), left, abortable=abortable, tried_for=tried_for)


def test_a_long_call_is_named_with_its_line_and_waited_for() -> None:
    text = said(COMPUTES)
    assert text.startswith("Still busy: rank 0 running line 5: mx.eval(x). A call of MLX or C cannot be interrupted")
    assert "nothing is lost, and the next cell waits for up to 2 min." in text and KILL not in text


@pytest.mark.parametrize(
    ("abortable", "tried_for", "words"),
    [
        (True, None, "Their collectives are aborted, and they end in a moment"),
        (False, 60.0, "Unblocking them is tried for another 60 s"),
    ],
)
def test_nothing_that_loses_variables_is_advised_while_something_is_tried(
    abortable: bool, tried_for: float | None, words: str
) -> None:
    text = said(BLOCKED, abortable=abortable, tried_for=tried_for)
    assert words in text and KILL not in text


def test_ranks_that_do_different_things_are_told_apart() -> None:
    text = said(COMPUTES, WAITS)
    assert "Rank 0: a call of MLX or C cannot" in text and "Rank 1: their collectives are aborted" in text


def test_a_world_without_dead_ranks_is_re_formed_by_the_next_cell_as_status_says() -> None:
    monitor = whole_world()
    monitor.state = "broken"
    assert monitor.snapshot().notes == (
        "A collective was aborted: the next cell re-forms the world. All variables are kept.",
    )


def test_what_cannot_be_ended_is_to_be_replaced() -> None:
    end = f"Interrupting did not help; to replace it: {KILL} 0 (loses its variables)."
    assert said(RankView(0, "a", state="stopped")).endswith(end)
    assert said(BLOCKED, abortable=False).endswith(end)


def test_those_that_wait_for_a_dead_rank_keep_their_variables() -> None:
    text = said(RankView(0, "a", state="dead", cause="killed by SIGKILL"), WAITS)
    assert "%distributed heal replaces it" in text and KILL not in text
