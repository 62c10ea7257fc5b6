"""A rank skips a collective and the others wait for ever: stop gives the prompt back, and nothing is lost."""

from __future__ import annotations

import re
import signal
import threading
import time
from pathlib import Path

import pytest

from allranks import Cluster
from allranks.errors import CellInterrupted, CellTimeout
from tests.faults.kept import KEEP, keep, look, sums_are_right
from tests.faults.stop import WITHIN, running, stop_pressed, waiting
from tests.faults.test_silence import Shown
from tests.jupyter import ALL_AT_REST, Notebook
from tests.waiting import comes_true, idle

SKIPS = "if rank != 1:\n    mx.eval(mx.distributed.all_sum(mx.ones(1000)))"
PATIENCE = 60.0
"""What a machine that is busy with other things gets on top of what is promised."""


def test_stop_in_this_process(ring4: Cluster) -> None:
    kept, generation = keep(ring4), ring4.snapshot.generation
    with stop_pressed(ring4, waiting(0, 2, 3)), pytest.raises(CellInterrupted):
        ring4.run(SKIPS)
    assert idle(ring4) and sums_are_right(ring4)  # which re-forms the world, if a rank came later than the prompt
    assert (ring4.state, ring4.snapshot.generation) == ("whole", generation + 1)
    assert look(ring4) == kept


@pytest.mark.slow
def test_the_stop_button_of_a_notebook(notebook: Notebook) -> None:
    notebook.ok("%%distributed\nheld = mx.arange(3) + rank\nmx.eval(held)\nwhich = id(held)")
    notebook.ok(
        "import allranks.cluster.cell\n"
        "within, allranks.cluster.cell.INTERRUPT_WITHIN = allranks.cluster.cell.INTERRUPT_WITHIN, 60.0"
    )
    running_cell = notebook.begin(f"%%distributed\n{SKIPS}")
    missing = r"rank 1 (never entered it; it finished the cell|has not entered it yet)"
    notebook.until(lambda: bool(re.search(missing, running_cell.all)), WITHIN, lambda: running_cell.all)
    pressed = time.monotonic()
    notebook.interrupt()
    cell = notebook.finish(running_cell)
    assert time.monotonic() - pressed < 2 + PATIENCE
    assert cell.error.startswith(("KeyboardInterrupt", "CellInterrupted")), cell.all
    assert "Re-formed the world in" in cell.stdout and "Still busy" not in cell.error
    notebook.ok("allranks.cluster.cell.INTERRUPT_WITHIN = within")
    notebook.comes_true(ALL_AT_REST)
    same = notebook.ok("%%distributed\nid(held) == which, (held - rank).tolist()")
    assert same.by_rank == dict.fromkeys(range(4), "(True, [0, 1, 2])\n")
    total = notebook.ok("%%distributed\nmx.distributed.all_sum(mx.array(1)).item()")
    assert total.by_rank == dict.fromkeys(range(4), "4\n")


@pytest.mark.mpi
def test_on_mpi_no_rank_is_restarted(restarted_mpi4: Cluster) -> None:
    kept, pids = keep(restarted_mpi4), [rank.pid for rank in restarted_mpi4.snapshot.ranks]
    with stop_pressed(restarted_mpi4, waiting(0, 2, 3)), pytest.raises(CellInterrupted):
        restarted_mpi4.run(SKIPS)
    assert idle(restarted_mpi4) and sums_are_right(restarted_mpi4) and restarted_mpi4.state == "whole"
    assert [rank.pid for rank in restarted_mpi4.snapshot.ranks] == pids
    assert look(restarted_mpi4) == kept


@pytest.mark.parametrize(
    "deaf",
    ["signal.signal(signal.SIGINT, signal.SIG_IGN)", "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])"],
    ids=["ignores", "blocks"],
)
def test_a_cell_that_takes_no_signal_is_the_only_one(ring2: Cluster, deaf: str) -> None:
    """As in a notebook, where ipykernel sets the handler for each cell."""
    ring2.run(f"import signal, time\n{deaf}").check()
    with stop_pressed(ring2, running(0, 1)), pytest.raises(CellInterrupted):
        ring2.run("time.sleep(600)")
    assert idle(ring2) and sums_are_right(ring2)


