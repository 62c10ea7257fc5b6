"""Which differences between the ranks' collectives are reported, and in which words; on real ranks: tests/faults."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from allranks.head.cell.agreement import ANSWER_WITHIN, Agreement, disagreement
from allranks.head.state.known_rank import Rank
from allranks.head.state.make_views import collective
from allranks.head.state.monitor import Monitor
from allranks.lifeline.open_questions import Reply, RequestFailed
from allranks.messages.events import EvaluatedAtOnce, LedgerEntry
from allranks.messages.requests import Entries, LedgerSince, OpenBarrier

CELL = 7


class Lifeline:
    """In a lifeline's place: has the answer of each rank, and writes down what ranks are told and asked."""

    def __init__(self) -> None:
        self.answers: dict[str, Entries | Exception] = {}
        self.told: list[tuple[str, Any]] = []
        self.asked: dict[str, int] = {}

    def tell(self, uuid: str, request: Any) -> None:
        self.told.append((uuid, request))

    def ask(self, uuid: str, question: LedgerSince) -> Future[Any]:
        self.asked[uuid] = question.after
        answer, future = self.answers[uuid], _Answer()
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(Reply(answer))
        return future


class _Answer(Future[Any]):
    def result(self, timeout: float | None = None) -> Any:
        assert timeout == ANSWER_WITHIN, "a rank that does not answer is not waited for"
        return super().result(timeout)


@pytest.fixture
def lifeline() -> Lifeline:
    return Lifeline()


def agreement(lifeline: Any, ranks: Sequence[int], size: int = 3) -> Agreement:
    monitor = Monitor("main")
    for number in range(size):
        monitor.put(Rank(number, "localhost", f"rank-{number}"))
    return Agreement(monitor, lifeline, ranks, CELL)


def entry(seq: int, op: str = "all_sum", shape: int = 4, shared: bool = True, dtype: str = "float32") -> LedgerEntry:
    return LedgerEntry(seq, op, (shape,), dtype, 4 * shape, 3, shared)


def swapped(ranks: dict[int, list[tuple[int, int]]], lifeline: Lifeline) -> str | None:
    """What is said of ranks that called #11 to #13 and evaluated so many pairs in another order."""
    watched = agreement(lifeline, range(len(ranks)), len(ranks))
    for rank, pairs in ranks.items():
        lifeline.answers[f"rank-{rank}"] = Entries([entry(seq) for seq in (11, 12, 13)], pairs)
        watched.done(rank, (3, rank))
    return watched.mismatch(dict.fromkeys(ranks, 10))


def test_all_enter_once_the_last_has_come(lifeline: Lifeline) -> None:
    watched = agreement(lifeline, range(3))
    for seq in (5, 6):
        watched.enter(2, entry(seq))
        watched.enter(0, entry(seq))
        assert lifeline.told == []
        watched.enter(1, entry(seq))
        assert lifeline.told == [(f"rank-{rank}", OpenBarrier(CELL, None)) for rank in (2, 0, 1)]
        lifeline.told.clear()


def test_none_enters_where_they_differ(lifeline: Lifeline) -> None:
    watched = agreement(lifeline, range(3))
    for rank in range(3):
        watched.enter(rank, entry(5, shape=8 if rank == 1 else 4))
    refusal = (
        "the ranks disagree: ranks 0, 2 entered all_sum #5 f32[4] (line 3); rank 1 entered all_sum #5 f32[8] (line 3)"
    )
    assert lifeline.told == [(f"rank-{rank}", OpenBarrier(CELL, refusal)) for rank in range(3)]


@pytest.mark.parametrize(("ranks", "absent"), [([0, 2], "rank 1 is"), ([1], "ranks 0, 2 are")])
def test_nobody_waits_for_ranks_that_are_not_in_the_cell(lifeline: Lifeline, ranks: list[int], absent: str) -> None:
    agreement(lifeline, ranks).enter(ranks[0], entry(5, "all_max"))
    refusal = f"all_max needs all ranks, but {absent} not part of this cell"
    assert lifeline.told == [(f"rank-{ranks[0]}", OpenBarrier(CELL, refusal))]


@pytest.mark.parametrize("done", [{}, {0: (2, 9)}, {0: (2, 9), 1: (2, 9)}, {0: (2, 9), 1: (0, 0)}])
def test_no_ledger_is_asked_for_where_sums_are_equal_or_a_rank_entered_none(
    lifeline: Lifeline, done: dict[int, tuple[int, int]]
) -> None:
    watched = agreement(lifeline, range(2), 2)
    for rank, fingerprint in done.items():
        watched.done(rank, fingerprint)
    assert watched.mismatch({0: 10, 1: 10}) is None and lifeline.asked == {}


def test_the_first_difference_of_the_ledgers_is_reported(lifeline: Lifeline) -> None:
    watched = agreement(lifeline, range(2), 2)
    lifeline.answers = {
        "rank-0": Entries([entry(11), entry(12), entry(13, "all_max")], []),
        "rank-1": Entries([entry(11), entry(12, dtype="int32"), entry(13, "all_min"), entry(14)], []),
    }
    watched.done(0, [3, 1])
    watched.done(1, [4, 2])
    assert watched.mismatch({0: 10, 1: 8}) == (
        "the ranks disagree: rank 0 entered all_sum #12 f32[4] (line 3); rank 1 entered all_sum #12 i32[4] (line 3)"
    )
    assert lifeline.asked == {"rank-0": 10, "rank-1": 8}


