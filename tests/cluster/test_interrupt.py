"""The stop button: the prompt is back, KeyboardInterrupt stops Run All, nobody's variables are lost."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from allranks import Cluster
from allranks.errors import Busy, CellInterrupted, CellTimeout
from allranks.messages.requests import Pending
from allranks.notebook import fold
from allranks.notebook.feed_dashboards import Nowhere
from tests.frames import frames_of_ours
from tests.jupyter import ALL_AT_REST, CellOutputs, Notebook
from tests.waiting import comes_true, idle

PROMPT = 2.0
"""Seconds within which the prompt is promised to be back."""
PATIENCE = 60.0
"""What a machine that is busy with other things gets on top."""

BUSY = {
    "sleep": "import time\nprint('here')\ntime.sleep(600)",
    "loop": "print('here')\nwhile True:\n    pass",
    "await": "import asyncio\nprint('here')\nawait asyncio.sleep(600)",
    "shell": "!echo here; sleep 600",
    "subprocess": "import subprocess\nprint('here')\nsubprocess.run(['sleep', '600'])",
    "lock": "import threading\nprint('here')\nthreading.Event().wait()",
    "compute": "x = mx.ones((256, 256))\nprint('here')\nwhile True:\n    mx.eval(x @ x)",
    "print": "import itertools\nfor i in itertools.count():\n    print('here', i)",
}
SUM = "%%distributed\nmx.distributed.all_sum(mx.array(1)).item()"


def stopped(notebook: Notebook, running: CellOutputs) -> CellOutputs:
    """Press stop; the cell must end with KeyboardInterrupt within the promised time."""
    notebook.interrupt()
    cell = notebook.finish(running, PROMPT + PATIENCE)
    assert cell.error.startswith(("KeyboardInterrupt", "CellInterrupted")), cell.all
    assert not frames_of_ours(cell.all)
    return cell


@pytest.fixture
def kernel_waits(notebook: Notebook) -> Iterator[None]:
    """Ranks that are stopped get as long as they take, though the prompt is to be back: the machine may be busy."""
    notebook.ok("import allranks.cluster.cell as _cell\n_within, _cell.INTERRUPT_WITHIN = _cell.INTERRUPT_WITHIN, 60.0")
    yield
    notebook.ok("_cell.INTERRUPT_WITHIN = _within")


@pytest.mark.parametrize("kind", BUSY)
def test_stop_ends_python_code_on_all_ranks(kind: str, notebook: Notebook) -> None:
    notebook.ok("%%distributed\nkept = rank + 100")
    running = notebook.begin(f"%%distributed\n{BUSY[kind]}")
    notebook.shows(running, "here")
    stopped(notebook, running)
    notebook.comes_true(ALL_AT_REST)
    assert notebook.ok("%%distributed\nkept - rank").by_rank == dict.fromkeys(range(4), "100\n")
    assert notebook.ok(SUM).by_rank == dict.fromkeys(range(4), "4\n")


def test_run_all_stops_at_the_interrupted_cell(notebook: Notebook) -> None:
    running = notebook.begin("%%distributed\nimport time\nprint('here')\ntime.sleep(600)")
    after = notebook.begin("reached = True")
    notebook.shows(running, "here")
    stopped(notebook, running)
    notebook.until(lambda: notebook.client.is_alive() and running.idle, PATIENCE)
    assert notebook.run("reached").error.startswith("NameError")
    assert after.outputs == []


@pytest.mark.slow
def test_stop_frees_ranks_that_wait_in_a_collective(notebook: Notebook, kernel_waits: None) -> None:
    notebook.ok("%%distributed\nkept = rank + 100")
    running = notebook.begin(
        "%%distributed\nimport time\nprint('here')\n"
        "if rank == 0:\n    time.sleep(600)\nmx.eval(mx.distributed.all_sum(mx.ones(10)))"
    )
    notebook.shows(running, "here")
    stopped(notebook, running)
    notebook.comes_true(f"now.state == 'whole' and {ALL_AT_REST}")
    assert notebook.ok(SUM).by_rank == dict.fromkeys(range(4), "4\n")
    assert notebook.ok("%%distributed\nkept - rank").by_rank == dict.fromkeys(range(4), "100\n")


@pytest.mark.slow
def test_stop_while_all_ranks_go_through_collectives(notebook: Notebook, kernel_waits: None) -> None:
    """Each rank is stopped at another place; none may be left in a collective that the others never enter."""
    notebook.ok("%%distributed\nkept = rank + 100")
    running = notebook.begin(
        "%%distributed\nprint('here')\nwhile True:\n    mx.eval(mx.distributed.all_sum(mx.ones(1000)))"
    )
    notebook.shows(running, "here")
    stopped(notebook, running)
    notebook.comes_true(f"now.state == 'whole' and {ALL_AT_REST}")
    assert notebook.ok(SUM).by_rank == dict.fromkeys(range(4), "4\n")
    assert notebook.ok("%%distributed\nkept - rank").by_rank == dict.fromkeys(range(4), "100\n")


@pytest.mark.slow
def test_code_that_refuses_to_stop_does_not_keep_the_prompt(notebook: Notebook, tmp_path: Path) -> None:
    go = tmp_path / "go"
    running = notebook.begin(
        "%%rank 2\nimport pathlib, time\nends = False\n"
        "while not ends:\n    try:\n        print('here')\n        time.sleep(600)\n"
        f"    except KeyboardInterrupt:\n        ends = pathlib.Path({str(go)!r}).exists()"
    )
    notebook.shows(running, "here")
    cell = stopped(notebook, running)
    assert "rank 2" in cell.traceback and "Still busy" in cell.traceback
    go.touch()
    notebook.run("%distributed interrupt")
    notebook.comes_true(ALL_AT_REST)


def test_code_may_clean_up_when_it_is_stopped(notebook: Notebook, kernel_waits: None) -> None:
    running = notebook.begin(
        "%%distributed\nimport time\ntry:\n    print('here')\n    time.sleep(600)\n"
        "finally:\n    print('cleaned up')\n    done = 1"
    )
    notebook.shows(running, "here")
    assert "cleaned up" in stopped(notebook, running).stdout
    assert notebook.ok("%%distributed\ndone").by_rank == dict.fromkeys(range(4), "1\n")


def test_timeout_of_a_cell(notebook: Notebook) -> None:
    cell = notebook.run("%%distributed --timeout 0.5\nimport time\ntime.sleep(600)")
    assert cell.error.startswith("CellTimeout: the cell was stopped after 0.5 s."), cell.all
    assert cell.seconds < 0.5 + PROMPT + PATIENCE
    notebook.comes_true(ALL_AT_REST)
    assert notebook.ok("%%distributed\n'alive'").by_rank == dict.fromkeys(range(4), "'alive'\n")


def test_interrupt_of_a_cell_in_the_background(notebook: Notebook) -> None:
    running = notebook.ok("%%distributed --no-wait\nimport time\nprint('here')\ntime.sleep(600)")
    notebook.shows(running, "here")
    # The next cell follows at once, as in "Run All".
    assert notebook.ok("%distributed interrupt").all == ""
    notebook.shows(running, "KeyboardInterrupt")
    notebook.comes_true(ALL_AT_REST)
    assert notebook.ok("%%distributed\n'alive'").by_rank == dict.fromkeys(range(4), "'alive'\n")


@pytest.mark.slow
def test_interrupt_comes_back_when_the_world_is_whole_again(notebook: Notebook) -> None:
    running = notebook.ok(
        "%%distributed --no-wait\nprint('here')\nif rank:\n    mx.eval(mx.distributed.all_sum(mx.ones(3)))"
    )
    notebook.shows(running, "blocked in")
    notebook.ok("%distributed interrupt")
    notebook.shows(running, "Re-formed the world")
    assert notebook.ok(SUM).by_rank == dict.fromkeys(range(4), "4\n")


@pytest.mark.slow
def test_stop_while_the_ranks_start_leaves_nothing_up(kernel: Notebook) -> None:
    kernel.run("%distributed down")
    running = kernel.begin("print('starting', flush=True)\n%distributed up -n 4 --connections 4")
    kernel.shows(running, "starting")
    kernel.interrupt()
    cell = kernel.finish(running, 60)
    if cell.error:  # it may have been up before the interrupt came
        assert cell.error.startswith(("KeyboardInterrupt", "CellInterrupted")), cell.all
        assert "no cluster is up" in kernel.run("%distributed status").all
    else:
        kernel.ok("%distributed down")
    kernel.ok("%distributed up -n 2\n%distributed down")


def test_an_interrupt_between_cells_stops_no_rank(notebook: Notebook) -> None:
    notebook.ok("%distributed interrupt")
    notebook.interrupt()
    assert notebook.run("1").error in ("", "KeyboardInterrupt: ")
    assert notebook.ok("%%distributed\n'alive'").by_rank == dict.fromkeys(range(4), "'alive'\n")


# From Python.


class PressCtrlC(Nowhere):
    """A screen that gets a Ctrl-C as soon as something is shown."""

    pressed = False

    def blocks(self, blocks: list[Any]) -> None:
        if not self.pressed:
            self.pressed = True
            signal.raise_signal(signal.SIGINT)


def test_ctrl_c_in_a_script_interrupts_the_ranks(
    ring2: Cluster, patient_stop: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fold, "GRACE", PATIENCE)  # nothing is shown before both have printed
    cell = ring2.begin("import time\nkept = 1\nprint('here')\ntime.sleep(600)", screen=PressCtrlC())
    with pytest.raises(CellInterrupted) as caught:
        cell.finish()
    assert isinstance(caught.value, KeyboardInterrupt)
    assert idle(ring2)
    assert ring2.pull("kept") == [1, 1]
    assert cell.result is not None and not cell.result.ok
    assert {rank.error.ename for rank in cell.result.values() if rank.error} == {"KeyboardInterrupt"}
    assert "idle (last cell interrupted)" in ring2.status() and "failed" not in ring2.status()
    assert ring2.to_debug() == 0, "it can be looked at all the same"


def test_a_cell_under_way_can_be_interrupted_from_python(ring2: Cluster) -> None:
    cell = ring2.begin("import time\ntime.sleep(600)")
    assert comes_true(
        ring2, lambda now: all(rank.state == "running" and rank.line == 2 for rank in now.ranks), PATIENCE
    )
    cell.interrupt()
    result = cell.finish(PATIENCE)
    assert [error.ename for error in result.errors.values()] == ["KeyboardInterrupt"] * 2


@pytest.mark.slow
def test_a_timeout_with_a_rank_in_a_collective(ring2: Cluster, patient_stop: None) -> None:
    ring2.run("kept = rank")
    with pytest.raises(CellTimeout, match=r"stopped after 1 s"):
        ring2.run("if rank == 0:\n    mx.eval(mx.distributed.all_sum(mx.ones(3)))", timeout=1)
    assert idle(ring2) and comes_true(ring2, lambda now: now.state == "whole", PATIENCE)
    assert ring2.pull("kept") == [0, 1]


SWALLOWS = """
import os, time
if rank == 0:
    try:
        mx.eval(mx.distributed.all_sum(mx.ones(3)))
    except BaseException:
        while not os.path.exists({go!r}):
            try: time.sleep(0.01)
            except BaseException: pass