ENDS_LATE = """
import os, time
if rank == 0:
    late = mx.distributed.all_sum(mx.ones(10)) * 2
    try:
        mx.eval(mx.distributed.all_sum(mx.ones(1000)))
    finally:
        over = False
        while not over:
            try:
                while not os.path.exists("{go}"):
                    time.sleep(0.01)
                over = True
            except KeyboardInterrupt:
                pass
"""


@pytest.mark.slow
def test_the_next_cell_says_what_a_stopped_one_could_not(ring2: Cluster, tmp_path: Path) -> None:
    """Where a rank comes out only after the prompt is back."""
    go, shown = tmp_path / "go", Shown()
    with stop_pressed(ring2, waiting(0)), pytest.raises(CellInterrupted, match="Still busy"):
        ring2.run(ENDS_LATE.format(go=go))
    go.touch()
    assert idle(ring2) and ring2.state == "broken"
    assert ring2.run("rank", screen=shown).ok
    assert re.search(r"Before this cell: Re-formed the world in [\d.]+ s\. All variables were kept", shown.text)
    assert "rank 0: late is invalid: its collective was aborted. Recompute it." in shown.text, shown.text
    shown.text = ""
    assert ring2.run("late = None", screen=shown).ok and not shown.text


@pytest.mark.slow
@pytest.mark.mpi
def test_on_mpi_a_compiled_step_that_a_rank_skipped_is_entered_for_it(restarted_mpi4: Cluster) -> None:
    restarted_mpi4.run("step = mx.compile(lambda x: mx.distributed.all_sum(x) + 1)\nmx.eval(step(mx.ones(4)))").check()
    with stop_pressed(restarted_mpi4, waiting(0, 2, 3)), pytest.raises(CellInterrupted):
        restarted_mpi4.run("if rank != 1:\n    mx.eval(step(mx.ones(4)))")
    assert idle(restarted_mpi4) and sums_are_right(restarted_mpi4)


@pytest.mark.slow
def test_a_timeout_does_the_same(ring4: Cluster) -> None:
    kept = keep(ring4)
    cell = ring4.begin(SKIPS, timeout=0.5)
    assert comes_true(ring4, waiting(0, 2, 3), WITHIN)
    with pytest.raises(CellTimeout):
        cell.finish()
    assert idle(ring4) and sums_are_right(ring4)
    assert look(ring4) == kept


PRESSES = """
import os, signal, threading, allranks
over, pressed, pressing = threading.Event(), 0, threading.Lock()
generation = allranks.current().snapshot.generation
def press():
    global pressed
    for when in (
        lambda now: all(now.ranks[rank].state == "waiting" for rank in (0, 2, 3)),
        lambda now: now.state == "broken",
        lambda now: now.state == "broken" and now.ranks[0].state in ("failed", "idle", "unblocked"),
    ):
        world = allranks.current()
        if world._live.ranks.monitor.wait(lambda: over.is_set() or when(world.snapshot), 60):
            with pressing:
                if not over.is_set():
                    pressed += 1
                    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=press, daemon=True).start()
"""


