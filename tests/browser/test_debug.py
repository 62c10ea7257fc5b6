"""The debugger in JupyterLab: commands are typed into the notebook, the ranks' pictures say where a rank stands."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.browser.lab import Notebook

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

FAILS = "%%distributed\nz = [1, 2]\nif rank == 2:\n    z[5]\n"
STOPS = "%%distributed\nif rank == 1:\n    breakpoint()\n    z = [1]\nmx.distributed.all_sum(mx.array(len(z)))"

FRESH = """() => {
  const box = [...document.querySelectorAll("input.jp-Stdin-input")].at(-1);
  return box && !box.disabled && box.value === "";
}"""


def answer(notebook: Notebook, command: str, shows: str) -> None:
    """Type a command into the box below the running cell, and wait until its answer is there."""
    notebook.page.wait_for_function(FRESH)
    box = notebook.page.locator("input.jp-Stdin-input").last
    box.fill(command)
    box.press("Enter")
    notebook.page.wait_for_function("(text) => document.body.innerText.includes(text)", arg=shows)


def test_post_mortem_a_breakpoint_and_then_a_normal_cell(
    open_notebook: Callable[..., Notebook], need_mpi: None
) -> None:
    up = "%load_ext allranks\n%distributed up -n 4 --backend mpi"
    fails = f"try:\n    get_ipython().run_cell_magic('distributed', '', {FAILS.partition(chr(10))[2]!r})\n"
    fails += "except Exception as error:\n    print(error)"
    normal = "%%distributed\n'sum', mx.distributed.all_sum(mx.array(1)).item()"
    notebook = open_notebook(up, "%distributed watch ranks", fails, "%distributed debug -r 2", STOPS, normal)
    notebook.begin()
    page = notebook.page
    page.wait_for_selector("input.jp-Stdin-input")
    page.wait_for_selector('tr[data-state="debugging"]')
    answer(notebook, "p z", "[1, 2]")
    answer(notebook, "q", "rank 2 has left the debugger")
    page.wait_for_selector("input.jp-Stdin-input")
    page.wait_for_function("() => /meanwhile: ranks? 0/.test(document.body.innerText)")
    answer(notebook, "n", "-> mx.distributed.all_sum(mx.array(len(z)))")
    answer(notebook, "c", "('sum', 4)")  # the cell below runs as well
    notebook.finish()
