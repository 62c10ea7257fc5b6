"""What a raise, a stop, a death and MLX's own exit(1) cost a world on GPUs: what docs/recovery.md says of nccl."""

from __future__ import annotations

import os
import re
import signal
import time

import pytest

from allranks import Cluster
from allranks.errors import CannotStart, CellTimeout
from tests.faults.ends import EXITS, NCCL_ERROR
from tests.faults.kept import keep, look, sums_are_right
from tests.faults.stop import stop_pressed, waiting
from tests.gpu.worlds import WITHIN, need_ranks, world
from tests.waiting import comes_true, idle

SUM = "mx.eval(mx.distributed.all_sum(mx.ones(1000)))"


def digests(cluster: Cluster, ranks: list[int]) -> list[str]:
    return [each.digest for each in look(cluster, ranks).values()]


def test_a_rank_raises_and_the_other_is_released_with_its_variables() -> None:
    with world(2) as cluster:
        kept = keep(cluster)
        result = cluster.run(f"if rank == 1:\n    raise ValueError('bad batch')\n{SUM}", timeout=WITHIN)
        assert list(result.errors) == [1]
        assert re.match(r"all_sum #\d+ f32\[1000\]", result[0].unblocked or ""), result[0]
        assert sums_are_right(cluster) and look(cluster) == kept


def test_a_rank_that_leaves_a_collective_out_is_named_and_a_stop_ends_the_wait() -> None:
    with world(2) as cluster:
        kept = keep(cluster)
        with stop_pressed(cluster, waiting(0)), pytest.raises(KeyboardInterrupt):
            cluster.run(f"if rank == 0:\n    {SUM}", timeout=WITHIN)
        assert idle(cluster, WITHIN)
        assert sums_are_right(cluster) and look(cluster) == kept


def test_a_killed_idle_rank_is_healed_and_the_other_keeps_its_values() -> None:
    with world(2) as cluster:
        keep(cluster)
        before = digests(cluster, [0])
        os.kill(cluster.snapshot.ranks[1].pid or 0, signal.SIGKILL)
        assert comes_true(cluster, lambda now: now.ranks[1].state == "dead", WITHIN)
        assert "killed by SIGKILL" in (cluster.snapshot.ranks[1].cause or "")
        assert "rank 0 restarted with all variables" in str(cluster.heal())
        assert sums_are_right(cluster) and digests(cluster, [0]) == before


def test_a_rank_killed_in_a_collective_ends_the_cell_and_is_healed() -> None:
    with world(2) as cluster:
        keep(cluster)
        before = digests(cluster, [0])
        cell = cluster.begin(f"import time\nif rank == 1:\n    time.sleep(600)\n{SUM}")
        assert comes_true(cluster, waiting(0), WITHIN), cluster.snapshot
        os.kill(cluster.snapshot.ranks[1].pid or 0, signal.SIGKILL)
        killed = time.monotonic()
        try:
            failure = cell.finish(WITHIN).failure()
        except CellTimeout as error:
            failure = str(error)
        assert "killed by SIGKILL" in failure and time.monotonic() - killed < 30, failure
        print("heal says:", cluster.heal())  # what it says of rank 0 is what is to be found out
        assert sums_are_right(cluster) and digests(cluster, [0]) == before


def test_mlx_ends_the_process_where_nccl_cannot_start_and_the_rank_is_named_with_what_nccl_said() -> None:
    need_ranks(1)
    cluster = Cluster(1, backend="nccl", env={"NCCL_NET": "nosuchnet"})
    with pytest.raises(CannotStart, match=r"rank 0: exited with code 1 \(NCCL error .*nccl\.cpp"):
        cluster.up()


def test_a_rank_that_mlx_ends_in_a_cell_is_named_and_healed() -> None:
    with world(2) as cluster:
        keep(cluster)
        before = digests(cluster, [0])
        result = cluster.run(EXITS, ranks=[1], timeout=WITHIN)
        assert f"exited with code 1 ({NCCL_ERROR})" in (result[1].dead or ""), result
        cluster.heal()
        assert sums_are_right(cluster) and digests(cluster, [0]) == before


FULL = """
a = [mx.ones((1 << 28,)) for _ in range(1 + (mx.device_info()["total_memory"] >> 30))]
mx.eval(a)
"""


def test_a_cell_that_fills_the_gpu_before_the_first_collective_costs_no_rank() -> None:
    with world(2) as cluster:
        kept = keep(cluster)
        failed = cluster.run(FULL, timeout=WITHIN)
        assert failed.errors and all("out of memory" in str(each) for each in failed.errors.values()), failed
        assert cluster.state == "whole" and sums_are_right(cluster)
        cluster.run("del a; mx.clear_cache()").check()
        assert look(cluster) == kept


def test_the_world_grows_shrinks_and_changes_its_backend() -> None:
    with world(2) as cluster:
        keep(cluster)
        before = digests(cluster, [0])
        for change in (lambda: cluster.resize(1), lambda: cluster.resize(2, source=0)):
            change()
            assert sums_are_right(cluster) and digests(cluster, [0]) == before
        for backend in ("ring", "nccl"):
            cluster.rewire(backend)
            assert cluster.backend == backend
            assert sums_are_right(cluster) and digests(cluster, [0]) == before
