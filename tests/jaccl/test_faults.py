"""Blocked collectives of JACCL are aborted, and the world is re-formed in the same processes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from textwrap import indent
from typing import TYPE_CHECKING

import pytest

from allranks.errors import CellInterrupted, CellTimeout
from tests.faults.absent import blocked
from tests.faults.kept import TRAINING, keep, look, sums_are_right
from tests.faults.stop import stop_pressed, waiting
from tests.jaccl.lab.lab import CUT, FAIL_NEXT
from tests.waiting import comes_true, idle

from .conftest import NewWorld
from .lab.world import World

if TYPE_CHECKING:
    from allranks.cluster.cell_result import CellResult

WITHIN = 120.0
UNPICKLABLE = "import threading\nkept_lock = threading.Lock()\nkept_steps = (n for n in range(9)); next(kept_steps)"
CUT_OFF = "if rank == 0: mx.eval(mx.distributed.all_sum(mx.ones(9)))"


WORLDS = [
    pytest.param(("jaccl", "flush"), id="jaccl-flush"),
    pytest.param(("jaccl", "silent"), id="jaccl-silent", marks=pytest.mark.slow),
    pytest.param(("jaccl-ring", "flush"), id="jaccl-ring-flush", marks=pytest.mark.slow),
    pytest.param(("jaccl-ring", "silent"), id="jaccl-ring-silent", marks=pytest.mark.slow),
]


@pytest.fixture(scope="module", params=WORLDS)
def world(request: pytest.FixtureRequest, new_world: NewWorld) -> Iterator[World]:
    """Two ranks; a driver that completes what was posted to a queue pair in ERR, as it should, or does nothing."""
    backend, driver = request.param
    with new_world(backend, LAB_RDMA_ERR=driver) as made:
        yield made


def abort(world: World, code: str) -> CellResult:
    """Run this, which rank 1 does not join in, until rank 0 is blocked, and have that aborted."""
    cell = world.cluster.begin(code)
    assert comes_true(world.cluster, waiting(0), WITHIN)
    world.cluster.abort_collectives(ranks=0)
    return cell.finish(WITHIN)


def test_the_world_says_nothing_of_a_fallback(world: World) -> None:
    assert not world.cluster.snapshot.notes


@pytest.mark.parametrize("count", [4, 300_000])
def test_a_rank_raises_and_the_other_goes_on_in_its_process(count: int, world: World) -> None:
    cluster = world.cluster
    cluster.run(UNPICKLABLE).check()
    kept, pids, held, generation = keep(cluster), world.pids(), world.lab.held(), cluster.snapshot.generation
    result = blocked(cluster, f"y = mx.distributed.all_sum(mx.ones({count}))\nz = y * 2; mx.eval(z)")
    assert list(result.errors) == [1] and result[0].unblocked and not result[0].ok
    assert set(result[0].invalid) >= {"y", "z"}
    assert idle(cluster) and (cluster.state, cluster.snapshot.generation) == ("whole", generation + 1)
    assert world.pids() == pids and look(cluster) == kept and sums_are_right(cluster)
    assert [each.value for each in cluster.run("next(kept_steps)").check().values()] == [1, 1]
    if world.marks:
        assert cluster.run("bool(mx.isnan(z).all())", ranks=0).check()[0].value and not result[0].unmarked
    else:
        assert "all_sum" in result[0].unmarked[0], "it is named, since it may look like a number"
    assert world.lab.held() == held, "the world before has given all back"


def test_stop_and_timeout_abort_a_collective_that_a_rank_skips(world: World, patient_stop: None) -> None:
    cluster, pids = world.cluster, world.pids()
    with stop_pressed(cluster, waiting(0)), pytest.raises(CellInterrupted):
        cluster.run(CUT_OFF)
    assert idle(cluster) and sums_are_right(cluster)
    with pytest.raises(CellTimeout):
        cluster.run(CUT_OFF, timeout=3)
    assert idle(cluster) and sums_are_right(cluster) and world.pids() == pids


@pytest.mark.parametrize(
    "call",
    [
        "mx.distributed.recv((700_000,), mx.float32, 1)",
        "mx.distributed.send(mx.ones(700_000), 1)",
        "mx.distributed.sum_scatter(mx.ones(100_000))",
        "[mx.distributed.all_gather(mx.ones(3_000)) for _ in range(7)]",
    ],
    ids=["recv", "send", "sum_scatter", "many"],
)
def test_whatever_blocks_is_aborted(call: str, world: World) -> None:
    pids = world.pids()
    result = abort(world, f"if rank == 0: mx.eval({call})")
    assert result[0].unblocked and not result[0].ok and result[1].ok
    assert idle(world.cluster) and sums_are_right(world.cluster) and world.pids() == pids


@pytest.mark.parametrize(
    "code",
    ["try: mx.eval(total)\nexcept BaseException: pass\ntotal = None", "total[0].item()"],
    ids=["swallowed", "item"],
)
def test_a_rank_whose_collective_was_aborted_is_never_ok(code: str, world: World) -> None:
    result = abort(world, f"if rank == 0:\n    total = mx.distributed.all_sum(mx.ones(9))\n{indent(code, ' ' * 4)}")
    assert not result[0].ok and result[1].ok
    assert idle(world.cluster) and sums_are_right(world.cluster)


def test_a_cut_cable_is_a_stall_that_stop_ends(world: World, patient_stop: None) -> None:
    cluster, lab = world.cluster, world.lab
    pids, device = world.pids(), lab.device(0, 1)
    lab.set_fault(device, CUT, 1)
    with stop_pressed(cluster, waiting(0, 1)), pytest.raises(CellInterrupted):
        cluster.run("mx.eval(mx.distributed.all_sum(mx.ones(9)))", timeout=WITHIN)
    lab.set_fault(device, CUT, 0)
    cluster.heal()
    assert idle(cluster) and sums_are_right(cluster) and world.pids() == pids


@pytest.mark.parametrize("device", [(0, 1), (1, 0)], ids=["of rank 0", "of rank 1"])
def test_a_transfer_that_fails_is_never_a_result(device: tuple[int, int], world: World) -> None:
    """MLX takes the error for a success."""
    cluster, pids = world.cluster, world.pids()
    world.lab.set_fault(world.lab.device(*device), FAIL_NEXT, 13)
    result = cluster.run("y = mx.distributed.all_sum(mx.ones(9)); y.tolist()", timeout=WITHIN)
    assert not result[device[0]].ok and idle(cluster)
    if cluster.state != "whole":  # what raised may be left pending, and holds what the next world needs
        assert not world.marks
        cluster.heal()
        return
    assert sums_are_right(cluster) and world.pids() == pids


@pytest.fixture(scope="module")
def three(new_world: NewWorld) -> Iterator[World]:
    with new_world("jaccl", ranks=3) as made:
        yield made


def test_a_death_in_a_training_step_costs_the_others_nothing(three: World) -> None:
    cluster, pids = three.cluster, three.pids()
    cluster.run(UNPICKLABLE + TRAINING).check()
    code = "import os\nfor n in range(1000):\n    if rank == 1 and n == 5: os.kill(os.getpid(), 9)\n    step(n)"
    result = cluster.run(code, timeout=WITHIN)
    assert result[1].dead and not any(each.ok for each in result.values())
    change = cluster.heal()
    assert [change.ranks[rank].how for rank in range(3)] == ["kept", "empty", "kept"]
    assert [three.pids()[rank] for rank in (0, 2)] == [pids[rank] for rank in (0, 2)] and sums_are_right(cluster)
    left = cluster.run("next(kept_steps), opt.state['step'].item() >= 1", ranks=[0, 2]).check()
    assert [each.value for each in left.values()] == [(1, True)] * 2


def test_resize_and_rewire_keep_variables_in_their_processes(three: World) -> None:
    cluster = three.cluster
    kept, pids = keep(cluster, [0, 1]), three.pids()
    cluster.resize(2)
    assert sums_are_right(cluster)
    until = time.monotonic() + WITHIN
    while (left := three.lab.held([pids[2]])) and time.monotonic() < until:
        time.sleep(0.05)
    assert left == {}, "the rank that left gave all back"
    for backend in ("ring", "jaccl-ring", "jaccl"):
        assert {each.how for each in cluster.rewire(backend).ranks.values()} == {"kept"}
        assert sums_are_right(cluster)
        assert bool(three.lab.held(pids[:2])) == (backend != "ring")
    cluster.resize(3)
    assert three.pids()[:2] == pids[:2] and sums_are_right(cluster) and look(cluster, [0, 1]) == kept


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["jaccl", "jaccl-ring"])
def test_four_ranks_over_two_cables_each(backend: str, new_world: NewWorld) -> None:
    with new_world(backend, ranks=4, wires=2) as world:
        cluster, pids, held = world.cluster, world.pids(), world.lab.held()
        for _ in range(3):
            result = blocked(cluster, "mx.eval(mx.distributed.all_sum(mx.ones(400_000)))", rank=2)
            assert all(result[rank].unblocked for rank in (0, 1, 3))
            assert idle(cluster) and sums_are_right(cluster)
        assert (world.pids(), world.lab.held()) == (pids, held)
        os.kill(pids[3] or 0, signal.SIGKILL)
        assert comes_true(cluster, lambda now: now.ranks[3].state == "dead", WITHIN)
        cluster.heal()
        assert world.pids()[:3] == pids[:3] and sums_are_right(cluster)
