"""Rich output of ranks in the notebook: figures, HTML, updates, clears, progress bars; folded where ranks agree."""

from __future__ import annotations

import base64
import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from allranks.notebook.safe_text import plain
from tests.jupyter import Notebook
from tests.needs import need


@pytest.fixture(scope="module", autouse=True)
def folds_all(kernel: Notebook) -> None:
    """A rank that stands still for some seconds, on a machine that is busy, is waited for."""
    kernel.ok("import allranks.notebook.fold\nallranks.notebook.fold.GRACE = 60.0")


def test_equal_html_is_shown_once_and_differing_html_by_rank(notebook: Notebook) -> None:
    cell = notebook.ok("%%distributed\nfrom IPython.display import HTML, display\ndisplay(HTML('<b>same</b>'))")
    assert cell.mime("text/html") == ["<b>same</b>"]
    assert cell.stdout == "ranks 0-3 │\n"
    cell = notebook.ok("%%distributed\nHTML(f'<i>{rank}</i>')")
    assert cell.mime("text/html") == [f"<i>{rank}</i>" for rank in range(4)]
    assert cell.stdout.split() == ["rank", "0", "│", "rank", "1", "│", "rank", "2", "│", "rank", "3", "│"]


def test_markdown_latex_and_json_keep_their_form(notebook: Notebook) -> None:
    cell = notebook.ok(
        "%%distributed\nfrom IPython.display import JSON, Latex, Markdown, display\n"
        "display(Markdown('# title'), Latex('$x$'), JSON({'a': [1]}))"
    )
    assert cell.mime("text/markdown") == ["# title"]
    assert cell.mime("text/latex") == ["$x$"]
    assert cell.mime("application/json") == [{"a": [1]}]


def test_figures_are_drawn_on_the_rank_and_shown_here(notebook: Notebook) -> None:
    pytest.importorskip("matplotlib")
    draw = "plt.plot([1, 2, 3])\nplt.show()"
    # Fonts are looked for the first time, for longer on one rank than on another.
    notebook.ok(f"%%distributed\n%matplotlib inline\nimport matplotlib.pyplot as plt\n{draw}")
    same = notebook.ok(f"%%distributed\n{draw}")
    assert len(set(same.mime("image/png"))) == 1, "four equal figures, which fold where the machine is not too busy"
    cell = notebook.ok("%%rank 1\nplt.plot([3, 2, 1])\nplt.title('of rank 1');")
    [png] = cell.mime("image/png")
    assert base64.b64decode(png).startswith(b"\x89PNG")
    assert cell.stdout == "rank 1 │\n"
    [grid] = notebook.ok("%%distributed\nplt.plot([rank, 1, 2])\nplt.show()").mime("text/html")
    assert [grid.count(f">rank {rank}</figcaption><img ") for rank in range(4)] == [1, 1, 1, 1]


def test_the_last_value_of_a_cell_is_its_result(notebook: Notebook) -> None:
    assert notebook.ok("%%distributed\n[1, 'two']").stdout == "ranks 0-3 │ [1, 'two']\n"
    assert notebook.ok("%%distributed\nrank;").outputs == []
    assert notebook.ok("%%distributed\nNone").outputs == []
    multi = notebook.ok("%%distributed\nmx.ones((2, 2)) * 3")
    assert multi.stdout == ("ranks 0-3 │ array([[3, 3],\n          │        [3, 3]], dtype=float32)\n")


def test_an_update_changes_the_display_where_it_stands(notebook: Notebook) -> None:
    cell = notebook.ok(
        "%%distributed\nfrom IPython.display import HTML, display\n"
        "handle = display(HTML('<b>0</b>'), display_id=True)\nprint('below')\n"
        "for i in range(1, 4):\n    handle.update(HTML(f'<b>{i}</b>'))"
    )
    assert cell.mime("text/html") == ["<b>3</b>"]
    assert cell.stdout.endswith("ranks 0-3 │ below\n")
    again = notebook.ok("%%distributed\nhandle.update(HTML('<b>from another cell</b>'))")
    assert cell.mime("text/html") == ["<b>from another cell</b>"]
    assert again.mime("text/html") == []


def test_clear_output_leaves_what_came_last(notebook: Notebook) -> None:
    cell = notebook.ok(
        "%%distributed\nfrom IPython.display import clear_output\n"
        "for i in range(5):\n    clear_output(wait=True)\n    print('step', i)"
    )
    assert cell.stdout == "ranks 0-3 │ step 4\n"


def test_clear_output_of_one_rank_leaves_the_others(notebook: Notebook) -> None:
    cell = notebook.ok(
        "%%distributed\nfrom IPython.display import clear_output\nprint('first', rank)\n"
        "if rank == 2:\n    clear_output()\n    print('alone')"
    )
    assert "first 0" in cell.stdout and "first 3" in cell.stdout and "alone" in cell.stdout
    assert "first 2" not in cell.stdout


BARS = {
    "tqdm": "from tqdm import tqdm\nbar = tqdm(range(30), desc='steps', mininterval=0)",
    "tqdm in a format of its own": "from tqdm import tqdm\n"
    "bar = tqdm(range(30), desc='steps', mininterval=0, bar_format='{desc} {n} of {total} in {elapsed_s} s')",
    "text": "def text():\n    for n in range(31):\n        print(f'\\rsteps {n}/30 {rank}.5 s', end='')\n"
    "        yield\n    print()\nbar = text()",
    "rich": "from rich.progress import track\nbar = track(range(30), 'steps')",
}


