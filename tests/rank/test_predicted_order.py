"""The order of a cell's first collectives: one that was evaluated unseen is not taken for another at its address."""

from __future__ import annotations

import mlx.core as mx
import pytest

from allranks.rank.arrays import array_status
from allranks.rank.collectives.predicted_order import MOST, PredictedOrder


def asked(count: int) -> tuple[PredictedOrder, list[mx.array]]:
    """Some arrays, in place of the results of collectives, which a process without a world does not have."""
    array_status.find(mx)
    assert array_status.reader is not None
    first, results = PredictedOrder(), [mx.ones(3) * number for number in range(count)]
    first.begin(True)
    for number, result in enumerate(results):
        first.asked(number, result, closed=False)
    return first, results


@pytest.mark.parametrize("count", [4, MOST - 1])
def test_those_that_there_is_time_to_look_at_are_followed(count: int) -> None:
    first, results = asked(count)
    first.foresee(results[:1])
    assert first.following and [*first.pending] == [*range(count)]


def test_those_that_there_was_no_time_to_look_at_are_not_followed_any_more() -> None:
    first, results = asked(4)
    first._spent = 1e9
    first.foresee(results[:1])
    assert not first.pending


def test_none_is_followed_once_others_that_are_not_may_have_its_address() -> None:
    first, results = asked(MOST)
    assert not first.following
    first.foresee(results[:1])
    assert not first.pending
