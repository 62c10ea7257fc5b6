"""Transfer, wait and straggler."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from allranks._history import Sample
from allranks._profile import Profile
from tests.waiting import comes_true

if TYPE_CHECKING:
    from allranks import Cluster


def test_the_last_to_come_did_not_wait() -> None:
    profile = Profile()
    profile.add(1, 0, [("all_sum", 4, 0.50), ("all_sum", 4, 0.10)], 2)
    assert profile.times(0, "all_sum") == (None, None), "not before all ranks have told"
    profile.add(1, 1, [("all_sum", 4, 0.10), ("all_sum", 4, 0.20)], 2)
    assert profile.times(0, "all_sum") == pytest.approx((0.2, 0.4))
    assert profile.times(1, "all_sum") == pytest.approx((0.2, 0.1))
    assert profile.straggler == ("rank 1 came last in 1 of 2 timed calls; the others waited up to 0.4 s for it")


def test_calls_that_do_not_match_are_not_compared() -> None:
    profile = Profile()
    profile.add(1, 0, [("all_sum", 4, 0.5)], 2)
    profile.add(1, 1, [("all_sum", 4, 0.1), ("all_sum", 4, 0.2)], 2)
    assert profile.times(0, "all_sum") == (None, None)
    assert profile.straggler is None


def test_a_slow_rank_is_named(ring2: Cluster) -> None:
    ring2.run(
        "import time\n"
        "for _ in range(5):\n"
        "    time.sleep(0.1 * (rank == 1))\n"
        "    mx.eval(mx.distributed.all_max(mx.ones(10)))",
        profile=True,
        timeout=60,
    ).check()
    assert "rank 1 came last in " in (ring2.snapshot.straggler or ""), "as in what other tests timed in this world"
    assert comes_true(
        ring2, lambda now: all(("all_max", 5) in [(op.op, op.calls) for op in rank.ops] for rank in now.ranks), 10
    )
    ops = {rank.rank: next(op for op in rank.ops if op.op == "all_max") for rank in ring2.snapshot.ranks}
    assert (ops[0].calls, ops[0].nbytes, ops[0].smallest) == (5, 200, 40)
    assert (ops[0].wait or 0) > 0.4 > (ops[1].wait or 0)
    assert ops[0].transfer == ops[1].transfer


def test_profiling_leaves_transformations_alone(ring2: Cluster) -> None:
    code = """def loss(w): return mx.distributed.all_sum(w * 2).sum()
value, gradient = mx.value_and_grad(loss)(mx.ones(3))
step = mx.compile(lambda x: mx.distributed.all_sum(x) + 1)
[value.item(), gradient.tolist(), step(mx.ones(2)).tolist(), step(mx.ones(2)).tolist()]"""
    assert ring2.run(code, profile=True, timeout=60).check()[1].value == [12.0, [2.0] * 3, [3.0] * 2, [3.0] * 2]


def test_history_is_a_table(ring2: Cluster) -> None:
    pandas = pytest.importorskip("pandas")
    ring2.run(
        "import time\nfor _ in range(12): mx.eval(mx.distributed.all_sum(mx.ones(1000))); time.sleep(0.1)"
    ).check()
    frame = ring2.history()
    assert isinstance(frame, pandas.DataFrame)
    assert frame.index.name == "time" and frame.index.is_monotonic_increasing
    assert frame["effective"]["0"].max() > 0
    assert {"0-1", "1-0"} == set(frame["wire"].columns)
    assert frame["wire"].max().max() > 0


def test_history_forgets_after_ten_minutes(ring2: Cluster) -> None:
    from dataclasses import replace

    from allranks._history import History

    history, now = History(), ring2.snapshot
    for second in range(0, 700, 50):
        history.add(replace(now, at=1000.0 + second))
    samples: list[Sample] = history.samples()
    assert samples[0].at >= 1000 + 650 - 600 and samples[-1].at == 1650
    assert not history.due(1650.2) and history.due(1650.5)
