"""Threads and tasks of the user's that go on with collectives while the main thread raises."""

from __future__ import annotations

from contextlib import suppress

import pytest

from allranks import Cluster
from allranks.cluster.cell import Cell
from allranks.errors import CellTimeout
from tests.faults.kept import keep, look, sums_are_right
from tests.faults.test_silence import Shown
from tests.waiting import WITHIN, comes_true, idle

pytestmark = pytest.mark.slow

THREAD = """
import threading, time
seen, caught, ends, over = [], [], False, threading.Event()
def loop():
    ending = 0
    while ending != 2:  # the same collective is the last one of both ranks
        try:
            total, ending = mx.distributed.all_sum(mx.array([1, ends], mx.float32), stream=mx.cpu).tolist()
            seen.append(total)
            time.sleep(0.0005)  # so that these threads leave something of two cores
        except Exception as error:
            caught.append(str(error))
            time.sleep(0.001)
    over.set()
threading.Thread(target=loop, daemon=True).start()
"""
RAISES = """
if rank == 1:
    time.sleep(0.2)
    raise ValueError('bad batch')
over.wait()
"""
END = """
before = len(seen)
while len([number for number in seen[before:] if number == number]) < 200:  # it goes on in the next world
    time.sleep(0.02)
ends = True
over.wait(30)
"""
TASK = """
import asyncio
seen, caught, held = [], [], {}
async def loop():
    while True:
        try:
            total = mx.distributed.all_sum(mx.array([1.0, 1.0]))
            mx.eval(total)
            seen.append(total.tolist()[0])
        except Exception as error:
            caught.append(str(error))
        await asyncio.sleep(0)
"""
BOTH = """
held['task'] = asyncio.ensure_future(loop())
await asyncio.sleep(0.2)
if rank == 1:
    raise ValueError('bad batch')
await asyncio.sleep(1)
"""
ALONE = """
if rank == 1:
    held['task'] = asyncio.ensure_future(loop())
"""
CANCEL = """
if 'task' in held:
    held['task'].cancel()
    await asyncio.sleep(0)
    while not held['task'].done():
        await asyncio.sleep(0.01)
"""
LOSES = """
from allranks.rank.process.engine import RankEngine
main, lost = RankEngine.instance().agent.main, []
def lose():
    if len(lost) < 2:
        lost.append(1)
    else:
        type(main).interrupt(main)
main.interrupt = lose
"""
ROUNDS = 3


@pytest.fixture(params=["ring2", pytest.param("mpi2", marks=pytest.mark.mpi)])
def world(request: pytest.FixtureRequest) -> Cluster:
    cluster: Cluster = request.getfixturevalue(request.param)
    return cluster


def finished(cell: Cell, within: float) -> str:
    """How a cell ended, or was stopped: a rank whose thread is between two collectives is not blocked."""
    try:
        return repr(cell.finish(within))
    except CellTimeout as error:
        return f"stopped: {error}"


def test_a_thread_that_goes_on_never_gets_a_wrong_number(world: Cluster) -> None:
    kept = keep(world)
    for _ in range(ROUNDS):
        how = finished(world.begin(THREAD + RAISES), 5)
        assert idle(world), (world.snapshot.doing([0, 1]), how)
        ended = world.run(END)
        assert [each.value for each in ended.check().values()] == [True, True]
        result = world.run("{number for number in seen if number == number} - {2.0}, len(caught) > 0").check()
        assert [each.value for each in result.values()] == [(set(), True)] * 2
    assert sums_are_right(world) and look(world) == kept


def test_a_stop_whose_signals_are_lost_is_sent_again(ring2: Cluster) -> None:
    """Beside a thread whose collective is aborted: Python misses a signal that comes just before it waits."""
    ring2.run(LOSES).check()
    with suppress(CellTimeout):
        ring2.begin(THREAD + "over.wait()").finish(1)
    assert idle(ring2), ring2.snapshot.doing([0, 1])
    ring2.run("del main.interrupt").check()
    ring2.run(END).check()


@pytest.mark.parametrize("begins", [BOTH, ALONE], ids=["both", "alone"])
def test_a_task_that_goes_on_never_gets_a_wrong_number_and_can_be_cancelled(world: Cluster, begins: str) -> None:
    kept = keep(world)
    world.begin(TASK + begins).finish(10)
    assert idle(world)
    assert cancelled(world)
    result = world.run("{number for number in seen if number == number} - {2.0}").check()
    assert [each.value for each in result.values()] == [set()] * 2
    assert sums_are_right(world) and look(world) == kept


def test_a_cell_says_that_it_waits_for_a_task(world: Cluster) -> None:
    world.run(TASK + ALONE).check()
    shown = Shown()
    cell = world.begin("1", screen=shown)
    assert comes_true(world, lambda now: now.ranks[1].in_task, WITHIN)
    assert "(line 6), which an asyncio task of an earlier cell called" in world.snapshot.ranks[1].doing
    cell.finish(30)
    assert "an asyncio task of an earlier cell is blocked in all_sum" in shown.text
    assert "rank 0 never entered it; it finished the cell" in shown.text
    cancelled(world)
    assert sums_are_right(world)


def cancelled(world: Cluster) -> bool:
    """Cancels the tasks; a cell in whose lines they block is aborted with them, and is run again."""
    return any(all(each.ok for each in world.begin(CANCEL).finish(30).values()) for _ in range(3))