@pytest.mark.parametrize("kind", BARS)
def test_the_finished_bars_of_all_ranks_are_one_line_that_names_the_slowest(
    notebook: Notebook, tmp_path: Path, kind: str
) -> None:
    need(kind == "text" or importlib.util.find_spec(kind.split()[0]), f"{kind} is not installed")
    cell = notebook.ok(
        f"%%distributed\nimport pathlib, time\n{BARS[kind]}\nfolder = pathlib.Path({str(tmp_path)!r})\n"
        "mx.eval(mx.distributed.all_sum(mx.ones(1)))\n"
        "for step, _ in enumerate(bar):\n"
        "    while rank == 2 and step == 29 and len(list(folder.iterdir())) < 3: time.sleep(0.02)\n"
        "    time.sleep(1.2 * (rank == 2 and step == 29))\n"
        "if rank != 2: (folder / str(rank)).touch()\n"
        "print('after')"
    )
    lines = [line for output in cell.outputs for line in shown_text(output).splitlines() if "steps" in line]
    assert len(lines) == 1, cell.outputs
    assert re.fullmatch(r"ranks 0-3 │ steps.* \(slowest: rank 2\)", plain(lines[0]))
    assert "steps" not in cell.stderr, "it is no error"
    assert cell.by_rank == dict.fromkeys(range(4), "after\n")


def shown_text(output: Mapping[str, Any]) -> str:
    return str(output.get("text") or output.get("data", {}).get("text/plain", ""))


def test_tqdm_auto_does_without_widgets(notebook: Notebook) -> None:
    pytest.importorskip("tqdm")
    cell = notebook.run("%%distributed\nfrom tqdm.auto import tqdm\nfor _ in tqdm(range(3)):\n    pass\nprint('after')")
    assert not cell.error, cell.all
    assert "after" in cell.stdout


def test_widgets_that_live_on_a_rank_say_that_they_cannot_be_shown(notebook: Notebook) -> None:
    cell = notebook.run("%%distributed\nimport ipywidgets\nipywidgets.IntSlider()")
    assert not cell.error, cell.all
    assert cell.mime("application/vnd.jupyter.widget-view+json") == []
    assert "│" in cell.stdout


def test_escape_codes_of_a_rank_cannot_steer_the_notebook(notebook: Notebook) -> None:
    cell = notebook.ok("%%distributed\nprint('\\x1b[2J\\x1b]0;title\\x07clean \\x1b[31mred\\x1b[0m')")
    raw = "".join(output["text"] for output in cell.outputs)
    assert "\x1b[2J" not in raw and "\x1b]" not in raw and "\x1b[31mred" in raw
    assert cell.stdout == "ranks 0-3 │ clean red\n"


@pytest.mark.parametrize(
    ("code", "note"),
    [
        ("size = 'mine'", "size is now your own variable"),
        ("breakpoint()", "breakpoint() was skipped"),
        (
            "import threading\nthread = threading.Thread(target=breakpoint)\nthread.start()\nthread.join()",
            "breakpoint() was skipped",
        ),
    ],
)
def test_a_note_of_allranks_is_not_on_error_red(notebook: Notebook, code: str, note: str) -> None:
    cell = notebook.ok(f"%%distributed\n{code}")
    assert f"ranks 0-3 │ {note}" in cell.stdout
    assert cell.stderr == ""


def test_stderr_is_marked_and_in_order(notebook: Notebook) -> None:
    cell = notebook.ok(
        "%%distributed\nimport sys\nprint('one')\nprint('two', file=sys.stderr)\nprint('three')\n"
        "import warnings; warnings.warn('careful')"
    )
    kinds = [(output["name"], output["text"].split("│")[1].strip()[:5]) for output in cell.outputs]
    assert kinds[:3] == [("stdout", "one"), ("stderr", "two"), ("stdout", "three")]
    assert cell.stderr.count("careful") <= 2, "one warning, folded"
    assert "ranks 0-3 │" in cell.stderr


def test_cell_magics_run_on_the_ranks(notebook: Notebook) -> None:
    cell = notebook.ok("%%distributed\n%%time\ntotal = sum(range(1000))\nprint('timed')")
    assert sorted(cell.by_rank) == [0, 1, 2, 3], cell.stdout
    assert all("timed\n" in said and "Wall time" in said for said in cell.by_rank.values()), cell.by_rank
    assert notebook.ok("%%distributed\ntotal").stdout == "ranks 0-3 │ 499500\n"
    assert "ranks 0-3 │ from bash" in notebook.ok("%%distributed\n%%bash\necho from bash").stdout


def test_the_rank_that_differs_stands_out(notebook: Notebook) -> None:
    cell = notebook.ok("%%distributed\nprint('loss', 0.5 if rank != 2 else 'nan')")
    assert "rank 2    │ loss nan" in cell.stdout.splitlines(), cell.stdout
    assert cell.by_rank == {rank: "loss nan\n" if rank == 2 else "loss 0.5\n" for rank in range(4)}


def test_a_million_points_of_html_are_not_lost(notebook: Notebook) -> None:
    cell = notebook.ok("%%rank 0\nfrom IPython.display import HTML\nHTML('<p>' + 'x' * 3_000_000 + '</p>')")
    [html] = cell.mime("text/html")
    assert len(html) == 3_000_007


def test_the_saved_outputs_are_valid(notebook: Notebook) -> None:
    nbformat = pytest.importorskip("nbformat")
    need(nbformat, "nbformat")
    cell = notebook.run(
        "%%distributed\nfrom IPython.display import HTML, display\nprint(1)\ndisplay(HTML('x'))\nrank / (rank - 1)"
    )
    outputs = []
    for output in cell.outputs:
        kept = {key: value for key, value in output.items() if key not in ("type", "transient")}
        outputs.append(nbformat.from_dict({"output_type": output["type"], **kept}))
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell.source, outputs=outputs)])
    nbformat.validate(book)
