"""Evaluation order is tracked without looking into any graph, and costs each collective the same, however many wait."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import pytest

from allranks.rank.collectives.evaluation_order import EvaluationOrder
from allranks.rank.collectives.record import CallCount
from tests.waiting import comes_true

if TYPE_CHECKING:
    from allranks import Cluster

COUNTED = """
from allranks.rank.arrays import array_status
from allranks.rank.process.engine import RankEngine

class Counted:
    '''Counts drawings and looks.'''
    def __enter__(self):
        self.drawings = self.looks = 0
        self._draw, self._reader = mx.export_to_dot, array_status.reader
        def draw(*args, **kwargs):
            self.drawings += 1
            return self._draw(*args, **kwargs)
        def look(array):
            self.looks += 1
            return self._reader.is_pending(array)
        mx.export_to_dot = draw
        if self._reader is not None:
            array_status.reader = self._reader._replace(is_pending=look)
        return self

    def __exit__(self, *_):
        mx.export_to_dot, array_status.reader = self._draw, self._reader

def sums(n):
    return [mx.distributed.all_sum(mx.ones(2) * i) for i in range(n)]
"""
TRAINING = """
import mlx.nn as nn
model = nn.TransformerEncoder(8, 16, 2, 32)
mx.eval(model.parameters())
step = nn.value_and_grad(model, lambda model, x: model(x, None).square().mean())
with Counted() as counted:
    for _ in range(3):
        loss, gradients = step(model, mx.ones((1, 4, 16)))
        gradients = nn.utils.tree_map(mx.distributed.all_sum, gradients)
        mx.eval(loss)
        mx.eval(gradients)
ledger = RankEngine.instance().agent.ledger
n = len(nn.utils.tree_flatten(gradients))
(counted.drawings, counted.looks / (3 * n), n, ledger.seq - ledger.order.settled)
"""


@pytest.fixture
def counted(ring2: Cluster) -> Iterator[Cluster]:
    ring2.run(COUNTED).check()
    yield ring2
    ring2.run("del Counted, sums")


def test_a_training_step_looks_twice_at_each_collective_at_most_and_draws_what_is_not_given(counted: Cluster) -> None:
    for drawings, looks, collectives, unsettled in (rank.value for rank in counted.run(TRAINING).check().values()):
        assert drawings <= 1, "in three steps: by then 32 collectives are known"
        assert collectives > 90 and looks <= 2
        assert unsettled == 0, "nobody can wait in any of them"


HOW = {
    "in one evaluation": "mx.eval(made)",
    "as arguments": "mx.eval(*made)",
    "in a dict": "mx.eval(dict(enumerate(made)))",
    "one by one": "for each in made: mx.eval(each)",
    "from the newest": "for each in reversed(made): mx.eval(each)",
    "by what is computed from them": "for each in made: mx.eval(each * 2)",
    "from the middle": "for each in made[60:] + made[:60]: mx.eval(each)",
}
NOT_GIVEN = {"from the newest", "by what is computed from them", "from the middle"}
"""The results themselves are not, or are not the oldest."""


@pytest.mark.parametrize("how", HOW)
def test_looks_are_few_however_many_are_open(how: str, counted: Cluster) -> None:
    """Each evaluation looks at a few of the open results, and each collective is done with once."""
    code = f"made = sums(120)\nwith Counted() as counted:\n    {HOW[how]}\n(counted.drawings, counted.looks)"
    result = counted.run(code).check()
    evaluations = 120 if HOW[how].startswith("for ") else 1
    for drawings, looks in (rank.value for rank in result.values()):
        assert looks <= 120 + 19 * evaluations
        assert drawings <= (evaluations if how in NOT_GIVEN else 0)
    assert result.mismatch is None


@pytest.mark.parametrize("how", ["in one evaluation", "as arguments", "one by one"])
def test_the_oldest_in_the_order_of_the_calls_need_no_look(how: str, counted: Cluster) -> None:
    code = f"made = sums(10)\nwith Counted() as counted:\n    {HOW[how]}\n"
    code += "ledger = RankEngine.instance().agent.ledger\n(counted.looks, ledger.seq - ledger.order.settled)"
    assert [rank.value for rank in counted.run(code).check().values()] == [(0, 0)] * 2


@pytest.mark.parametrize(
    ("first", "second"), [(1, 0), (9, 0), (119, 0), (118, 2)], ids=["neighbours", "near", "newest", "near the newest"]
)
def test_opposite_order_among_many_is_flagged(first: int, second: int, counted: Cluster) -> None:
    code = (
        f"made = sums(120)\none, other = made[{first}], made[{second}]\n"
        "for each in (one, other) if rank == 0 else (other, one): mx.eval(each)\nmx.eval(made)"
    )
    mismatch = counted.run(code).mismatch
    assert mismatch is not None and "different orders" in mismatch


def test_what_one_rank_evaluates_of_its_own_in_between_is_no_difference(counted: Cluster) -> None:
    code = """made = sums(60)
for number in (20, 59, 3, 40, 41, 1, 58, 30, 2):
    if rank == 0: mx.eval(mx.ones(2) + number)
    mx.eval(made[number] * 2)
    if rank == 1: mx.eval(mx.ones(2) + number)
mx.eval(made)"""
    assert counted.run(code).check().mismatch is None


def test_a_result_that_one_rank_changed_in_place_is_no_difference(counted: Cluster) -> None:
    code = """a = mx.distributed.all_sum(mx.ones(3))
shown = a.tolist()
if rank == 0: a += 1
b = mx.distributed.all_sum(mx.ones(4))
mx.eval(b)
mx.eval(a)"""
    assert counted.run(code).check().mismatch is None


def test_where_status_cannot_be_read_order_is_not_tracked_and_that_is_said(counted: Cluster) -> None:
    said = "Evaluation order is not checked (ranks 0-1)"
    counted.run("found, array_status.reader = array_status.reader, None").check()
    try:
        assert counted.run(TRAINING).check()[0].value[0] == 0, "drawn"
        opposite = "a, b = sums(2)\nfor each in (b, a) if rank == 0 else (a, b): mx.eval(each)"
        assert counted.run(opposite).check().mismatch is None
        assert comes_true(counted, lambda now: any(said in note for note in now.notes), 60)
    finally:
        counted.run("array_status.reader = found").check()
    assert comes_true(counted, lambda now: not now.notes, 60)


def test_another_thread_may_take_the_open_results_meanwhile() -> None:
    order = EvaluationOrder(CallCount(), lambda: None)
    order.begin(watching=True)
    array = mx.ones(2) + 1

    def taken_by_the_other_thread() -> Any:
        order.pending.clear()
        return array

    order.pending.append((1, taken_by_the_other_thread))  # type: ignore[arg-type]
    order._followed(mx.eval)(array)
    assert array.tolist() == [2.0, 2.0]
