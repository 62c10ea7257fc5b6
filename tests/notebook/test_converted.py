"""A notebook that papermill and nbconvert run: its outputs, and the state at the end as a picture and tables."""

from __future__ import annotations

import base64
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests.needs import need

TRAIN = """%%distributed
print("from rank", rank)
for step in range(20):
    log(loss=1 / (step + 1), step=step)
mx.eval(mx.distributed.all_sum(mx.ones(1000)))"""
FAILS = "%%distributed\nif rank == 1: raise ValueError('bad batch')"
CELLS = [
    "%load_ext allranks\n%distributed up -n 2",
    "%distributed watch",
    TRAIN,
    FAILS,
    "%%distributed\nprint('goes on')",
]
DOWN = "%distributed down"
EXPECTED = CELLS.index(FAILS)


def written(folder: Path, cells: list[str]) -> Path:
    """A notebook of these cells, in which the one that fails is tagged as expected to."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook.cells[EXPECTED].metadata["tags"] = ["raises-exception"]
    path = folder / "notebook.ipynb"
    nbformat.write(notebook, path)
    return path


def run(module: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    need(importlib.util.find_spec(module.partition(".")[0]), f"{module} is not installed (pip install -e '.[test]')")
    env = {**os.environ, "PYTHONPATH": "", "JUPYTER_PREFER_ENV_PATH": "1"}
    command = [sys.executable, "-m", module, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=240)


def pictures(html: str) -> list[list[str]]:
    """The texts of the pictures in a page."""
    found = re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', html)
    drawn = [re.findall(r"<text[^>]*>([^<]*)</text>", base64.b64decode(each).decode()) for each in found]
    return [texts for texts in drawn if texts]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("last", "title"),
    [([], "2 ranks idle"), ([DOWN], "2 ranks idle when the world ended")],
    ids=["ranks up", "ranks ended"],
)
def test_a_page_made_by_nbconvert_shows_the_end(tmp_path: Path, last: list[str], title: str) -> None:
    notebook = written(tmp_path, [*CELLS, *last])
    done = run("nbconvert", "--execute", "--to", "html", notebook)
    assert done.returncode == 0, done.stderr
    html = notebook.with_suffix(".html").read_text()
    page = re.sub(r"<script.*?</script>|<style.*?</style>", "", html, flags=re.DOTALL)
    assert "from rank 0" in page and "from rank 1" in page and "goes on" in page and "bad batch" in page
    state, curve = pictures(html)
    assert state[0] == title and "rank 1" in state and "loss 1 → 0.05" in state
    assert "loss" in curve and "ranks 0-1: mean, and from least to most" in curve
    table = page[page.index("MLX active / peak") :]
    assert re.search(r">1</td>.*?>localhost</td>.*?>idle</td>", table) and "Loading widget" not in page


def outputs(notebook: Any) -> dict[str, str]:
    """By source, what a reader sees below each cell of code."""
    return {
        cell.source: "".join(
            each.get("text", "") or each.get("evalue", "") or str(each.get("data", {}).get("text/plain", ""))
            for each in cell.outputs
        )
        for cell in notebook.cells
        if cell.cell_type == "code"
    }


@pytest.mark.slow
def test_papermill_runs_all_cells_and_then_raises_the_expected_error(tmp_path: Path) -> None:
    output = tmp_path / "output.ipynb"
    done = run("papermill", written(tmp_path, [*CELLS, DOWN]), output)
    ran = outputs(nbformat.read(output, as_version=4))
    assert "rank 1    │ from rank 1" in ran[TRAIN] and "loss 1 → 0.05" in ran[TRAIN]
    assert "rank 1 raised ValueError: bad batch" in ran[FAILS]
    assert "ranks 0-1 │ goes on" in ran[CELLS[-1]] and "2 ranks ended" in ran[DOWN]
    assert "2 ranks idle when the world ended. main · 2 ranks · ring." in ran["%distributed watch"]
    # papermill 2.7 does not know the tag: it raises after the last cell (docs/install.md). If this fails, it does now.
    assert done.returncode == 1 and "rank 1 raised ValueError: bad batch" in done.stderr
