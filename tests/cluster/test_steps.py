"""Questions that ranks answer between two steps of a running cell."""

from __future__ import annotations

from pathlib import Path

import pytest

from allranks import Cluster
from allranks.errors import Busy, CellInterrupted, RankError, UsageError
from allranks.messages.requests import Pull
from tests.notebook.test_watch import until

LOOP = (
    "import os, time\nimport allranks\nx = 0\nwhile not os.path.exists({!r}):\n    x += 1\n    time.sleep(0.01)\n    {}"
)


@pytest.fixture
def end(tmp_path: Path) -> Path:
    """A file; loops end when it is there."""
    return tmp_path / "end"


@pytest.mark.parametrize("step", ["log(x=x)", "allranks.end_step()"])
def test_pull_and_vars_are_answered_between_two_steps(ring2: Cluster, end: Path, step: str) -> None:
    ring2.run("model = {'w': mx.arange(3)}; mx.eval(model)").check()
    cell = ring2.begin(LOOP.format(str(end), step))
    try:
        assert until(lambda: all(rank.ends_steps for rank in ring2._live.ranks_up().monitor.ranks))
        first, second = ring2.pull("x"), ring2.pull("x")
        assert all(0 < one < other for one, other in zip(first, second))
        assert ring2.pull("model", ranks=1)[0]["w"].tolist() == [0, 1, 2]
        assert {"model", "x"} <= set(str(ring2.vars()).split())
        with pytest.raises(Busy, match="still busy with an earlier cell"):
            ring2.push({"y": 1})
        with pytest.raises(Busy, match="still busy with an earlier cell"):
            ring2.run("pass")
    finally:
        end.touch()
        assert cell.finish().ok
    assert ring2.pull("x")[0] >= second[0]


def test_a_cell_without_steps_is_busy_and_one_that_has_ended_its_steps_answers_at_its_end(
    ring2: Cluster, end: Path
) -> None:
    cell = ring2.begin(LOOP.format(str(end), "pass"))
    with pytest.raises(Busy, match=r"A loop that calls log\(\.\.\.\) or allranks\.end_step\(\) answers"):
        ring2.pull("x")
    end.touch()
    cell.finish().check()
    end.unlink()
    cell = ring2.begin("log(x=1); x = 7\n" + LOOP.format(str(end), "pass").replace("x = 0\n", ""))
    assert until(lambda: all(rank.ends_steps for rank in ring2._live.ranks_up().monitor.ranks))
    asked = ring2._live.ask_all(Pull("x"), None, in_steps=True)
    assert not any(each.done() for each in asked.values())
    end.touch()
    cell.finish().check()
    assert all(each.result(60) for each in asked.values())


def test_what_waits_for_a_collective_is_not_pulled_between_steps(ring2: Cluster, end: Path) -> None:
    ring2.run(
        "class State: pass\nstate = State(); state.y = y = mx.distributed.all_sum(mx.ones(2)); done = mx.ones(2)\n"
        "mx.eval(done)"
    ).check()
    cell = ring2.begin("pass\n" + LOOP.format(str(end), "log(x=x)") + "\nmx.eval(y)")
    try:
        assert until(lambda: all(rank.ends_steps for rank in ring2._live.ranks_up().monitor.ranks))
        with pytest.raises(RankError, match="it is not evaluated yet: while a cell runs, only evaluated arrays"):
            ring2.pull("y", ranks=0)
        with pytest.raises(RankError, match="it is not evaluated yet"):
            ring2.pull("state")
        with pytest.raises(Busy):
            ring2.gather("done")
        assert [each.tolist() for each in ring2.pull("done")] == [[1, 1], [1, 1]]
    finally:
        end.touch()
        cell.finish().check()
    assert [each.tolist() for each in ring2.pull("y")] == [[2, 2], [2, 2]]


def test_a_stop_while_a_question_is_answered_stops_the_cell(ring2: Cluster, tmp_path: Path) -> None:
    began = tmp_path / "began"
    cell = ring2.begin(
        "import time\n"
        "class Slow:\n    def __reduce__(self):\n"
        f"        open({str(began)!r} + str(rank), 'w').close(); time.sleep(600)\n"
        "slow = Slow()\nwhile True:\n    time.sleep(0.01); log(x=1)"
    )
    assert until(lambda: all(rank.ends_steps for rank in ring2._live.ranks_up().monitor.ranks))
    asked = ring2._live.ask_all(Pull("slow"), None, in_steps=True)
    assert until(lambda: all(began.with_name(f"began{rank}").exists() for rank in range(2)))
    cell.stop()
    with pytest.raises(CellInterrupted):
        cell.finish()
    assert all(each.exception(60) is not None for each in asked.values())
    ring2.run("del slow, Slow").check()


def test_a_question_that_fails_does_not_repeat_a_stop_that_the_code_has_handled(ring2: Cluster, end: Path) -> None:
    handles = "import os, time\nlog(x=0)\ntry:\n    while True: time.sleep(0.01)\nexcept KeyboardInterrupt:\n"
    handles += f"    while not os.path.exists({str(end)!r}):\n        time.sleep(0.01); log(x=1)\nsaved = True"
    ring2.run("saved = stopped = False").check()
    cell = ring2.begin(handles)
    assert until(lambda: all(rank.ends_steps for rank in ring2._live.ranks_up().monitor.ranks))
    ring2.interrupt(within=0.1)
    with pytest.raises(UsageError, match="no variable 'absent'"):
        ring2.pull("absent")
    end.touch()
    cell.finish()
    assert ring2.pull("saved") == [True, True]


def test_what_is_pulled_is_of_one_step(ring2: Cluster, end: Path) -> None:
    code = LOOP.format(str(end), "hist[:] = x; log(x=x)").replace(
        "x = 0\n", "import numpy as np\nx, hist = 0, np.zeros(1 << 22)\n"
    )
    cell = ring2.begin(code)
    try:
        assert until(lambda: all(rank.ends_steps for rank in ring2._live.ranks_up().monitor.ranks))
        for _ in range(5):
            assert all(len(set(each.tolist())) == 1 for each in ring2.pull("hist"))
    finally:
        end.touch()
        cell.finish().check()


def test_idle_ranks_evaluate_nothing_while_another_runs_a_cell(ring2: Cluster, end: Path) -> None:
    ring2.run("y = mx.distributed.all_sum(mx.ones(2))").check()
    cell = ring2.begin(LOOP.format(str(end), "log(x=x)"), ranks=0)
    try:
        assert until(lambda: ring2._live.ranks_up().monitor.ranks[0].ends_steps)
        with pytest.raises(RankError, match="it is not evaluated yet"):
            ring2.pull("y")
    finally:
        end.touch()
        cell.finish().check()
    assert [each.tolist() for each in ring2.pull("y")] == [[2, 2], [2, 2]]


def test_in_a_notebook_it_does_nothing() -> None:
    import allranks

    allranks.end_step()
