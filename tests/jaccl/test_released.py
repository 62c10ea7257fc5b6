"""What JACCL holds of RDMA is given back before a rank ends: else it may be lost until the Mac is restarted."""

from __future__ import annotations

import os
import signal

import pytest

from tests.waiting import comes_true

from .conftest import NewWorld
from .lab.world import World

WITHIN = 60.0
BLOCKED = "if rank == 0: mx.eval(mx.distributed.all_sum(mx.ones(3)))\nelse:\n    import time; time.sleep(600)"


def is_blocked(world: World) -> bool:
    return comes_true(world.cluster, lambda now: now.ranks[0].state == "waiting", WITHIN)


@pytest.mark.parametrize("blocked", [False, True], ids=["idle", "blocked"])
@pytest.mark.parametrize("backend", ["jaccl", pytest.param("jaccl-ring", marks=pytest.mark.slow)])
def test_down_leaves_nothing(backend: str, blocked: bool, new_world: NewWorld) -> None:
    with new_world(backend) as world:
        pids = world.pids()
        assert world.lab.held(pids)
        if blocked:
            world.cluster.begin(BLOCKED)
            assert is_blocked(world)
        world.cluster.down()
        assert world.lab.held(pids) == {}


@pytest.mark.slow
def test_a_driver_that_completes_nothing_keeps_nothing(new_world: NewWorld) -> None:
    with new_world("jaccl", LAB_RDMA_ERR="silent") as world:
        pids = world.pids()
        world.cluster.begin(BLOCKED)
        assert is_blocked(world)
        world.cluster.down()
        assert world.lab.held(pids) == {}


@pytest.mark.slow
def test_down_leaves_nothing_where_collectives_cannot_be_aborted(new_world: NewWorld) -> None:
    with new_world("jaccl", ALLRANKS_JACCL_IN_PLACE="0") as world:
        pids = world.pids()
        assert "ALLRANKS_JACCL_IN_PLACE=0 is set" in world.cluster.snapshot.notes[0]
        world.cluster.run("mx.eval(mx.distributed.all_sum(mx.ones(3)))").check()
        world.cluster.down()
        assert world.lab.held(pids) == {}


def test_sigterm_ends_a_blocked_rank_as_a_signal_and_leaves_nothing(new_world: NewWorld) -> None:
    with new_world("jaccl") as world:
        cluster, pids = world.cluster, world.pids()
        cell = cluster.begin(BLOCKED)
        assert is_blocked(world)
        os.kill(pids[0] or 0, signal.SIGTERM)
        assert comes_true(cluster, lambda now: now.ranks[0].state == "dead", WITHIN)
        cluster.interrupt()
        result = cell.finish(WITHIN)
        assert not result[0].ok and world.lab.held(pids[:1]) == {}
        assert cluster._monitor is not None and "SIGTERM" in (cluster._monitor.ranks[0].dead or "")
        cluster.heal(kill=[1])
        held = world.lab.held(world.pids())
        assert held == {"contexts": 2, "domains": 2, "queues": 2, "pairs": 2, "regions": 128}


@pytest.mark.slow
def test_a_child_that_gets_sigterm_ends_alone(new_world: NewWorld) -> None:
    code = """
import os, time
if not (pid := os.fork()):
    time.sleep(600)
os.kill(pid, 15)
os.waitpid(pid, 0)[1]
"""
    with new_world("jaccl") as world:
        pids = world.pids()
        assert [each.value for each in world.cluster.run(code, timeout=WITHIN).check().values()] == [15, 15]
        sums = world.cluster.run("mx.distributed.all_sum(mx.ones(3)).tolist()").check()
        assert [each.value for each in sums.values()] == [[2.0] * 3] * 2 and world.pids() == pids
