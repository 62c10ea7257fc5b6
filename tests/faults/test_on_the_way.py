"""Many collectives on their way when the ranks are unblocked: one evaluation of a sharded model has several.

MLX raises in two of them and leaves the third hanging (0.32.4).
"""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

import pytest

from allranks.errors import CellTimeout
from tests.faults.absent import blocked
from tests.faults.stop import waiting
from tests.waiting import WITHIN, comes_true, idle

if TYPE_CHECKING:
    from allranks import Cluster

pytestmark = pytest.mark.slow

CHAIN = """
def chain(n):
    y = mx.ones(64)
    for _ in range(n):
        y = mx.distributed.all_sum(y) / size
    return y
"""
SUM = "mx.distributed.all_sum(mx.ones(1)).item()"


@pytest.fixture
def chained(ring2: Cluster) -> Cluster:
    ring2.run(CHAIN + "kept = mx.arange(3) + rank\nmx.eval(kept)").check()
    return ring2


def assert_whole(cluster: Cluster) -> None:
    assert cluster.run(f"({SUM}, kept.tolist())")[1].value == (2.0, [1, 2, 3])


def test_a_failure_elsewhere_frees_all_of_them(chained: Cluster) -> None:
    pids = [rank.pid for rank in chained.snapshot.ranks]
    result = blocked(chained, "mx.eval(chain(40))", "raise ValueError('mine')")
    assert result[0].unblocked is not None
    assert result[1].error is not None and "mine" in str(result[1].error)
    assert [rank.pid for rank in chained.snapshot.ranks] == pids
    assert_whole(chained)


def test_a_stop_frees_all_of_them(chained: Cluster) -> None:
    cell = chained.begin("if rank == 0:\n    y = chain(40)\n    mx.async_eval(y)\n    y.tolist()")
    assert comes_true(chained, waiting(0), WITHIN)
    with pytest.raises(CellTimeout):
        cell.finish(0.1)
    assert idle(chained)
    assert_whole(chained)


def test_what_an_idle_rank_has_on_its_way_does_not_hold_the_next_world(chained: Cluster) -> None:
    code = "if rank == 0:\n    y = chain(40)\n    mx.async_eval(y)\n    raise ValueError('mine')\nmx.eval(chain(80))"
    result = chained.run(code, timeout=60)
    assert not result.ok
    assert_whole(chained)


def test_after_a_death_what_the_others_hold_is_carried_over_a_restart(chained: Cluster) -> None:
    code = f"import os\nif rank == 0: os.kill(os.getpid(), {int(signal.SIGKILL)})\nmx.eval(chain(40))"
    result = chained.run(code, timeout=60)
    assert result[0].dead is not None
    told = str(chained.heal())
    assert "rank 1 kept all variables" in told
    assert chained.run(SUM)[1].value == 2.0
    assert chained.run("kept.tolist()", ranks=[1])[1].value == [1, 2, 3]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has all of 127.0.0.0/8")
def test_a_socket_of_the_users_is_left_alone_whatever_its_port(chained: Cluster) -> None:
    """Another host's ring may use the port that this host gave to something else."""
    code = """import socket
from allranks.rank.process.engine import RankEngine
port = max(RankEngine.instance().agent.world._in_place.ports)
server = socket.create_server((f"127.0.0.{2 + rank}", port))
near = socket.create_connection(server.getsockname())
far, _ = server.accept()"""
    chained.run(code).check()
    assert not chained.run("if rank == 1: raise ValueError('mine')\nmx.eval(chain(4))", timeout=60).ok
    got = chained.run("near.sendall(b'mine')\nfar.settimeout(5)\nfar.recv(4)", timeout=60).check()
    assert [each.value for each in got.values()] == [b"mine", b"mine"]
    chained.run("for each in (near, far, server): each.close()").check()


def test_collectives_of_two_streams_take_turns(ring2: Cluster) -> None:
    """On rank 0 the first one is late, so that without turns the second would overtake it there."""
    code = """other = mx.new_stream(mx.cpu)
found = []
for _ in range(5):
    late = mx.random.normal((600, 600)) if rank == 0 else mx.zeros((2, 2))
    with mx.stream(other):
        first = mx.distributed.all_sum(mx.ones(3) + 0 * (late @ late).max())
        mx.async_eval(first)
    second = mx.distributed.all_sum(mx.ones(3) * 10)
    mx.eval(second)
    found.append((first.tolist(), second.tolist()))
found"""
    result = ring2.run(code, timeout=240).check()
    assert result[0].value == result[1].value == [([2.0] * 3, [20.0] * 3)] * 5