else:
    time.sleep(600)
"""


@pytest.mark.slow
def test_a_rank_that_was_unblocked_and_goes_on_is_not_to_be_killed(
    ring2: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = tmp_path / "go"
    monkeypatch.setattr("allranks.cluster.cell.INTERRUPT_WITHIN", 10.0)  # until it has said so, on a busy machine, too
    cell = ring2.begin(SWALLOWS.format(go=str(go)))
    assert comes_true(ring2, lambda now: now.ranks[0].state == "waiting", PATIENCE)
    with pytest.raises(CellTimeout, match=r"were aborted\. The cell ends in a moment: run the next cell"):
        cell.finish(0.1)
    go.touch()
    assert ring2.run("mx.distributed.all_sum(mx.array(1)).item()").check()[0].value == 2


def test_an_interrupt_that_comes_after_the_end_hits_nothing(ring2: Cluster, tmp_path: Path) -> None:
    """The order names its cell: a late one must not stop the next."""
    go = tmp_path / "go"
    cell = ring2.begin("1")
    result = cell.finish(PATIENCE)
    following = ring2.begin(f"import os, time\nwhile not os.path.exists({str(go)!r}):\n    time.sleep(0.01)\n'through'")
    assert comes_true(
        ring2, lambda now: all(rank.state == "running" and rank.line in (2, 3) for rank in now.ranks), PATIENCE
    )
    cell._outcome.open.update(result)
    cell.interrupt()
    assert ring2._live.ranks is not None
    for answer in ring2._live.ranks.ask([0, 1], Pending("")).values():
        answer.result(PATIENCE)  # orders are obeyed one after the other: the late one has been
    go.touch()
    assert following.finish(PATIENCE)[1].value == "through"


COMPUTES = """
import os, time
x = mx.random.normal((400, 400)) / 20
mx.eval(x)
def long(y, steps):
    for _ in range(steps):
        y = mx.tanh(y @ x)
    return y
