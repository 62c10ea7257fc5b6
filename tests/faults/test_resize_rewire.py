"""4 to 6 to 3 ranks, ring to mpi to ring: namespaces are kept, and every world computes right."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from allranks import Cluster
from allranks.errors import Busy, CannotStart, UsageError
from tests.conftest import NOT_IN_PLACE
from tests.faults.kept import WITHIN, keep, look, sums_are_right
from tests.waiting import comes_true


def test_in_place_the_ranks_that_stay_keep_the_very_objects() -> None:
    with Cluster(4, backend="ring", name="sizes") as cluster:
        kept = keep(cluster)
        pids = [rank.pid for rank in cluster.snapshot.ranks]
        grown = cluster.resize(6)
        assert "ranks 4-5 started empty" in str(grown) and (grown.changed, grown.size) == (True, 6)
        assert {rank: each.how for rank, each in grown.ranks.items()} == {
            **dict.fromkeys(range(4), "kept"),
            4: "empty",
            5: "empty",
        }
        assert cluster.size == 6 and sums_are_right(cluster)
        assert look(cluster, range(4)) == kept
        assert cluster.run("size, world.size(), kept_plain['world'] is world", ranks=3)[3].value == (6, 6, True)
        keep(cluster, [4, 5])
        cluster.resize(3)
        assert cluster.size == 3 and sums_are_right(cluster)
        assert look(cluster) == {rank: kept[rank] for rank in range(3)}
        assert [rank.pid for rank in cluster.snapshot.ranks] == pids[:3]
        assert cluster.state == "whole"


@pytest.mark.slow
def test_down_to_one_rank_and_up_again() -> None:
    with Cluster(2, backend="ring", name="one") as cluster:
        kept = keep(cluster)
        for size in (1, 3, 1, 2):
            cluster.resize(size)
            assert sums_are_right(cluster)
            assert look(cluster, [0])[0] == kept[0]


@pytest.mark.slow
def test_new_ranks_get_the_variables_of_another() -> None:
    with Cluster(2, backend="ring", name="copies") as cluster:
        kept = keep(cluster)
        with pytest.raises(UsageError, match="no rank 2"):
            cluster.resize(4, source=2)
        assert "ranks 2-3 got the variables of rank 1" in str(cluster.resize(4, source=1))
        digests = {rank: each.digest for rank, each in look(cluster).items()}
        assert digests == {0: kept[0].digest, 1: kept[1].digest, 2: kept[1].digest, 3: kept[1].digest}
        assert cluster.run("rank, size, kept_plain['world'] is world", ranks=3)[3].value == (3, 4, True)
        assert sums_are_right(cluster)


@pytest.mark.slow
@pytest.mark.mpi
def test_over_another_backend_the_values_are_carried(need_mpi: None) -> None:
    with Cluster(3, backend="ring", name="rewired") as cluster:
        kept = keep(cluster)
        digests = {rank: each.digest for rank, each in kept.items()}
        cluster.run(
            "import mlx.nn as nn\nfrom mlx.nn.layers.distributed import shard_linear\n"
            "mx.random.seed(1)\nlayer = shard_linear(nn.Linear(6, 12), 'all-to-sharded')\n"
            "step = mx.compile(lambda x: mx.distributed.all_sum(x) * rank)\n"
            "def forward():\n"
            "    return mx.distributed.all_gather(layer(mx.ones((1, 6)))).tolist(), step(mx.ones(2)).tolist()"
        ).check()
        forward = {rank: each.value for rank, each in cluster.run("forward()").check().items()}
        for backend in ("mpi", "ring"):
            rewired = cluster.rewire(backend)
            assert f"now runs on {backend}" in str(rewired) and rewired.backend == backend
            assert cluster.backend == backend and sums_are_right(cluster)
            assert {rank: each.digest for rank, each in look(cluster).items()} == digests
            assert cluster.run("kept_plain['world'] is world is layer.group")[1].value is True
            assert {rank: each.value for rank, each in cluster.run("forward()").check().items()} == forward
        cluster.run("kept_plain['name'] = 'changed'\nstep = None").check()


@pytest.mark.slow
@pytest.mark.mpi
def test_mpi_grows_and_shrinks(need_mpi: None) -> None:
    with Cluster(2, backend="mpi", name="mpisizes", mpi_args=[NOT_IN_PLACE]) as cluster:
        digests = {rank: each.digest for rank, each in keep(cluster).items()}
        for size in (3, 2):
            change = cluster.resize(size, source=1)
            assert sums_are_right(cluster)
            if size == 3:
                assert (change.ranks[2].how, change.ranks[2].source) == ("copied", 1)
                assert look(cluster, [2])[2].digest == digests[1]
            assert {rank: each.digest for rank, each in look(cluster, [0, 1]).items()} == digests


@pytest.mark.slow
def test_other_connections_in_place() -> None:
    with Cluster(2, backend="ring", name="wires") as cluster:
        kept = keep(cluster)
        cluster.rewire(connections=2)
        assert sums_are_right(cluster) and look(cluster) == kept


def test_a_running_cell_is_not_stopped(ring2: Cluster) -> None:
    """Not by `resize`, nor by `rewire`: they refuse, and name the cell and what to type."""
    cell = ring2.begin("import time\nuntil_stopped = True\nif rank == 1: time.sleep(600)", count=7)
    assert comes_true(ring2, lambda now: now.ranks[1].line == 3 and now.ranks[0].state == "idle", WITHIN)
    for verb, change in (
        ("resize 3", lambda: ring2.resize(3)),
        ("resize 1", lambda: ring2.resize(1)),
        ("rewire", lambda: ring2.rewire(connections=2)),
    ):
        with pytest.raises(Busy, match=rf"{verb} was not done: rank 1 still runs cell 7\. Wait for .* interrupt"):
            change()
    assert str(ring2.resize(2)) == "The world already has 2 ranks."
    assert ring2.size == 2 and comes_true(ring2, lambda now: now.ranks[1].state == "running", WITHIN)
    cell.interrupt()
    assert "KeyboardInterrupt" in cell.finish(WITHIN).failure()
    assert sums_are_right(ring2)


@pytest.mark.slow
def test_heal_names_the_cell_that_it_stopped() -> None:
    with Cluster(3, backend="ring", name="stops") as cluster:
        cell = cluster.begin("import time\ntime.sleep(600)", count=9)
        assert comes_true(cluster, lambda now: all(rank.line == 2 for rank in now.ranks), WITHIN)
        change = cluster.heal(kill=[2])
        assert dict(change.stopped_cells) == {9: (0, 1)}
        assert str(change).endswith("rank 2 started empty. Stopped cell 9 on ranks 0-1.")
        assert not cell.finish(WITHIN).ok
        assert sums_are_right(cluster)


@pytest.mark.mpi
def test_a_size_that_the_backend_has_not_names_one_to_rewire_to(mpi2: Cluster) -> None:
    with pytest.raises(CannotStart, match=r"ring.* can run here: %distributed rewire --backend ring$"):
        mpi2.resize(1)


def test_a_rank_that_is_to_be_killed_is_no_source(ring2: Cluster) -> None:
    with pytest.raises(UsageError, match="cannot copy from rank 1: it is to be killed, too"):
        ring2.heal(kill=[1], source=1)


def test_cells_of_another_thread_run_before_or_after_a_change(ring2: Cluster) -> None:
    code, over = "mx.distributed.all_sum(mx.array(1)).item()", threading.Event()
    ran = list[list[int]]()

    def run_cells() -> None:
        while not over.is_set():
            ran.append([each.value for each in ring2.run(code, timeout=60).check().values()])

    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(run_cells)
        try:
            for size in (3, 2, 3, 2):
                with suppress(Busy):  # cells follow one another without a pause
                    ring2.resize(size)
        finally:
            over.set()
        running.result(WITHIN)
        ring2.resize(2)
    assert ran and all(values == [len(values)] * len(values) for values in ran), ran
    assert ring2.run(code).check()[1].value == 2
