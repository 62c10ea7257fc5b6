"""marimo, which has no magics and shows no live output: the result of a cell shows what the ranks printed."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from allranks.cluster.cell_result import MOST_LINES, CellResult
from allranks.head.cell.rank_result import RankResult

NOTEBOOK = """import marimo
app = marimo.App()

@app.cell
def _():
    import allranks
    cluster = allranks.Cluster(n=2).up()
    return (cluster,)

@app.cell
def _(cluster):
    result = cluster.run("print('from rank', rank)\\nrank * 10")
    result
    return (result,)

@app.cell
def _(cluster, result):
    cluster.down()
    return
"""


def shown(*printed: str, dead: int | None = None) -> str:
    """What marimo shows of a cell that printed this on its ranks, as text."""
    ranks = {number: RankResult(number, ok=number != dead) for number in range(len(printed))}
    for number, text in enumerate(printed):
        ranks[number]._text["stdout"].append(text)
    if dead is not None:
        ranks[dead].dead = "killed by SIGKILL"
    kind, html = CellResult(1, ranks, 0.5)._mime_()
    assert kind == "text/html"
    return re.sub("<[^>]+>", "|", html)


def test_equal_output_is_shown_once_and_each_line_is_beside_its_ranks() -> None:
    assert shown("a\nb\n", "a\nb\n", "c\n") == (
        "|CellResult of ranks 0-2: ok, 0.50 s||ranks 0-1 │ a\n          │ b\nrank 2    │ c|"
    )
    assert shown("", "") == "|CellResult of ranks 0-1: ok, 0.50 s|"


def test_what_ranks_print_is_text() -> None:
    said = shown("<b>&\x1b[31mred\x1b[0m\n", "x\n", dead=1)
    assert "&lt;b&gt;&amp;red" in said and "rank 1 died: killed by SIGKILL" in said


def test_many_lines_are_cut_and_counted() -> None:
    said = shown("line\n" * (MOST_LINES + 1200))
    assert said.count("│ line") == MOST_LINES and "… 1,200 more lines" in said


@pytest.mark.slow
def test_a_marimo_notebook_shows_the_output_of_the_ranks(tmp_path: Path) -> None:
    if importlib.util.find_spec("marimo") is None:  # its dependencies need other versions than constraints.txt has
        pytest.skip("marimo is not installed (pip install marimo, without constraints.txt)")
    notebook, page = tmp_path / "notebook.py", tmp_path / "page.html"
    notebook.write_text(NOTEBOOK)
    command = [sys.executable, "-m", "marimo", "export", "html", str(notebook), "-o", str(page)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ""}, timeout=240)
    assert done.returncode == 0, done.stderr
    html = page.read_text()
    (outputs,) = re.findall(r'"text/html": ("\\u003Cdiv\\u003ECellResult[^\n]*?[^\\]")', html)
    assert "rank 0 │ from rank 0\n       │ 0\nrank 1 │ from rank 1\n       │ 10" in json.loads(outputs)
