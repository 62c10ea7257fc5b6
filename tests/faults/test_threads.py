"""Threads and tasks of the user's that go on with collectives while the main thread raises."""

from __future__ import annotations

from contextlib import suppress

import pytest

from allranks import Cluster
from allranks.errors import CellTimeout
from tests.faults.kept import keep, look, sums_are_right
from tests.waiting import idle

pytestmark = pytest.mark.slow

THREAD = """
import threading, time
seen, caught = [], []
def loop():
    again = 0  # what it computed in the next world, where both ranks begin anew, and end after as many collectives
    while again < 20:
        try:
            total = mx.distributed.all_sum(mx.array(1.0), stream=mx.cpu).item()
            seen.append(total)
            again = again + 1 if caught and total == total else 0
        except Exception as error:
            caught.append(str(error))
            again = 0
            time.sleep(0.001)
thread = threading.Thread(target=loop, daemon=True)
thread.start()
"""
RAISES = """
if rank == 1:
    time.sleep(0.2)
    raise ValueError('bad batch')
thread.join()
"""
ROUNDS = 3


@pytest.fixture(params=["ring2", pytest.param("mpi2", marks=pytest.mark.mpi)])
def world(request: pytest.FixtureRequest) -> Cluster:
    cluster: Cluster = request.getfixturevalue(request.param)
    return cluster


def test_a_thread_that_goes_on_never_gets_a_wrong_number(world: Cluster) -> None:
    kept = keep(world)
    for _ in range(ROUNDS):
        with suppress(CellTimeout):  # a rank whose thread is between two collectives is not blocked
            world.begin(THREAD + RAISES).finish(5)
        assert idle(world)
        ended = world.run("thread.join(30)\nthread.is_alive()")
        assert [each.value for each in ended.check().values()] == [False, False]
        result = world.run("{number for number in seen if number == number} - {2.0}, len(caught) > 0").check()
        assert [each.value for each in result.values()] == [(set(), True)] * 2
    assert sums_are_right(world) and look(world) == kept
