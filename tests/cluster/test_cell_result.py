"""The sentence of a cell that failed."""

from __future__ import annotations

from allranks.cluster.cell_result import CellResult
from allranks.errors import RemoteError
from allranks.head.cell.rank_result import RankResult

DISAGREE = "the ranks disagree: rank 0 entered all_sum #3 f32[4] (line 2); rank 1 entered all_sum #3 f32[8] (line 2)"


def test_ranks_that_disagreed_and_were_unblocked() -> None:
    ranks = {rank: RankResult(rank, unblocked=f"all_sum #3 f32[{4 + 4 * rank}] (line 2)") for rank in (0, 1)}
    assert CellResult(1, ranks, 2.0, DISAGREE).failure() == f"{DISAGREE}; ranks 0-1 had to be unblocked"


def test_one_that_raised_and_one_that_waited_for_it() -> None:
    error = RemoteError("ValueError", "bad batch", "", 3)
    ranks = {0: RankResult(0, unblocked="all_sum #3 f32[4] (line 2)"), 1: RankResult(1, error=error)}
    said = "rank 1 raised ValueError: bad batch (line 3); rank 0 waited for it and had to be unblocked"
    assert CellResult(1, ranks, 2.0).failure() == said
