"""A stopped rank of JACCL goes on where it was; `rewire` to every other backend and back keeps what ranks hold."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.kept import TRAINING, keep, look, sums_are_right
from tests.faults.stop import running, waiting
from tests.waiting import comes_true, idle

from .conftest import NewWorld
from .lab.world import World

WITHIN = 120.0


@pytest.fixture(scope="module", params=["jaccl", pytest.param("jaccl-ring", marks=pytest.mark.slow)])
def world(request: pytest.FixtureRequest, new_world: NewWorld) -> Iterator[World]:
    with new_world(request.param) as made:
        yield made


def stopped_in_traffic(world: World, go: Path) -> None:
    """Have the ranks add until `go` is there, and stop the process of rank 1 meanwhile."""
    assert comes_true(world.cluster, running(0, 1), WITHIN)
    os.kill(world.pids()[1] or 0, signal.SIGSTOP)
    assert comes_true(world.cluster, lambda now: now.ranks[1].state == "suspended", WITHIN)
    assert comes_true(world.cluster, waiting(0), WITHIN)
    assert world.cluster.state == "whole", "it is not dead"
    go.touch()


def adds_until(go: Path) -> str:
    return (
        "import os\ntotal = left = 2\nwhile left:\n"
        f"    left = mx.distributed.all_min(mx.array(0 if os.path.exists({str(go)!r}) else 2)).item()\n"
        "    total += mx.distributed.all_sum(mx.array(1)).item() - 2\ntotal"
    )


def test_a_stopped_rank_goes_on_where_it_was(world: World, tmp_path: Path) -> None:
    cluster, kept, held, pids = world.cluster, keep(world.cluster), world.lab.held(), world.pids()
    cell = cluster.begin(adds_until(tmp_path / "go"))
    stopped_in_traffic(world, tmp_path / "go")
    os.kill(pids[1] or 0, signal.SIGCONT)
    assert [each.value for each in cell.finish(WITHIN).check().values()] == [2, 2]
    assert sums_are_right(cluster) and look(cluster) == kept and (world.lab.held(), world.pids()) == (held, pids)


@pytest.mark.slow
def test_what_waits_for_a_stopped_rank_is_aborted(world: World, tmp_path: Path) -> None:
    cluster, kept, held, pids = world.cluster, keep(world.cluster), world.lab.held(), world.pids()
    cell = cluster.begin(adds_until(tmp_path / "never"))
    stopped_in_traffic(world, tmp_path / "go")
    cluster.interrupt()
    assert comes_true(cluster, lambda now: now.ranks[0].state != "waiting", WITHIN)
    os.kill(pids[1] or 0, signal.SIGCONT)
    result = cell.finish(WITHIN)
    assert not any(each.ok for each in result.values()) and idle(cluster)
    if cluster.state != "whole":
        cluster.heal()
    assert sums_are_right(cluster) and look(cluster) == kept and (world.lab.held(), world.pids()) == (held, pids)


@pytest.mark.slow
@pytest.mark.mpi
def test_rewire_to_every_other_backend_and_back_keeps_values(need_mpi: None, new_world: NewWorld) -> None:
    with new_world("jaccl") as world:
        cluster = world.cluster
        cluster.run(TRAINING).check()
        digests = {rank: each.digest for rank, each in keep(cluster).items()}
        for backend in ("ring", "jaccl", "mpi", "jaccl-ring", "mpi", "ring", "jaccl"):
            change = cluster.rewire(backend)
            assert cluster.backend == backend and not change.missing and sums_are_right(cluster)
            assert {rank: each.digest for rank, each in look(cluster).items()} == digests
            assert {each.value for each in cluster.run("step(2); opt.state['step'].item()").check().values()} != {1}
            assert bool(world.lab.held(world.pids())) == backend.startswith("jaccl")
        assert world.lab.held() == world.lab.held(world.pids()), "no process has left anything"
