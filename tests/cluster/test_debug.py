"""The debugger of a rank: a stop in the middle of a cell, and a look back at what one raised."""

from __future__ import annotations

import importlib.util
import queue
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from allranks import Cluster
from allranks.errors import AllranksError, Busy, CellInterrupted, UsageError
from tests.jupyter import ALL_AT_REST, CellOutputs, Notebook
from tests.needs import need
from tests.waiting import comes_true, idle

SUM = "mx.distributed.all_sum(mx.array(1)).item()"
STOP = """def work(x):
    lazy = mx.distributed.all_sum(mx.ones(3))
    if rank == 1:
        breakpoint()
    y = x * 2
    return y
print(work(10))"""
WITHIN = 60.0


def stands(cluster: Cluster, rank: int) -> bool:
    return comes_true(cluster, lambda now: now.ranks[rank].state == "debugging", WITHIN)


def test_a_breakpoint_stops_one_rank_which_is_stepped_changed_and_let_go(ring2: Cluster) -> None:
    cell = ring2.begin(STOP, breakpoints=True)
    assert stands(ring2, 1)
    assert "in the debugger at line 5: y = x * 2" in ring2.status()
    debugger = ring2.debug(1)
    assert "-> y = x * 2" in debugger.text
    assert debugger.ask("p x", WITHIN) == "10\n"
    debugger.ask("x = 50", WITHIN)
    assert "-> return y" in debugger.ask("n", WITHIN)
    assert debugger.ask("p y", WITHIN) == "100\n"
    assert debugger.ask("!print('said')", WITHIN) == "said\n"
    where = debugger.ask("where", WITHIN)
    assert "work()" in where and "<module>()" in where and "IPython" not in where
    debugger.ask("c", WITHIN)
    assert not debugger.open
    result = cell.finish(WITHIN)
    assert result.ok and (result[0].stdout, result[1].stdout) == ("20\n", "100\n")


def test_stepping_goes_from_statement_to_statement_of_the_cell(ring2: Cluster) -> None:
    cell = ring2.begin("a = 1\nbreakpoint()\nb = 2\nc = 3", ranks=0, breakpoints=True)
    assert stands(ring2, 0)
    debugger = ring2.debug(0)
    assert "-> b = 2" in debugger.text
    assert "-> c = 3" in debugger.ask("n", WITHIN)
    debugger.ask("c", WITHIN)
    assert cell.finish(WITHIN).ok
    assert ring2.run("import sys\nsys.gettrace() is None", ranks=0)[0].value is True


def test_what_waits_for_a_collective_is_told_and_not_computed(ring2: Cluster) -> None:
    ring2.run("held = [mx.distributed.all_sum(mx.ones(2))]")
    cell = ring2.begin(STOP, breakpoints=True)
    assert stands(ring2, 1)
    with ring2.debug(1) as debugger:
        for command in ("p lazy", "lazy", "pp locals()", "p lazy + 1", "display lazy", "p held"):
            assert "it needs a collective" in debugger.ask(command, WITHIN), command
        for command in ("p lazy.tolist()", "p f'{lazy}'", "p float(held[0][0])", "!print(lazy)", "if lazy: pass"):
            assert "waits for a collective" in debugger.ask(command, WITHIN), command
        assert debugger.ask("p lazy.shape, len(held)", WITHIN) == "((3,), 1)\n"
        assert "would block, waiting for the others" in debugger.ask(f"p {SUM}", WITHIN)
        debugger.ask("c", WITHIN)
    assert cell.finish(WITHIN).ok
    assert ring2.run("mx.eval(held)\n" + SUM)[1].value == 2


@pytest.mark.slow
def test_a_world_that_breaks_during_a_command_stays_refused(ring2: Cluster) -> None:
    # What the notebook tells a rank whose neighbour has failed comes at any time.
    broken = "def breaks(): allranks.rank.world.recompile.Generation.ledger.refuse = 'the world is broken'\n"
    code = f"import allranks.rank.world.recompile\n{broken}if rank == 1:\n    breakpoint()\n    {SUM}"
    cell = ring2.begin(code, breakpoints=True)
    assert stands(ring2, 1)
    with ring2.debug(1) as debugger:
        debugger.ask("breaks()", WITHIN)
        debugger.ask("c", WITHIN)
    result = cell.finish(WITHIN)
    ring2.run("allranks.rank.world.recompile.Generation.ledger.refuse = None")
    assert not result[1].ok and "the world is broken" in str(result[1].error)


