"""What JACCL holds of RDMA is given back before a rank ends: else it may be lost until the Mac is restarted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import psutil
import pytest

from tests.waiting import comes_true, eventually

from .conftest import NewWorld
from .lab.build import Built
from .lab.lab import Lab
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
        assert cluster._live.monitor is not None and "SIGTERM" in (cluster._live.monitor.ranks[0].dead or "")
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


@pytest.mark.parametrize(
    "number", [pytest.param(0, id="blocked"), pytest.param(1, id="in Python code", marks=pytest.mark.slow)]
)
def test_heal_that_replaces_a_living_rank_leaves_nothing_of_it(number: int, new_world: NewWorld) -> None:
    with new_world("jaccl") as world:
        cluster, pids, held = world.cluster, world.pids(), world.lab.held()
        cell = cluster.begin(BLOCKED)
        assert is_blocked(world)
        cluster.heal(kill=[number])
        cell.finish(WITHIN)
        assert world.pids()[number] != pids[number] and world.lab.held(pids[number : number + 1]) == {}
        assert world.lab.held() == held, "and of the world before"


@pytest.mark.slow
def test_a_stopped_rank_is_replaced_all_the_same(new_world: NewWorld) -> None:
    with new_world("jaccl") as world:
        pids = world.pids()
        os.kill(pids[1] or 0, signal.SIGSTOP)
        world.cluster.heal(kill=[1])
        assert world.pids()[0] == pids[0] != world.pids()[1]
        assert world.lab.held(pids[1:]) != {}, "what cannot run gives nothing back"
        sums = world.cluster.run("mx.distributed.all_sum(mx.ones(3)).tolist()").check()
        assert [each.value for each in sums.values()] == [[2.0] * 3] * 2


@pytest.mark.slow
@pytest.mark.mpi
def test_rewire_to_other_processes_leaves_nothing_in_these(need_mpi: None, new_world: NewWorld) -> None:
    with new_world("jaccl") as world:
        pids = world.pids()
        world.cluster.rewire("mpi")
        assert world.lab.held(pids) == {} == world.lab.held(world.pids())
        world.cluster.rewire("jaccl")
        assert world.lab.held() == world.lab.held(world.pids()) != {}


NOTEBOOK = """
import json, sys
from allranks import Cluster
cluster = Cluster(hostfile=sys.argv[1], backend=sys.argv[2], name=sys.argv[3]).up()
if sys.argv[4]:
    cluster.begin(sys.argv[4])
    assert cluster._live.ranks.monitor.wait(lambda: cluster.snapshot.ranks[0].state == "waiting", 60)
print(json.dumps([rank.pid for rank in cluster.snapshot.ranks]), flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    "code", [pytest.param("", id="idle", marks=pytest.mark.slow), pytest.param(BLOCKED, id="blocked")]
)
@pytest.mark.parametrize("backend", ["jaccl", pytest.param("jaccl-ring", marks=pytest.mark.slow)])
def test_a_killed_notebook_leaves_nothing(backend: str, code: str, built: Built, nothing_left_behind: None) -> None:
    lab = Lab(built, 2)
    arguments = [str(lab.hostfile()), backend, f"killed{os.getpid()}", code]
    command = [sys.executable, "-c", NOTEBOOK, *arguments]
    try:
        with subprocess.Popen(
            command, env={**os.environ, **lab.env()}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as notebook:
            assert notebook.stdout is not None
            pids = json.loads(notebook.stdout.readline())
            assert lab.held(pids)
            notebook.kill()
        assert eventually(lambda: not any(map(psutil.pid_exists, pids)), WITHIN)
        assert lab.held(pids) == {}
    finally:
        lab.close()
