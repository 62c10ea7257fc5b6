"""Run the notebooks of this folder and keep them with their outputs in docs/notebooks: ``make notebooks``.

``python notebooks/execute.py pipeline`` runs one of them.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).resolve().parent
KEPT = HERE.parent / "docs" / "notebooks"
OF_THIS_MACHINE = (str(HERE.parent), str(Path.home()), os.uname().nodename, "/tmp")


def execute(source: Path) -> None:
    notebook = nbformat.read(source, as_version=4)
    NotebookClient(
        notebook,
        kernel_name="python3",
        resources={"metadata": {"path": str(HERE)}},
        record_timing=False,  # would differ each time
    ).execute()
    notebook.metadata.language_info = {"name": "python"}
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = _tidy(cell.outputs)
    text = nbformat.writes(notebook).replace(str(HERE.parent), "~/allranks")  # in tracebacks
    readable = re.sub(r'"image/png": ".*?"', "", text)
    if found := [word for word in OF_THIS_MACHINE if re.search(rf"(?<!\w){re.escape(word)}(?!\w)", readable)]:
        raise SystemExit(f"{source.name}: its outputs tell of this machine: {', '.join(found)}")
    KEPT.mkdir(exist_ok=True)
    (KEPT / source.name).write_text(text + "\n", encoding="utf-8")
    print(f"docs/notebooks/{source.name}")


def _tidy(outputs: list[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    """As JupyterLab shows them: pieces of one stream joined, and nothing of the area where progress bars were."""
    tidy: list[nbformat.NotebookNode] = []
    for output in outputs:
        if tidy and output.output_type == "stream" and output.get("name") == tidy[-1].get("name"):
            tidy[-1].text += output.text
        elif output.get("data", True):
            tidy.append(output)
    return tidy


if __name__ == "__main__":
    named = sys.argv[1:] or sorted(path.stem for path in HERE.glob("*.ipynb"))
    for name in named:
        if name != "gallery":  # its pictures move, and want a front end
            execute(HERE / f"{name}.ipynb")