@pytest.mark.slow
def test_quitting_ends_the_cell_with_a_line_and_frees_the_others(ring2: Cluster) -> None:
    ring2.run("kept = rank")
    cell = ring2.begin(STOP + "\nmx.eval(mx.distributed.all_sum(mx.ones(3)))", breakpoints=True)
    assert stands(ring2, 1)
    ring2.debug(1).ask("q", WITHIN)
    result = cell.finish(WITHIN)
    assert "rank 1 raised BdbQuit: the cell was quit in the debugger (q)" in result.failure()
    assert result[0].unblocked
    assert [each.value for each in ring2.run(f"{SUM} + kept").values()] == [2, 3]


def test_nobody_to_type_passes_the_breakpoint_over(ring2: Cluster) -> None:
    result = ring2.run("breakpoint()\nimport pdb; pdb.set_trace()\n'through'", timeout=WITHIN)
    assert result[0].value == "through"
    assert result[0].stderr.count("breakpoint() was skipped") == 2


@pytest.mark.slow
def test_a_look_back_at_an_error_after_the_ring_was_formed_anew(ring2: Cluster) -> None:
    code = "def f(q):\n    part = q * 2\n    if rank == 1:\n        q / 0\nf(5)\n"
    code += "mx.eval(mx.distributed.all_sum(mx.ones(1)))"
    assert not ring2.run(code).ok
    with ring2.debug(1) as debugger:
        assert debugger.text.startswith("ZeroDivisionError: division by zero")
        assert debugger.ask("p part", WITHIN) == "10\n"
        assert "-> f(5)" in debugger.ask("up", WITHIN)
        with pytest.raises(Busy, match="in the debugger"):
            ring2.run("1")
    assert ring2.run(SUM)[1].value == 2
    with pytest.raises(UsageError, match="raised no error"):
        ring2.debug(1)


def test_a_look_back_starts_in_the_users_code_not_in_a_library(ring2: Cluster) -> None:
    ring2.run("import json\nmine = 7\njson.loads('{')", ranks=0)
    with ring2.debug(0) as debugger:
        assert "-> json.loads('{')" in debugger.text
        assert "json" in debugger.ask("down", WITHIN)


def test_arrays_of_the_frames_live_until_the_next_cell(ring2: Cluster) -> None:
    ring2.run("held = None\nmx.clear_cache()")
    before = ring2.run("mx.get_active_memory()", ranks=0)[0].value
    ring2.run("def f():\n    big = mx.ones((1000, 1000))\n    mx.eval(big)\n    1 / 0\nf()", ranks=0)
    with ring2.debug(0) as debugger:
        assert int(debugger.ask("p mx.get_active_memory()", WITHIN)) >= before + 4_000_000
    assert ring2.run("mx.get_active_memory()", ranks=0)[0].value < before + 4_000_000


@pytest.mark.slow
@pytest.mark.parametrize("how", ["breakpoint", "look back"])
def test_an_interrupt_ends_the_debugger(how: str, ring2: Cluster) -> None:
    if how == "breakpoint":
        cell = ring2.begin(STOP, breakpoints=True)
        assert stands(ring2, 1)
        cell.interrupt()
        assert "KeyboardInterrupt" in cell.finish(WITHIN).failure()
    else:
        ring2.run("1 / 0")
        debugger = ring2.debug(1)
        ring2.interrupt()
        assert idle(ring2)
        assert not debugger.open
    assert ring2.run(SUM)[1].value == 2


@pytest.mark.slow
def test_a_timeout_ends_a_cell_that_stands(ring2: Cluster, patient_stop: None) -> None:
    with pytest.raises(AllranksError, match="stopped after 1 s"):
        ring2.run(STOP, timeout=1, breakpoints=True)
    assert idle(ring2)
    assert ring2.run(SUM)[1].value == 2


