"""Transfer, wait and straggler."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from allranks.head.state.collective_times import CollectiveShare, CollectiveTimes
from allranks.head.state.traffic_history import Sample
from allranks.messages.events import Timed
from allranks_backends.views import OpView, Snapshot
from tests.waiting import comes_true, eventually

if TYPE_CHECKING:
    from allranks import Cluster

pytestmark = pytest.mark.slow


def test_the_last_to_come_did_not_wait() -> None:
    times = CollectiveTimes()
    times.add(1, 0, [Timed("all_sum", 4, 0.50), Timed("all_sum", 4, 0.10)], 2)
    assert times.times(0, "all_sum") == (None, None), "not before all ranks have told"
    times.add(1, 1, [Timed("all_sum", 4, 0.10), Timed("all_sum", 4, 0.20)], 2)
    assert times.times(0, "all_sum") == pytest.approx((0.2, 0.4))
    assert times.times(1, "all_sum") == pytest.approx((0.2, 0.1))
    assert times.straggler_rank == 1
    assert times.straggler == "rank 1 was last in 1 of 2 timed calls; the others waited 400 ms for it"


def test_the_share_of_a_cells_time_is_the_mean_over_its_ranks() -> None:
    timed = {0: [Timed("all_sum", 4, 0.50), Timed("all_sum", 4, 0.10)], 1: [Timed("all_sum", 4, 0.10)] * 2}
    share = CollectiveShare.of(timed, 1.0)
    assert share == pytest.approx((0.4, 0.2)) and str(share) == "40% in collectives (20% waiting for others)"
    assert CollectiveShare.of({0: timed[0], 1: timed[1][:1]}, 1.0) == pytest.approx((0.35, None))
    assert CollectiveShare.of({0: [], 1: []}, 1.0) is None is CollectiveShare.of({}, 1.0)


def test_the_longest_wait_is_told_beside_their_sum() -> None:
    times = CollectiveTimes()
    times.add(1, 0, [Timed("all_sum", 4, 1.5), Timed("all_sum", 4, 0.4)], 2)
    times.add(1, 1, [Timed("all_sum", 4, 0.1), Timed("all_sum", 4, 0.1)], 2)
    assert times.straggler == (
        "rank 1 was last in 2 of 2 timed calls; the others waited 1.70 s for it in all, 1.40 s at the longest"
    )


def test_a_rank_is_marked_if_the_others_waited_mostly_for_it_and_long_enough_to_matter() -> None:
    times = CollectiveTimes()
    for number, (of_0, of_1) in enumerate([(0.300, 0.295), (0.295, 0.300)]):
        times.add(number, 0, [Timed("all_sum", 4, of_0)], 2)
        times.add(number, 1, [Timed("all_sum", 4, of_1)], 2)
    assert times.straggler_rank is None, "5 ms of 295 ms"
    times.add(2, 0, [Timed("all_sum", 4, 0.9)], 2)
    times.add(2, 1, [Timed("all_sum", 4, 0.3)], 2)
    assert times.straggler_rank == 1
    times.forget(1)
    assert (
        times.straggler_rank is None
        and times.straggler == "rank 0 was last in 1 of 3 timed calls; the others waited 5.00 ms for it"
    )


def test_calls_that_do_not_match_are_not_compared() -> None:
    times = CollectiveTimes()
    times.add(1, 0, [Timed("all_sum", 4, 0.5)], 2)
    times.add(1, 1, [Timed("all_sum", 4, 0.1), Timed("all_sum", 4, 0.2)], 2)
    assert times.times(0, "all_sum") == (None, None)
    assert times.straggler is None and times.straggler_rank is None


def all_max(cluster: Cluster) -> dict[int, OpView]:
    """By rank: what it has asked of all_max so far, in other tests too."""
    found = {rank.rank: next((op for op in rank.ops if op.op == "all_max"), None) for rank in cluster.snapshot.ranks}
    return {rank: op if op is not None else OpView("all_max", 0, 0, 0, 0, 0.0, 0.0) for rank, op in found.items()}


def has_waited(seconds: float, shape: tuple[int, ...], now: Snapshot) -> bool:
    """Whether rank 0 has waited for so long in the collective of this shape."""
    first = now.ranks[0]
    waits = first.state == "waiting" and first.collective is not None and first.collective.shape == shape
    return waits and (first.since or 0.0) > seconds


def test_a_slow_rank_is_named(ring2: Cluster, tmp_path: Path) -> None:
    assert ring2._live.ranks is not None
    ring2._live.ranks.monitor.times = CollectiveTimes()  # without those of other tests in this world
    before = all_max(ring2)
    cell = ring2.begin(
        "import os, time\n"
        "for call in range(3):\n"
        f"    comes = {str(tmp_path)!r} + f'/{{call}}'\n"
        "    while rank == 1 and not os.path.exists(comes): time.sleep(0.01)\n"
        "    mx.eval(mx.distributed.all_max(mx.ones(10 + call)))",
        timing=True,
    )
    for call in range(3):  # rank 1 comes when rank 0 has waited for it, each time
        assert comes_true(ring2, partial(has_waited, 0.3, (10 + call,)), 60)
        (tmp_path / str(call)).touch()
    cell.finish(60).check()
    assert "rank 1 was last in " in (ring2.snapshot.straggler or "")
    assert comes_true(
        ring2, lambda _: all(op.calls == before[rank].calls + 3 for rank, op in all_max(ring2).items()), 60
    )
    ops = all_max(ring2)
    assert ops[0].nbytes == before[0].nbytes + 4 * (10 + 11 + 12) and ops[0].smallest <= 40
    waits = [(ops[rank].wait or 0) - (before[rank].wait or 0) for rank in (0, 1)]
    assert waits[0] > 0.4 and waits[0] > waits[1]
    assert (ops[0].transfer or 0) - (before[0].transfer or 0) == pytest.approx(
        (ops[1].transfer or 0) - (before[1].transfer or 0)
    )


def test_profiling_leaves_transformations_alone(ring2: Cluster) -> None:
    code = """def loss(w): return mx.distributed.all_sum(w * 2).sum()