@pytest.mark.parametrize("error", [TimeoutError(), ConnectionError("gone"), RequestFailed("KeyError", "4")])
def test_ranks_that_do_not_answer_are_left_out(lifeline: Lifeline, error: Exception) -> None:
    watched = agreement(lifeline, range(3))
    lifeline.answers = {
        "rank-0": error,
        "rank-1": Entries([entry(11)], []),
        "rank-2": Entries([entry(11, "all_max")], []),
    }
    for rank in range(3):
        watched.done(rank, (1, rank))
    said = watched.mismatch(dict.fromkeys(range(3), 10))
    assert said is not None and "rank 0" not in said and "rank 1 entered all_sum" in said


S = {number: f"all_sum #{10 + number} f32[4] (line 3)" for number in (1, 2, 3)}


@pytest.mark.parametrize(
    ("evaluated", "said"),
    [
        ([[2, 1], [1, 2], [1, 2]], f"ranks 1-2 evaluated in call order; rank 0 evaluated {S[2]} before {S[1]} ("),
        ([[1, 3, 2], [3, 1], [1, 3]], f"ranks 0, 2 evaluated in call order; rank 1 evaluated {S[3]} before {S[1]} ("),
        ([[2, 1], [], [1, 2]], f"rank 2 evaluated in call order; rank 0 evaluated {S[2]} before {S[1]} ("),
        ([[3, 1, 2], [2, 3, 1]], f"rank 1 evaluated {S[2]} before {S[1]}"),
        ([[2, 1], [2, 1], [2]], None),
        ([[2, 1, 3], [2, 3], [3]], None),
        ([[], [], [1, 2]], None),
    ],
)
def test_what_all_have_seen_in_another_order_is_reported(
    evaluated: list[list[int]], said: str | None, lifeline: Lifeline
) -> None:
    watched = agreement(lifeline, range(len(evaluated)), len(evaluated))
    for rank, order in enumerate(evaluated):
        lifeline.answers[f"rank-{rank}"] = Entries([entry(seq) for seq in (11, 12, 13)], [], evaluated=order)
        watched.done(rank, (3, rank))
    found = watched.mismatch(dict.fromkeys(range(len(evaluated)), 10))
    assert (found is None) if said is None else (found is not None and said in found)


def test_a_difference_in_order_is_reported_where_ledgers_are_equal(lifeline: Lifeline) -> None:
    assert swapped({0: [(2, 1), (3, 1)], 1: [], 2: []}, lifeline) == (
        "the ranks evaluated collectives in different orders, so their results are swapped: "
        "ranks 1-2 evaluated in call order; rank 0 evaluated "
        "all_sum #12 f32[4] (line 3) before all_sum #11 f32[4] (line 3); "
        "all_sum #13 f32[4] (line 3) before all_sum #11 f32[4] (line 3) (--ordered prevents this)"
    )


@pytest.mark.parametrize(
    "pairs", [{0: [(2, 1)], 1: [(2, 1)]}, {0: [], 1: []}, {0: [(9, 1)], 1: []}, {0: [(2, 9)], 1: []}]
)
def test_the_same_order_is_none(lifeline: Lifeline, pairs: dict[int, list[tuple[int, int]]]) -> None:
    assert swapped(pairs, lifeline) is None


def test_collectives_that_not_all_must_enter_are_not_compared() -> None:
    sides = {0: collective(entry(5)), 1: collective(entry(5, "send", shared=False))}
    assert disagreement(sides) is None and disagreement({}) is None


def test_ranks_that_agree_may_have_evaluated_without_an_order(lifeline: Lifeline) -> None:
    watched = agreement(lifeline, range(3))
    two = EvaluatedAtOnce((entry(11), entry(12)))
    for rank in range(3):
        watched.done(rank, (2, 5), two if rank else EvaluatedAtOnce(threads=("MainThread", "loader")))
    said = watched.mismatch(dict.fromkeys(range(3), 10))
    assert said is not None
    assert "rank 0 evaluated collectives of two threads at once (MainThread and loader)" in said
    assert "ranks 1-2 evaluated all_sum #11 f32[4] (line 3) and all_sum #12 f32[4] (line 3) at once, on two str" in said
    assert not lifeline.asked


def test_collectives_of_the_cell_before_are_named(lifeline: Lifeline) -> None:
    watched = agreement(lifeline, range(2), 2)
    for rank, pairs in enumerate(([(0, -1)], [])):
        lifeline.answers[f"rank-{rank}"] = Entries([], pairs, [entry(9), entry(10)] if pairs else [])
        watched.done(rank, (0, 99 if pairs else 0))
    said = watched.mismatch(dict.fromkeys(range(2), 10))
    assert said is not None and "rank 0 evaluated all_sum #10 f32[4] (line 3) before all_sum #9" in said