@pytest.mark.slow
def test_a_rank_that_dies_in_the_debugger_is_told(worlds: object) -> None:
    with Cluster(2, backend="ring", name="dying") as cluster:
        cell = cluster.begin(STOP, breakpoints=True)
        assert stands(cluster, 1)
        with pytest.raises(AllranksError, match="killed by SIGKILL"):
            cluster.debug(1).ask("!import os; os.kill(os.getpid(), 9)", WITHIN)
        assert "SIGKILL" in cell.finish(WITHIN).failure()
        assert "looked" not in str(cluster.heal())
        assert cluster.run(SUM)[1].value == 2


# From a notebook, where somebody types.


@dataclass(frozen=True)
class Until:
    """An answer that is given again until the cell shows something."""

    shown: str
    answer: str


class Typist:
    """Runs a cell and answers what it asks, each line when it is asked for."""

    def __init__(self, notebook: Notebook) -> None:
        self._notebook = notebook
        self.prompts: list[str] = []

    def run(self, source: str, *answers: str | Until | Callable[[], None]) -> CellOutputs:
        notebook, client = self._notebook, self._notebook.client
        cell = notebook.begin(source, typing=True)
        left = list(answers)
        deadline = time.monotonic() + 2 * WITHIN
        while not cell.idle:
            assert time.monotonic() < deadline, cell.all
            try:
                asked = client.get_stdin_msg(timeout=0.02)["content"]["prompt"]
            except queue.Empty:
                notebook.take_one(0.02)
                continue
            self.prompts.append(asked)
            assert left, f"asked {asked!r} once too often:\n{cell.all}"
            answer = left.pop(0)
            if isinstance(answer, Until):
                if answer.shown not in cell.all:
                    left.insert(0, answer)
                client.input(answer.answer)
            elif callable(answer):
                answer()
            else:
                client.input(answer)
        assert not left, f"never asked for {left}:\n{cell.all}"
        return cell


@pytest.mark.slow
def test_post_mortem_on_one_rank_of_four_and_then_a_normal_cell(kernel: Notebook, need_mpi: None) -> None:
    kernel.with_ranks("mpi", 4)
    kernel.run("%%distributed\nif rank == 2:\n    z = [1, 2]\n    z[5]\nmx.eval(mx.distributed.all_sum(mx.ones(3)))")
    typist = Typist(kernel)
    look = typist.run("%distributed debug -r 2", "p z", "where", "q")
    assert not look.error
    assert "IndexError: list index out of range" in look.stdout and "[1, 2]" in look.stdout
    assert typist.prompts == ["(Pdb) rank 2: "] * 3
    assert kernel.ok(f"%%distributed\n{SUM}").by_rank == dict.fromkeys(range(4), "4\n")


@pytest.mark.slow
def test_a_breakpoint_in_a_cell_shows_who_waits_and_asks(kernel: Notebook, need_mpi: None) -> None:
    kernel.with_ranks("mpi", 4)
    typist = Typist(kernel)
    cell = typist.run(
        "%%distributed\nx = rank\nif rank == 2:\n    breakpoint()\n    x = 20\n" + SUM + " + x",
        Until("ranks 0-1, 3 blocked in all_sum", "p x"),
        "@1 p x",
        "n",
        "c",
    )
    assert "ranks 0-1, 3 blocked in all_sum" in cell.stdout
    assert "not in the debugger" in cell.stdout
    assert cell.by_rank[2].endswith("24\n") and cell.by_rank[0].endswith("\n4\n")
    assert set(typist.prompts) == {"(Pdb) rank 2: "}


@pytest.mark.slow
def test_all_ranks_at_a_breakpoint_are_led_together(kernel: Notebook, need_mpi: None) -> None:
    kernel.with_ranks("mpi", 4)
    cell = Typist(kernel).run("%%distributed\nx = 1\nbreakpoint()\n" + SUM, "@2 p rank * 100", "@all c")
    assert "200" in cell.by_rank[2] and "200" not in cell.by_rank[1]
    assert all(said.endswith("4\n") for said in cell.by_rank.values())