value, gradient = mx.value_and_grad(loss)(mx.ones(3))
step = mx.compile(lambda x: mx.distributed.all_sum(x) + 1)
[value.item(), gradient.tolist(), step(mx.ones(2)).tolist(), step(mx.ones(2)).tolist()]"""
    assert ring2.run(code, timing=True, timeout=60).check()[1].value == [12.0, [2.0] * 3, [3.0] * 2, [3.0] * 2]


def test_history_is_a_table(ring2: Cluster) -> None:
    pandas = pytest.importorskip("pandas")
    ring2.run(
        "import time\nfor _ in range(12): mx.eval(mx.distributed.all_sum(mx.ones(1000))); time.sleep(0.1)"
    ).check()
    assert eventually(lambda: ring2.history()["effective"]["0"].max() > 0)
    frame = ring2.history()
    assert isinstance(frame, pandas.DataFrame)
    assert frame.index.name == "time" and frame.index.is_monotonic_increasing
    assert {"0-1", "1-0"} <= set(frame["wire"].columns), "and those of the sizes that other tests gave this world"
    assert frame["wire"].max().max() > 0


def test_history_forgets_after_ten_minutes(ring2: Cluster) -> None:
    from dataclasses import replace

    from allranks.head.state.traffic_history import History

    history, now = History(), ring2.snapshot
    for second in range(0, 700, 50):
        history.add(replace(now, at=1000.0 + second))
    samples: list[Sample] = history.samples()
    assert samples[0].at >= 1000 + 650 - 600 and samples[-1].at == 1650
    assert not history.due(1650.2) and history.due(1650.5)
