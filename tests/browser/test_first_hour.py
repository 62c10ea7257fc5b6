"""What a new user meets in the first hour, as JupyterLab shows it: slips, dead ranks, a hang, the end."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable

import pytest

from tests.browser.lab import Notebook
from tests.waiting import eventually

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

OpenNotebook = Callable[..., Notebook]

LOAD, UP = "%load_ext allranks", "%distributed up -n 2 --backend ring"
RUN = """async (at) => {
  window.panel.content.activeCellIndex = at;
  await window.jupyterapp.commands.execute("notebook:run-cell");
}"""
BEGIN = f"(at) => {{ window.running = ({RUN})(at); }}"
ERRORS = '.jp-OutputArea-child:has([data-mime-type="application/vnd.jupyter.stderr"], [data-mime-type$="error"])'
WAIT = """%%distributed
import time
if rank == 0:
    time.sleep(600)
mx.eval(mx.distributed.all_sum(mx.ones(3)))"""
BARS = """%%distributed
from tqdm import tqdm
for step in tqdm(range(20), desc="epoch", ascii=True, mininterval=0):
    pass
print("trained")"""
TRACED = """%%distributed --timeline
for n in range(3):
    mx.eval(mx.distributed.all_sum(mx.ones(1000)))"""


def shown(notebook: Notebook, at: int) -> str:
    """What stands below the cell."""
    return notebook.page.locator(".jp-CodeCell").nth(at).locator(".jp-OutputArea").first.inner_text()


def ran(notebook: Notebook, at: int) -> str:
    """Run a cell; returns what it shows."""
    notebook.page.evaluate(RUN, at)
    notebook.settled()
    return shown(notebook, at)


def red(notebook: Notebook, at: int) -> int:
    """How many outputs of the cell stand on the colour of errors."""
    return notebook.page.locator(".jp-CodeCell").nth(at).locator(ERRORS).count()


def test_the_first_cell_is_run_again_and_too_many_ranks_are_asked_about(open_notebook: OpenNotebook) -> None:
    ups = [f"%distributed up -n {size}" for size in (100_000, 16 * (os.cpu_count() or 1), 2)]
    notebook = open_notebook(f"{LOAD}\n{UP}", "%distributed down", *ups)
    assert "2 ranks" in ran(notebook, 0)
    again = ran(notebook, 0)
    assert "already up" in again and "2 ranks" in again and not red(notebook, 0)
    ran(notebook, 1)
    for at, reason in ((2, r"At most \d+ fit here"), (3, r"Up to \d+ start unasked.*--yes")):
        said = ran(notebook, at)
        assert "UsageError" in said and re.search(reason, said) and "Traceback" not in said
    assert "2 ranks" in ran(notebook, 4), "the session goes on"


def test_a_stop_of_a_hang_gives_no_destructive_advice_and_the_next_cell_runs(open_notebook: OpenNotebook) -> None:
    notebook = open_notebook(f"{LOAD}\n{UP}", WAIT, "%%distributed\nrank")
    ran(notebook, 0)
    notebook.page.evaluate(BEGIN, 1)
    notebook.page.wait_for_function(
        "() => /rank 0 has not entered it/.test(document.querySelectorAll('.jp-CodeCell')[1].innerText)"
    )
    notebook.page.evaluate("() => window.panel.sessionContext.session.kernel.interrupt()")
    notebook.finish()
    said = shown(notebook, 1)
    assert "KeyboardInterrupt" in said and "--kill" not in said
    found = ran(notebook, 2)
    assert not red(notebook, 2) and "0" in found and "1" in found


def test_bars_fold_to_one_that_is_not_red_and_a_timeline_has_round_ticks(open_notebook: OpenNotebook) -> None:
    notebook = open_notebook(f"{LOAD}\n{UP}", BARS, TRACED)
    ran(notebook, 0)
    said = ran(notebook, 1)
    assert said.count("20/20") == 1 and "trained" in said
    assert not red(notebook, 1)
    said = ran(notebook, 2)
    assert re.search(r"timeline of In\[\d+\]", said) and "<cell" not in said
    ticks = notebook.page.locator(".jp-CodeCell").nth(2).locator("svg text").all_text_contents()
    figures = [each for each in ticks if re.fullmatch(r"[\d.]+ (s|ms|µs)", each)]
    assert figures and all(len(each.split()[0].strip("0").replace(".", "")) <= 2 for each in figures), figures


def test_no_verb_answers_for_dead_ranks_and_the_end_is_quiet(open_notebook: OpenNotebook) -> None:
    cells = [f"{LOAD}\n{UP}", "%%distributed\nimport os\nmodel = [rank]\nos.getpid()", "%distributed diff model"]
    notebook = open_notebook(*cells, "%distributed vars", "%distributed status", "%distributed down")
    ran(notebook, 0)
    for pid in re.findall(r"\b\d{3,}\b", ran(notebook, 1)):
        os.kill(int(pid), signal.SIGKILL)
    assert eventually(lambda: "dead" in ran(notebook, 4))
    for at in (2, 3):
        said = ran(notebook, at)
        assert "ranks 0-1 died" in said and "alike" not in said and "Traceback" not in said
    said = ran(notebook, 5)
    assert not red(notebook, 5) and "2 ranks" not in said


def test_down_ends_a_cell_in_the_background_quietly(open_notebook: OpenNotebook) -> None:
    endless = "%%distributed --no-wait\nimport time\nwhile True:\n    time.sleep(0.1)"
    notebook = open_notebook(f"{LOAD}\n{UP}", endless, "%distributed down")
    for at in range(3):
        said = ran(notebook, at)
        assert not red(notebook, at) and "does not answer" not in said