STANDS_STILL = """
import time
import allranks.cluster.cell
from allranks.cluster import debugger_prompt
class Clock:
    behind, stands = 0.0, time.monotonic()
    def monotonic(self):
        return time.monotonic() - self.behind if self.stands is None else self.stands
    def go_on(self):
        if self.stands is not None:
            self.behind, self.stands = time.monotonic() - self.stands, None
clock, real_ask = Clock(), debugger_prompt.ask
def ask(read, prompt, monitor, over, deadline):
    clock.go_on()
    return real_ask(read, prompt, monitor, over, None if deadline is None else deadline + clock.behind)
allranks.cluster.cell.time, debugger_prompt.ask = clock, ask
"""
"""In a notebook: no time passes for the next cell until it asks; then all its time is left."""


@pytest.mark.slow
def test_ctrl_c_and_a_timeout_at_the_prompt_give_it_back(kernel: Notebook, need_mpi: None) -> None:
    kernel.with_ranks("mpi", 4)
    code = f"if rank == 2:\n    breakpoint()\n    x = 1\n{SUM}"
    stopped = Typist(kernel).run(f"%%distributed\n{code}", kernel.interrupt)
    assert stopped.error.startswith(("KeyboardInterrupt", CellInterrupted.__name__))
    kernel.comes_true(ALL_AT_REST)
    kernel.ok(STANDS_STILL)
    try:
        late = Typist(kernel).run(f"%%distributed --timeout 3\n{code}", lambda: None)
    finally:
        kernel.ok("allranks.cluster.cell.time, debugger_prompt.ask = time, real_ask")
    assert late.error.startswith("CellTimeout: the cell was stopped after 3 s"), late.all
    kernel.comes_true(ALL_AT_REST)
    assert kernel.ok(f"%%distributed\n{SUM}").by_rank == dict.fromkeys(range(4), "4\n")


@pytest.mark.slow
def test_a_notebook_that_runs_without_its_user_is_told(kernel: Notebook, need_mpi: None) -> None:
    kernel.with_ranks("mpi", 4)
    cell = kernel.ok("%%distributed\nbreakpoint()\nprint('on')")
    assert "skipped" in cell.stdout and not cell.stderr, "a hint is no error"
    assert "no interactive input here" in kernel.run("%distributed debug -r 1").error


@pytest.mark.slow
def test_a_terminal_ipython_asks_too(need_mpi: None) -> None:
    need(importlib.util.find_spec("pexpect"), "pexpect is not installed (it comes with IPython)")

    import pexpect

    command = [sys.executable, "-m", "IPython", "--simple-prompt", "--no-banner", "--colors=NoColor"]
    child = pexpect.spawn(command[0], command[1:], encoding="utf-8", timeout=2 * WITHIN, echo=False)
    try:
        child.expect(r"In \[1\]: ")
        child.sendline("%load_ext allranks")
        child.expect(r"In \[2\]: ")
        child.sendline("%distributed up -n 4 --backend mpi")
        child.expect(r"In \[3\]: ")
        child.sendline("get_ipython().run_cell_magic('distributed', '', 'q = rank\\nif rank == 2:\\n    q / 0')")
        child.expect("ZeroDivisionError")
        child.expect(r"In \[4\]: ")
        child.sendline("%distributed debug -r 2")
        child.expect(r"\(Pdb\) rank 2: ")
        child.sendline("p q * 21")
        child.expect("│ 42")
        child.expect(r"\(Pdb\) rank 2: ")
        child.sendline("q")
        child.expect("has left the debugger")
        child.expect(r"In \[5\]: ")
        child.sendline("import allranks.notebook.fold as fold; fold.GRACE = 60.0")  # all are shown together
        child.expect(r"In \[6\]: ")
        child.sendline(f"get_ipython().run_cell_magic('distributed', '', '{SUM}')")
        child.expect("ranks 0-3 │ 4")
        child.sendline("%distributed down")
        child.expect("4 ranks ended")
    finally:
        child.close(force=True)