@pytest.mark.slow
def test_stop_pressed_again_and_again_is_one_stop(notebook: Notebook) -> None:
    """Also while the first one is being carried out and while the world is re-formed.

    In a kernel: what is pressed when the cell has just ended stops nothing there, and would stop the tests here.
    """
    notebook.ok(f"%%distributed\n{KEEP}")
    kept = notebook.ok("%%distributed\nkept_look()").by_rank
    notebook.ok(PRESSES)
    cell = notebook.run(f"%%distributed\n{SKIPS}")
    assert cell.error.startswith(("KeyboardInterrupt", "CellInterrupted")), cell.all
    assert any(not notebook.run("with pressing: over.set()").error for _ in range(4)), (
        "each press stops one cell at most"
    )
    notebook.comes_true(ALL_AT_REST)
    total = notebook.ok("%%distributed\nmx.distributed.all_sum(mx.array(1)).item()")
    assert total.by_rank == dict.fromkeys(range(4), "4\n")
    notebook.ok("assert pressed >= 1 and allranks.current().snapshot.generation == generation + 1")
    assert notebook.ok("%%distributed\nkept_look()").by_rank == kept


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [
        "while True:\n    mx.eval(mx.distributed.all_sum(mx.ones(1000)))",
        "import time\nwhile True:\n    time.sleep(0.001)",
        "import itertools, time\nfor i in itertools.count():\n    print(i, flush=i % 3 == 0)\n    time.sleep(1e-4)",
        "while True:\n    exec(compile('1 + 1', '<text>', 'exec'))",
        "import asyncio\nwhile True:\n    await asyncio.sleep(0)",
    ],
    ids=["collectives", "sleeps", "prints", "compiles", "awaits"],
)
def test_stop_at_any_moment_ends_no_rank(code: str, ring4: Cluster) -> None:
    kept, pids = keep(ring4), [rank.pid for rank in ring4.snapshot.ranks]
    for _ in range(4):
        with (
            stop_pressed(ring4, running(0, 1, 2, 3)),
            pytest.raises(CellInterrupted),
        ):
            ring4.run(code)
        assert idle(ring4)
    assert [rank.pid for rank in ring4.snapshot.ranks] == pids
    assert sums_are_right(ring4)
    assert look(ring4) == kept


@pytest.mark.slow
def test_stop_before_the_cell_has_begun_on_the_ranks(ring4: Cluster) -> None:
    """The order to stop overtakes the cell, which goes a longer way."""
    ring4.run("reached = 0").check()
    for _ in range(10):
        cell = ring4.begin("import time\nreached += 1\ntime.sleep(600)")
        cell.interrupt()
        assert not cell.finish(WITHIN).ok
    assert sums_are_right(ring4)


@pytest.mark.slow
def test_stop_of_a_cell_that_is_over_stops_nothing(ring4: Cluster) -> None:
    for _ in range(10):
        cell = ring4.begin("1")
        cell.finish(WITHIN).check()
        cell.interrupt()
        cell._outcome.open.update(cell.ranks)  # as if the rank's last word were still on its way
        cell.interrupt()
        ring4.run("import time\ntime.sleep(0.01)", timeout=WITHIN).check()


@pytest.mark.slow
def test_a_rank_frees_itself_that_comes_to_a_collective_only_after_the_prompt_is_back(
    ring4: Cluster, tmp_path: Path
) -> None:
    """Nobody follows that cell any more; the next one finds the world formed anew."""
    kept, go = keep(ring4), tmp_path / "go"
    cell = ring4.begin(
        "import ctypes, os\n"
        "if rank == 1:\n"
        "    libc, waits = ctypes.CDLL(None), True\n"
        "    while waits:\n"
        "        try:\n"
        f"            while waits := libc.access({str(go).encode()!r}, 0):\n"
        "                libc.usleep(20000)\n"
        "        except KeyboardInterrupt:\n"
        "            pass\n"
        "    mx.eval(mx.distributed.all_sum(mx.ones(10)))"
    )
    assert comes_true(ring4, lambda now: (now.ranks[1].line or 0) in (6, 7), WITHIN)
    with pytest.raises(CellTimeout, match="Still busy"):
        cell.finish(0.1)
    go.touch()
    assert idle(ring4, WITHIN)
    assert sums_are_right(ring4)
    assert look(ring4) == kept


@pytest.mark.slow
def test_threads_of_the_notebook_that_follow_a_cell_leave_ctrl_c_alone(ring4: Cluster) -> None:
    cell = ring4.begin("import time\ntime.sleep(600)")
    ended: list[BaseException] = []

    def follow() -> None:
        try:
            cell.finish()
        except BaseException as error:
            ended.append(error)

    follower = threading.Thread(target=follow)
    follower.start()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert follower.is_alive(), "it is the notebook's own code that was stopped"
    cell.interrupt()
    follower.join(WITHIN)
    assert not follower.is_alive() and re.search("KeyboardInterrupt", cell.result.failure() if cell.result else "")
