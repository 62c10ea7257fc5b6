"""`break` and `interrupt` for a cell that nobody waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from allranks.errors import Busy
from tests.waiting import WITHIN

if TYPE_CHECKING:
    from allranks import Cluster

pytestmark = pytest.mark.slow

SKIPPED = "if rank != 1: mx.eval(mx.distributed.all_sum(mx.ones(10)))\n'through'"


def wait_until_waiting(cluster: Cluster, rank: int) -> None:
    assert cluster._live.ranks is not None
    monitor = cluster._live.ranks.monitor
    assert monitor.wait(lambda: monitor.ranks[rank].report.waiting, WITHIN)


def test_break_frees_the_waiting_ranks_and_the_world_is_whole_again(ring2: Cluster) -> None:
    ring2.run("kept = mx.arange(3)")
    cell = ring2.begin(SKIPPED)
    wait_until_waiting(ring2, 0)
    ring2.abort_collectives(ranks=0)
    result = cell.finish(WITHIN)
    assert result[0].unblocked is not None
    assert result[1].ok
    assert ring2.state == "whole"
    assert ring2.run("(mx.distributed.all_sum(mx.ones(1)).item(), kept.tolist())")[1].value == (2.0, [0, 1, 2])


def test_interrupt_releases_where_nothing_can_be_broken(restarted_mpi2: Cluster) -> None:
    pids = [rank.pid for rank in restarted_mpi2.snapshot.ranks]
    cell = restarted_mpi2.begin(SKIPPED)
    wait_until_waiting(restarted_mpi2, 0)
    restarted_mpi2.interrupt()
    assert not cell.finish(WITHIN).ok
    assert [rank.pid for rank in restarted_mpi2.snapshot.ranks] == pids, "no process was restarted"
    assert restarted_mpi2.run("mx.distributed.all_sum(mx.ones(1)).item()")[0].value == 2.0


def test_a_collective_asked_for_and_never_evaluated_is_settled(restarted_mpi2: Cluster) -> None:
    cell = restarted_mpi2.begin("x = mx.distributed.all_sum(mx.ones(3))\nif rank != 1: mx.eval(x)")
    wait_until_waiting(restarted_mpi2, 0)
    restarted_mpi2.interrupt()
    cell.finish(WITHIN)
    assert restarted_mpi2.run("x.tolist()")[1].value == [2.0] * 3


def test_a_busy_world_says_so_and_a_stuck_rank_can_be_killed(ring2: Cluster) -> None:
    ring2.run("mine = mx.arange(4)")
    cell = ring2.begin(
        "import signal, time\n"
        "if rank:\n    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])\n    time.sleep(600)"
    )
    assert ring2._live.ranks is not None
    monitor = ring2._live.ranks.monitor
    assert monitor.wait(lambda: monitor.ranks[0].cell is None and monitor.ranks[1].report.line == 4, WITHIN)
    monitor.state = "broken"
    with pytest.raises(Busy, match="heal --kill 1"):
        ring2.heal()
    told = str(ring2.heal(kill=[1]))
    assert "rank 0 kept all variables" in told
    assert "rank 1 started empty" in told
    assert not cell.finish(WITHIN).ok
    assert ring2.run("'mine' in globals()")[1].value is False
