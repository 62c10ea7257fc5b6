"""`python -m allranks demo` tells a notebook as a terminal session and ends with an honest exit code."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import nbformat
import psutil
import pytest

from allranks import __version__
from allranks.__main__ import main
from allranks.demo import demo
from tests.conftest import BUSY

GRACE = 60.0
"""Seconds that ranks have to end once their notebook has."""
UP = f"{BUSY}\n%load_ext allranks\n%distributed up -n 2 --backend ring"


def notebook(folder: Path, *cells: nbformat.NotebookNode) -> Path:
    path = folder / "story.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=list(cells)), path)
    return path


def text(source: str) -> nbformat.NotebookNode:
    cell: nbformat.NotebookNode = nbformat.v4.new_markdown_cell(source)
    return cell


def code(source: str, *tags: str) -> nbformat.NotebookNode:
    cell: nbformat.NotebookNode = nbformat.v4.new_code_cell(source, metadata={"tags": list(tags)})
    return cell


def test_tells_headings_code_and_what_the_ranks_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    story = notebook(
        tmp_path,
        text("# A story\n\nOf two ranks."),
        code(UP),
        code("%%distributed\nprint('at', rank)\nprint('of', size)"),
        code("%%rank 1\n1 / 0", "raises-exception"),
        code("%distributed down"),
    )

    assert demo(story) == 0

    said = capsys.readouterr().out
    assert "── A story ──" in said
    assert "In [2]: %%distributed\n   ...: print('at', rank)\n   ...: print('of', size)\n" in said
    assert "rank 0    │ at 0\nrank 1    │ at 1\nranks 0-1 │ of 2\n" in said
    assert "ZeroDivisionError: division by zero" in said
    assert "\x1b" not in said
    assert said.splitlines()[-1].startswith("story.ipynb ran on 2 ranks in ")


@pytest.mark.slow
def test_a_cell_that_fails_is_shown_and_ends_the_demo_and_its_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    pids = tmp_path / "pids"
    story = notebook(
        tmp_path,
        code(UP),
        code(f"%%distributed\nimport os\nopen('{pids}', 'a').write(f'{{os.getpid()}}\\n')\nif rank == 1: 1 / 0"),
        code("print('not reached')"),
    )

    assert demo(story) == 1

    out, err = capsys.readouterr()
    assert "ZeroDivisionError: division by zero" in out
    assert "not reached" not in out
    assert "a cell of story.ipynb failed with CellFailed" in err
    there = [psutil.Process(int(pid)) for pid in pids.read_text().split() if psutil.pid_exists(int(pid))]
    assert not psutil.wait_procs(there, timeout=GRACE)[1]


def test_a_kernel_that_dies_is_said_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert demo(notebook(tmp_path, code("import os; os._exit(3)"))) == 1
    assert "the kernel that ran story.ipynb died" in capsys.readouterr().err


def test_a_notebook_that_is_missing_is_said_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert demo(tmp_path / "quickstart.ipynb") == 2
    assert "quickstart.ipynb is missing" in capsys.readouterr().err


def test_the_command_allranks_is_the_module():
    (command,) = entry_points(group="console_scripts", name="allranks")
    assert command.load() is main


def test_version_and_help(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"allranks {__version__}\n"
    assert main([]) == 0
    assert "demo" in capsys.readouterr().out
    assert subprocess.run([sys.executable, "-m", "allranks", "nonsense"], capture_output=True).returncode == 2
