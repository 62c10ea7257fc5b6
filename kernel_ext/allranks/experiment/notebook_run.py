"""One run of an experiment's notebook: executed in a kernel of its own, with its parameters filled in."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from allranks.errors import UsageError

from .grid import Run
from .runs_on_disk import plain_results, written

if TYPE_CHECKING:
    from nbformat import NotebookNode

RECORDED = "application/vnd.allranks.recorded+json"
"""MIME type of the results that `record` puts into a notebook, and of the world's figures at its end."""
LAST_CELL = """\
import allranks
from allranks.experiment.experiment import tell_of_world
tell_of_world(allranks.current(ended=True), {path!r})"""
TELL_WITHIN = 60
"""Seconds that the last cell, which records the world's figures, may take."""
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@dataclass
class NotebookOutcome:
    """The results of one run and the figures of its world; if the run failed, also its error and the cause."""

    results: dict[str, object] = field(default_factory=dict)
    world: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    cause: str | None = None


def source_of(path: Path) -> str:
    """Short checksum of a notebook's code cells, without their outputs and without cells tagged ``parameters``."""
    cells = [cell for cell in _read(path).cells if cell.cell_type == "code" and "parameters" not in _tags(cell)]
    return hashlib.sha1("\n\n".join(cell.source for cell in cells).encode()).hexdigest()[:8]


def check_parameters(path: Path, runs: Sequence[Run]) -> None:
    """Raise UsageError if a run has a parameter that the notebook lacks."""
    from papermill.translators import PythonTranslator

    cells = [cell for cell in _read(path).cells if "parameters" in _tags(cell)]
    known = {found.name for cell in cells[:1] for found in PythonTranslator.inspect(cell)}
    for run in runs:
        if unknown := set(run.parameters) - known:
            there = f"it has {', '.join(sorted(known))}" if known else "none of its cells is tagged `parameters`"
            raise UsageError(f"grid: {path.name} has no parameter {', '.join(sorted(unknown))}; {there}.")


def execute(path: Path, parameters: Mapping[str, object], place: Path, timeout: float | None) -> NotebookOutcome:
    """Run a notebook in the folder where it is, and save it with its outputs as ``notebook.ipynb`` in `place`.

    `timeout` is in seconds; None means no limit.
    """
    import nbformat
    from jupyter_client.kernelspec import KernelSpecManager
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
    from papermill.parameterize import parameterize_notebook

    notebook = parameterize_notebook(_read(path), dict(parameters))
    last = nbformat.v4.new_code_cell(LAST_CELL.format(path=str(place.resolve() / "log.parquet")))  # type: ignore[no-untyped-call]
    until = None if timeout is None else time.monotonic() + timeout
    client = NotebookClient(
        notebook,
        timeout_func=lambda cell: TELL_WITHIN if cell is last else until and max(1, round(until - time.monotonic())),
        interrupt_on_timeout=True,
        error_on_timeout={"ename": "TimeoutError", "evalue": f"the run took longer than {timeout} s", "traceback": []},
        resources={"metadata": {"path": str(path.parent)}},
        extra_arguments=["--log-level=CRITICAL"],
    )
    # Without folders to search, there is only ipykernel's own "python3", which is this interpreter.
    client.create_kernel_manager().kernel_spec_manager = KernelSpecManager(kernel_dirs=[])
    outcome = NotebookOutcome()
    index = 0
    try:
        with client.setup_kernel():
            try:
                for index, cell in enumerate(notebook.cells):
                    client.execute_cell(cell, index)
            except CellExecutionError as error:
                outcome.error, outcome.cause = error.ename, _told(error.ename, error.evalue, notebook, index)
            notebook.cells.append(last)
            client.execute_cell(last, len(notebook.cells) - 1)
    except CellTimeoutError:
        outcome.error, outcome.cause = "TimeoutError", f"the run took longer than {timeout} s"
    except DeadKernelError:
        outcome.error, outcome.cause = "DeadKernelError", f"the notebook's kernel died in {_where(notebook, index)}"
    except CellExecutionError as error:  # of the last cell: only the world's figures are missing
        outcome.world = {"unknown": f"{error.ename}: {error.evalue}"}
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            told = output.get("data", {}).get(RECORDED, {})
            outcome.results.update(told.get("results", {}))
            outcome.world.update(told.get("world", {}))
            outcome.results = told.get("logged", {}) | outcome.results
    notebook.cells = [cell for cell in notebook.cells if cell is not last]
    written(place / "notebook.ipynb", lambda draft: nbformat.write(notebook, str(draft)))  # type: ignore[no-untyped-call]
    return outcome


def show_recorded(**told: Mapping[str, object]) -> None:
    """Put values for the experiment into the notebook's output, with a readable line."""
    from IPython.core.display_functions import publish_display_data

    plain = {kind: plain_results(values) for kind, values in told.items()}
    said = ", ".join(f"{name} = {value}" for values in plain.values() for name, value in values.items())
    publish_display_data({RECORDED: plain, "text/plain": f"recorded: {said}"})  # type: ignore[no-untyped-call]


def _read(path: Path) -> NotebookNode:
    from papermill.iorw import load_notebook_node

    notebook: NotebookNode = load_notebook_node(str(path))
    # Ranks run Python, and so does the notebook; papermill needs the language in the kernelspec.
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return notebook


def _tags(cell: NotebookNode) -> Sequence[str]:
    tags: Sequence[str] = cell.metadata.get("tags", ())
    return tags


def _told(ename: str, evalue: str, notebook: NotebookNode, index: int) -> str:
    said = _COLOURS.sub("", evalue).strip()
    return f"{said or ename} (in {_where(notebook, index)})" if ename != "TimeoutError" else said


def _where(notebook: NotebookNode, index: int) -> str:
    code = [cell for cell in notebook.cells[: index + 1] if cell.cell_type == "code"]
    lines = [line for line in code[-1].source.splitlines() if line.strip()] if code else []
    return f"code cell {len(code)}: {lines[0][:60]}" if lines else "its first cell"
