"""A rank that has used up its file descriptors is reported, unblocked, and re-joins the world, as any other."""

from __future__ import annotations

import subprocess
import sys

import pytest

from allranks import Cluster
from tests.faults.kept import WITHIN, sums_are_right
from tests.faults.stop import running, stop_pressed, waiting
from tests.faults.test_silence import Shown
from tests.waiting import comes_true, idle

USES_ALL = """
import os, resource
held, limit = [], resource.getrlimit(resource.RLIMIT_NOFILE)
if rank == 1:
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/dev/fd"))) + 200, limit[1]))
    try:
        while True:
            held.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        pass
"""
RESTORE = """
resource.setrlimit(resource.RLIMIT_NOFILE, limit)
while held: os.close(held.pop())
"""
LENDS = """
import os, resource, threading
from allranks.rank.world.reserved_descriptors import COUNT, Reserve

def used():
    return len(os.listdir("/dev/fd"))

def lend():
    for _ in range(50):
        with reserve.lent(), reserve.lent():
            pass

before, reserve = used(), Reserve()
threads = [threading.Thread(target=lend) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert used() == before + COUNT
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
with reserve.lent():
    assert used() == before
    resource.setrlimit(resource.RLIMIT_NOFILE, (before + 4, hard))
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
assert used() < before + COUNT
with reserve.lent():
    pass
assert used() == before + COUNT
"""
SUM = "mx.eval(mx.distributed.all_sum(mx.ones(10)))"


def test_a_rank_without_descriptors_is_unblocked(ring4: Cluster) -> None:
    shown, generation = Shown(), ring4.snapshot.generation
    cell = ring4.begin(f"{USES_ALL}\nif rank != 2: {SUM}", screen=shown)
    assert comes_true(ring4, waiting(0, 1, 3), WITHIN)
    cell.interrupt()
    cell.finish(WITHIN)
    assert idle(ring4) and (ring4.state, ring4.snapshot.generation) == ("whole", generation + 1)
    assert "Too many open files" not in shown.text and "unblocked from all_sum #" in shown.text
    assert ring4.run("len(held) > 50").check()[1].value is True
    assert sums_are_right(ring4)
    with stop_pressed(ring4, waiting(0, 1, 3)), pytest.raises(KeyboardInterrupt):  # it has not come to its end
        ring4.run(f"if rank != 2: {SUM}", timeout=WITHIN)
    assert idle(ring4) and sums_are_right(ring4)
    ring4.run(RESTORE).check()


@pytest.mark.slow
def test_python_code_there_is_stopped_and_shown(ring4: Cluster) -> None:
    shown = Shown()
    ring4.run(f"import time\n{USES_ALL}").check()
    with stop_pressed(ring4, running(0, 1, 2, 3)), pytest.raises(KeyboardInterrupt):
        ring4.run("time.sleep(600)", screen=shown, timeout=WITHIN)
    assert idle(ring4)
    # One that something else used for a moment while all others were taken may be free again.
    failed = ring4.run("if rank == 1:\n    while True: held.append(os.open(os.devnull, os.O_RDONLY))", timeout=WITHIN)
    assert "Too many open files" in failed.failure() and sums_are_right(ring4)
    ring4.run(RESTORE).check()


def test_what_is_lent_comes_back_also_from_several_threads() -> None:
    """In a process of its own: here, threads of other tests open and close descriptors meanwhile."""
    done = subprocess.run([sys.executable, "-c", LENDS], capture_output=True, text=True, timeout=WITHIN)
    assert done.returncode == 0, done.stderr
