"""Showing output in a real kernel: what the saved notebook holds afterwards."""

from __future__ import annotations

import sys
from itertools import groupby
from typing import Any

import pytest

FEED = """
from types import SimpleNamespace
from allranks.notebook import live_lines
live_lines.time = SimpleNamespace(monotonic=lambda: 100.0)  # a busy machine may take longer than live_lines.PERIOD
from allranks.notebook.fold import Block
from allranks.notebook.show_blocks import Show
ALL = (0, 1, 2, 3)
def rich(kind, body, ranks=ALL):
    data = {"text/html": body, "text/plain": body}
    return Block(kind, ranks, {"data": data, "metadata": {}, "display_id": "bar", "ids": dict.fromkeys(ranks, "bar")})
"""

CELLS = [
    FEED
    + """
show = Show(ALL, live=True)
show.live_lines({0: "5%", 1: "5%"})
show.blocks([Block("text", ALL, "one\\ntwo\\n"), Block("text", (1,), "oops\\n", "stderr")])
show.blocks([Block("text", ALL, "end\\n")])
show.close()
""",
    'show = Show(ALL, live=True)\nshow.blocks([rich("display", "<b>0</b>"), Block("text", ALL, "a\\n")])\nshow.close()',
    'show = Show(ALL, live=True)\nshow.blocks([rich("update", "<b>1</b>")])\nshow.close()',
    """
show = Show(ALL, live=True)
show.blocks([Block("text", ALL, "a\\n"), rich("display", "<i>0</i>")])
show.live_lines({3: "7%"})
show.blocks([rich("update", "<i>1</i>", (0, 1)), Block("text", (2,), "mine\\n")])
show.blocks([Block("clear", (2,), True)])
show.blocks([Block("text", (2,), "after\\n")])
show.close()
""",
]


def test_in_a_real_kernel_the_saved_notebook_reads_well() -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    new = nbformat.v4
    notebook = new.new_notebook(cells=[new.new_code_cell(source) for source in CELLS])
    paths = [path for path in sys.path if path]
    notebook.cells.insert(0, new.new_code_cell(f"import sys; sys.path[:0] = {paths!r}"))
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    nbformat.validate(notebook)
    _, streams, shown, updates, split = [saved(cell.outputs) for cell in notebook.cells]
    assert streams == [
        {},
        "ranks 0-3 │ one\n          │ two\n",
        "stderr: rank 1    │ oops\n",
        "ranks 0-3 │ end\n",
    ]
    assert shown == ["ranks 0-3 │\n", "<b>1</b>", "ranks 0-3 │ a\n"]
    assert updates == []
    assert split == [
        "0-1, 3    │ a\nranks 0-1 │\n",
        "<i>1</i>",
        "rank 3    │\n",
        "<i>0</i>",
        "rank 2    │ after\n",
    ]


def saved(outputs: list[Any]) -> list[Any]:
    """Each output in short; neighbouring text of one stream is one, however many messages it took."""
    runs = groupby(outputs, key=lambda output: output.get("name", id(output)))
    return [short(list(run)) for _, run in runs]


def short(run: list[Any]) -> Any:
    if run[0].output_type != "stream":
        return run[0].data.get("text/html", dict(run[0].data))
    return ("" if run[0].name == "stdout" else "stderr: ") + "".join(output.text for output in run)
