"""Threads and tasks of the user's that go on with collectives while the main thread raises."""

from __future__ import annotations

import pytest

from allranks import Cluster
from tests.faults.kept import keep, look, sums_are_right
from tests.waiting import idle

pytestmark = pytest.mark.slow

THREAD = """
import threading
seen, caught, over = [], [], threading.Event()
def loop():
    while not over.is_set():
        try:
            total = mx.distributed.all_sum(mx.array(1.0), stream=mx.cpu)
            seen.append(total.item())
        except Exception as error:
            caught.append(str(error))
            over.wait(0.001)
thread = threading.Thread(target=loop, daemon=True)
thread.start()
"""
RAISES = """
import time
if rank == 1:
    time.sleep(0.2)
    raise ValueError('bad batch')
thread.join()
"""
ROUNDS = 5


@pytest.fixture(params=["ring2", pytest.param("mpi2", marks=pytest.mark.mpi)])
def world(request: pytest.FixtureRequest) -> Cluster:
    cluster: Cluster = request.getfixturevalue(request.param)
    return cluster


def test_a_thread_that_goes_on_never_gets_a_wrong_number(world: Cluster) -> None:
    kept = keep(world)
    for _ in range(ROUNDS):
        world.run(THREAD + RAISES)
        ended = world.run("over.set()\nthread.join(10)\nthread.is_alive()")
        assert [each.value for each in ended.check().values()] == [False, False]
        assert idle(world)
        result = world.run("{number for number in seen if number == number} - {2.0}, len(caught) > 0").check()
        assert [each.value for each in result.values()] == [(set(), True)] * 2
    assert sums_are_right(world) and look(world) == kept