began = time.process_time()
mx.eval(long(x, 50))
steps = int(50 * {seconds} / (time.process_time() - began)) + 1
y = long(x, steps)
"""


@pytest.mark.slow
def test_a_long_evaluation_without_a_collective_breaks_nothing_when_it_is_stopped(ring2: Cluster) -> None:
    generation = ring2.snapshot.generation
    ring2.run("total = mx.distributed.all_sum(mx.ones(2))\nmx.eval(total)\n" + COMPUTES.format(seconds=8)).check()
    cell = ring2.begin("mx.eval(y)\ndone = True")
    assert comes_true(ring2, lambda now: all(view.line == 1 for view in now.ranks), PATIENCE)
    with pytest.raises(CellTimeout, match=r"running line 1: mx\.eval\(y\)\. They were interrupted, but") as said:
        cell.finish(0.1)
    assert "a call of MLX or C cannot be interrupted" in str(said.value)
    assert "the next cell waits" in str(said.value) and "--kill" not in str(said.value)
    assert ring2.run("mx.distributed.all_sum(mx.array(1)).item(), 'done' in globals()").check()[0].value == (2, False)
    assert (ring2.state, ring2.snapshot.generation) == ("whole", generation)
    ring2.run("del x, y, total").check()


@pytest.mark.slow
def test_a_long_evaluation_of_one_rank_while_another_waits_for_it(ring2: Cluster) -> None:
    generation = ring2.snapshot.generation
    ring2.run(COMPUTES.format(seconds=7)).check()  # longer than ranks of a broken world are waited for in any case
    cell = ring2.begin("mx.eval(y if rank == 0 else mx.distributed.all_sum(mx.ones(2)))")
    assert comes_true(ring2, lambda now: now.ranks[1].state == "waiting", PATIENCE)
    with pytest.raises(CellTimeout, match=r"Still busy") as said:
        cell.finish(0.1)
    assert "cannot be interrupted" in str(said.value) and "--kill" not in str(said.value)
    assert ring2.run("mx.distributed.all_sum(mx.array(1)).item()").check()[0].value == 2
    assert (ring2.state, ring2.snapshot.generation) == ("whole", generation + 1)
    ring2.run("del x, y").check()


def test_ranks_that_were_not_stopped_are_not_waited_for(ring2: Cluster) -> None:
    cell = ring2.begin("import time\ntime.sleep(600)")
    assert comes_true(ring2, lambda now: all(view.line == 2 for view in now.ranks), PATIENCE)
    ring2.interrupt(ranks=1)
    assert comes_true(ring2, lambda now: now.ranks[1].state == "idle", PATIENCE)
    with pytest.raises(Busy):
        ring2.run("rank")
    ring2.interrupt()
    cell.finish(PATIENCE)
