"""A stopped process (SIGSTOP, a sleeping host) is called silent, not dead, and goes on where it was."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

from allranks import Cluster
from allranks._fold import Block
from tests.faults.kept import WITHIN, keep, look, sums_are_right
from tests.faults.stop import running
from tests.waiting import comes_true


class Shown:
    """What a notebook would show."""

    def __init__(self) -> None:
        self.text = ""

    def blocks(self, blocks: list[Block]) -> None:
        self.text += "".join(f"{block.ranks}: {block.content}" for block in blocks)

    def live_lines(self, lines: dict[int, str]) -> None:
        pass

    def close(self) -> None:
        pass


def test_a_stopped_rank_is_reported_and_the_cell_ends_right_after_it_goes_on(ring4: Cluster) -> None:
    kept, shown = keep(ring4), Shown()
    pid = ring4.snapshot.ranks[1].pid
    assert pid is not None
    cell = ring4.begin(
        "total = 0\nfor i in range(300):\n    total += mx.distributed.all_sum(mx.array(i)).item()\ntotal", screen=shown
    )
    assert comes_true(ring4, running(0, 1, 2, 3), WITHIN)
    os.kill(pid, signal.SIGSTOP)
    try:
        seen: list[Any] = []
        # It reports five times a second; after four seconds without a word it is called stopped.
        silent = comes_true(ring4, lambda now: now.ranks[1].state == "stopped", WITHIN)
        seen.append(ring4.snapshot.ranks[1].doing)
        assert silent and ring4.snapshot.ranks[1].state == "stopped", seen
        assert ring4.state == "whole", "it is not dead"
    finally:
        os.kill(pid, signal.SIGCONT)
    result = cell.finish(WITHIN).check()
    assert [each.value for each in result.values()] == [4 * sum(range(300))] * 4
    assert sums_are_right(ring4)
    assert look(ring4) == kept


def test_it_is_said_in_the_cell_unasked(ring4: Cluster) -> None:
    shown = Shown()
    pid = ring4.snapshot.ranks[1].pid
    assert pid is not None
    cell = ring4.begin(
        "import os, signal, subprocess\n"
        "if rank == 1:\n"
        "    subprocess.Popen(['sh', '-c', f'sleep 6; kill -CONT {os.getpid()}'])\n"
        "    os.kill(os.getpid(), signal.SIGSTOP)\n"
        "mx.distributed.all_sum(mx.array(1)).item()",
        screen=shown,
    )
    result = cell.finish(WITHIN).check()
    assert [each.value for each in result.values()] == [4] * 4
    assert "(1,): does not answer" in shown.text
    assert "(0, 2, 3): waiting in all_sum" in shown.text and "rank 1 has not come" in shown.text


COMPUTES = """\
total = mx.distributed.all_sum(mx.ones(10))
mx.eval(total)
if rank == 0:
    a = mx.random.normal((1000, 1000))
    for _ in range(25):
        a = a @ a / 1000
    mx.eval(a)
"""


def test_a_rank_that_computes_by_itself_is_not_said_to_wait(ring2: Cluster) -> None:
    """MLX computes in a thread of its own while the main thread sleeps, as it does in a collective."""
    shown, seen = Shown(), set()
    cell = ring2.begin(COMPUTES, screen=shown)
    follow = threading.Thread(target=cell.finish, daemon=True)
    follow.start()
    while follow.is_alive():
        view = ring2.snapshot.ranks[0]
        seen.add((view.state, view.line))
        follow.join(0.05)
    assert ("running", 7) in seen and ("waiting", 7) not in seen
    assert "waiting" not in shown.text
