"""The example notebooks: as they stand nbmake runs them, on two ring ranks, all but three; here these three with less
training, and one that takes its backend from a parameter, on four MPI ranks.

What they promise they assert themselves: a cell that fails, fails its notebook, unless tagged ``raises-exception``.
"""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

pytestmark = pytest.mark.timeout(600)  # four ranks on two busy cores

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted(path for path in (ROOT / "notebooks").glob("*.ipynb") if path.stem != "gallery")
PROMISES = {
    "data_parallel": (
        "len(losses) == len(expected) and apart <= 1e-5",  # the losses of 1, 2 and 4 ranks
        "mended == whole",  # those of a training that lost a rank
    ),
    "tensor_parallel": ("furthest <= TOLERANCE", "mx.array_equal(said, would_say)"),
    "pipeline": ("furthest <= 1e-4", "mx.array_equal(said, expected)"),
    "resume": ("same",),  # the weights of a training that was saved and loaded
    "evaluation": ("accuracy == true_accuracy",),
    "experiments": ('(table["status"] == "ok").all()', 'table["status"].tolist() == ["ok", "failed", "failed", "ok"]'),
}


def read(path: Path) -> nbformat.NotebookNode:
    notebook: nbformat.NotebookNode = nbformat.read(path, as_version=4)
    return notebook


def tags(cell: nbformat.NotebookNode) -> list[str]:
    return list(cell.metadata.get("tags", []))


def sources(notebook: nbformat.NotebookNode) -> list[tuple[str, str]]:
    return [(cell.cell_type, cell.source) for cell in notebook.cells]


def executed(name: str, **parameters: object) -> nbformat.NotebookNode:
    """The notebook, run with these parameters, which are put in as papermill does: in a cell behind the tagged one."""
    notebook = read(ROOT / "notebooks" / f"{name}.ipynb")
    place = next(number for number, cell in enumerate(notebook.cells) if "parameters" in tags(cell))
    lines = "\n".join(f"{parameter} = {value!r}" for parameter, value in parameters.items())
    notebook.cells.insert(place + 1, nbformat.v4.new_code_cell(lines))
    resources = {"metadata": {"path": str(ROOT / "notebooks")}}
    return NotebookClient(notebook, timeout=600, kernel_name="python3", resources=resources).execute()


def said(notebook: nbformat.NotebookNode) -> str:
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return "".join(output.get("text", "") or output.get("data", {}).get("text/plain", "") for output in outputs)


@pytest.mark.mpi
@pytest.mark.slow
def test_the_pipeline_runs_on_four_mpi_ranks(need_mpi: None) -> None:
    notebook = executed("pipeline", RANKS=4, BACKEND="mpi")
    text = said(notebook)
    assert "4 ranks · mpi · ready" in text and "4 ranks ended." in text
    assert all(float(apart) <= 1e-4 for apart in re.findall(r"at most (\S+) ", text)), text
    assert set(re.findall(r"tokens equal: (\w+)", text)) == {"True"}  # ranks that come later print a line of their own


@pytest.mark.slow
def test_the_language_model_with_little_training() -> None:
    """As it stands, most of its time is steps of training and launches, of which nothing it asserts needs so many."""
    text = said(executed("language_model", WIDTH=32, STEPS=12, TUNING=8, LAUNCHES=1))
    assert "a changed cell:" in text and "2 ranks ended." in text


@pytest.mark.slow
def test_training_that_is_saved_and_goes_on_with_little_training() -> None:
    text = said(executed("resume", WIDTH=32, STEPS=12, TUNING=8))
    assert "to the last bit: True" in text and "the same as without a break: True" in text
    assert "(run 3 (continues run 2) · step 12 of 12" in text and "2 ranks ended." in text


@pytest.mark.mpi
@pytest.mark.slow
def test_data_parallel_training_with_little_training(need_mpi: None) -> None:
    """Its assertions need fewer steps of training than it has."""
    text = said(executed("data_parallel", OTHER_RANKS=3, EPOCHS=1, TIMED=10))
    assert "3 ranks on mpi" in text and "│ 7 steps are done" in text
    assert "with a rank lost" in text and "2 ranks ended." in text


@pytest.mark.parametrize("name", PROMISES)
def test_a_broken_promise_fails_the_notebook(name: str) -> None:
    """Each is asserted in a cell that is not allowed to fail."""
    cells = [
        cell.source for cell in read(ROOT / "notebooks" / f"{name}.ipynb").cells if "raises-exception" not in tags(cell)
    ]
    for promise in PROMISES[name]:
        assert any(f"assert {promise}" in source for source in cells), promise


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_kept_copy_is_of_this_notebook(path: Path) -> None:
    kept = ROOT / "docs" / "notebooks" / path.name
    assert kept.exists() and sources(read(kept)) == sources(read(path)), "run `make notebooks`"
    errors = [
        cell.id
        for cell in read(kept).cells
        if any(output.output_type == "error" for output in cell.get("outputs", []))
        and "raises-exception" not in tags(cell)
    ]
    assert not errors


@pytest.mark.parametrize("path", [path for path in NOTEBOOKS if path.stem != "quickstart"], ids=lambda path: path.stem)
def test_takes_parameters_and_says_what_changes_on_real_hardware(path: Path) -> None:
    notebook = read(path)
    assert [tags(cell) for cell in notebook.cells].count(["parameters"]) == 1
    assert any("real hardware" in cell.source for cell in notebook.cells if cell.cell_type == "markdown")
