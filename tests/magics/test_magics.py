"""The magics in a real kernel: up, status, down, push, pull, auto, and the options of a cell."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from allranks import Cluster
from allranks.magics.parsers import line_parser, parse, values_of
from allranks.magics.verbs import Verbs, _typed
from allranks.up_options import UpOptions
from tests.conftest import BUSY
from tests.frames import frames_of_ours
from tests.jupyter import Notebook, uncoloured


def test_up_says_what_it_chose_and_shows_the_status(kernel: Notebook) -> None:
    kernel.run("%distributed down")
    cell = kernel.ok("%distributed up -n 2")
    assert re.match(r"backend: (ring|nccl|jaccl|jaccl-ring), since .*\.\n", cell.stdout)
    [text], [html] = cell.mime("text/plain"), cell.mime("text/html")
    assert text.startswith('world "main" · 2 ranks · ') and "ready" in text.splitlines()[0]
    assert "<table" in html and "<script" not in html
    status = kernel.ok("%distributed status")
    assert status.mime("text/plain")[0].splitlines()[1].split()[:4] == ["rank", "host", "pid", "state"]
    assert kernel.ok("%distributed down").stdout == "2 ranks ended.\n"


def test_a_variable_of_the_notebook_is_not_one_of_the_ranks_which_is_said(kernel: Notebook) -> None:
    kernel.run("%distributed up -n 2")
    kernel.ok("rate = 0.1")
    failed = kernel.run("%%distributed\nrate * 2")
    assert "rate is a notebook variable: copy it to the ranks with %distributed push rate." in failed.all
    assert "notebook variable" not in kernel.run("%%distributed\nnowhere * 2").all
    kernel.ok("%distributed push rate")
    assert kernel.ok("%%distributed\nrate * 2").stdout == "ranks 0-1 │ 0.2\n"
    kernel.ok("%distributed down")


@pytest.mark.slow
def test_a_dashboard_of_the_notebook_goes_on_after_down_and_up(kernel: Notebook) -> None:
    kernel.run("%distributed down")
    kernel.ok("%distributed up -n 2\nimport allranks\ndashboard = allranks.current().watch('ranks')")
    kernel.ok("%distributed down")
    assert "down" in kernel.ok("print(repr(dashboard).splitlines()[0])").stdout
    kernel.ok("%distributed up -n 1")
    assert "1 rank · ring · ready" in kernel.ok("print(repr(dashboard).splitlines()[0])").stdout
    kernel.ok("%distributed down\ndel dashboard")


def test_share_prints_where_it_lies_and_cells_find_it(kernel: Notebook, tmp_path: Path) -> None:
    kernel.run("%distributed down")
    (tmp_path / "it's a model").mkdir()
    (tmp_path / "it's a model" / "weights").write_text("1234")
    kernel.ok(f"import os; os.environ['XDG_STATE_HOME'] = {str(tmp_path / 'state')!r}")
    kernel.ok("%distributed up -n 2")
    shared = kernel.ok(f'%distributed share "{tmp_path}/it\'s a model" --from 1')
    assert shared.stdout == (
        "it's a model: 1 file (4 B) on localhost; all ranks run there. Nothing was sent.\n"
        f"localhost: {tmp_path}/it's a model\n"
    )
    cell = kernel.ok("%%distributed\nimport allranks\n(allranks.shared(\"it's a model\") / 'weights').read_text()")
    assert cell.stdout == "ranks 0-1 │ '1234'\n"
    assert "no host has nosuch" in kernel.run("%distributed share nosuch").all
    kernel.ok("%distributed down")
    kernel.ok("del os.environ['XDG_STATE_HOME']")


@pytest.mark.slow
def test_two_ranks_are_the_default(kernel: Notebook) -> None:
    kernel.run("%distributed down")
    kernel.ok("%distributed up")
    assert kernel.ok("%%distributed\nsize").stdout == "ranks 0-1 │ 2\n"
    kernel.ok("%distributed down")


@pytest.mark.slow
def test_the_options_of_up_reach_the_ranks(kernel: Notebook, tmp_path: object) -> None:
    kernel.run("%distributed down")
    options = f"--env A=1 --env 'B=two words' --cwd {tmp_path} --name mine --timing"
    started = kernel.ok(f"%distributed up -n 2 --backend ring {options}").stdout
    assert re.search(
        r"(?m)^Started in [\d.]+ m?s:\nstep .*\nstart Python, import +localhost +[\d.]+ m?s +█", started
    ), started
    cell = kernel.ok("%%distributed\nimport os\nprint(os.environ['A'], os.environ['B'], os.getcwd())")
    assert cell.stdout == f"ranks 0-1 │ 1 two words {tmp_path}\n"
    assert 'world "mine"' in kernel.ok("%distributed status").all
    kernel.ok("%distributed down")


@pytest.mark.parametrize("line", ["%distributed", "%distributed -h", "%distributed up -h", "%%distributed -h\n1"])
def test_help_is_printed_and_ends_nothing(line: str, kernel: Notebook) -> None:
    cell = kernel.ok(line)
    assert "usage: %" in cell.stdout


def test_help_names_every_verb_and_what_it_does(kernel: Notebook) -> None:
    said = kernel.ok("%distributed -h").stdout
    for verb in ("up", "status", "down", "push", "pull", "interrupt", "auto"):
        assert re.search(rf"^ +{verb}\s+\w", said, re.M), said


def test_push_and_pull(notebook: Notebook) -> None:
    notebook.ok("import mlx.core as mx\nrate, weights = 0.1, mx.arange(3)\n%distributed push rate weights")
    notebook.ok("%%distributed\nscaled = weights * rate * rank")
    notebook.ok("%distributed pull scaled rank\nassert rank == [0, 1, 2, 3]")
    notebook.ok("assert mx.allclose(scaled[3], weights * 0.1 * 3).item() and len(scaled) == 4")
    notebook.ok("%distributed pull scaled -r 2\nassert mx.allclose(scaled, weights * 0.1 * 2).item()")
    notebook.ok("rate = 5\n%distributed push rate -r 0,2-3")
    assert notebook.ok("%%distributed\nrate").stdout == "0, 2-3    │ 5\nrank 1    │ 0.1\n"


def test_ranks_of_a_cell(notebook: Notebook) -> None:
    assert notebook.ok("%%distributed -r 0,2-3\nprint('some')").stdout == "ranks 0, 2-3 │ some\n"
    assert notebook.ok("%%rank 1\nrank").stdout == "rank 1 │ 1\n"
    assert notebook.ok("%%rank 1-2\nsize").stdout == "ranks 1-2 │ 4\n"


def test_out_keeps_the_result_of_each_rank(notebook: Notebook) -> None:
    notebook.ok("%%distributed -o result\nprint('said', rank)\nrank ** 2")
    assert notebook.ok("[rank.value for rank in result.values()]").mime("text/plain") == ["[0, 1, 4, 9]"]
    assert notebook.ok("print(result[3].stdout, end='')").stdout == "said 3\n"
    assert notebook.ok("result").mime("text/plain")[0].startswith("<CellResult of ranks 0-3: ok, ")
    failed = notebook.run("%%distributed -o result\n1 / (rank - 2)")
    assert "rank 2 raised ZeroDivisionError" in failed.error
    assert notebook.ok("result[2].error.ename, result[0].value").mime("text/plain") == ["('ZeroDivisionError', -0.5)"]


def test_auto_is_switched_off_also_when_no_cluster_is_up(kernel: Notebook) -> None:
    kernel.run("%distributed down")
    kernel.ok("%distributed up -n 2 --backend ring\n%distributed auto on")
    kernel.ok("%distributed down")
    said = kernel.run("1 + 1").error
    assert (
        "no cluster is up. Start one with %distributed up -n 4. Or run cells here again: %distributed auto off" in said
    )
    kernel.ok("%distributed auto off")
    assert kernel.ok("1 + 1").mime("text/plain") == ["2"]


def test_down_ends_a_cell_in_the_background_without_a_word(kernel: Notebook) -> None:
    kernel.run("%distributed down")
    kernel.ok("%distributed up -n 2 --backend ring")
    cell = kernel.ok("%%distributed --no-wait --timeline\nimport time\nprint('here')\ntime.sleep(600)")
    kernel.shows(cell, "here")
    kernel.ok(
        "import threading\n[following] = [each for each in threading.enumerate() if 'allranks-cell-' in each.name]"
    )
    assert kernel.ok("%distributed down").stdout == "2 ranks ended.\n"
    kernel.ok("following.join(60)\nassert not following.is_alive()")
    assert cell.by_rank == {0: "here\n", 1: "here\n"} and len(cell.outputs) == 1, cell.all


def test_auto_sends_every_cell_to_the_ranks(notebook: Notebook) -> None:
    notebook.ok("where = 'notebook'\n%distributed auto on")
    assert notebook.ok("where = 'ranks'\nwhere, size").stdout == "ranks 0-3 │ ('ranks', 4)\n"
    assert notebook.ok("# a comment first\n\nsize").stdout == "ranks 0-3 │ 4\n"
    assert "ranks 0-3 │ out" in notebook.ok("!echo out").stdout
    assert "ranks 0-3 │ timed" in notebook.ok("%%time\nprint('timed')").stdout
    assert notebook.ok("%%rank 1\nrank").stdout == "rank 1 │ 1\n"
    assert notebook.ok("%%local\nprint(where)\n!echo here").stdout.split() == ["notebook", "here"]
    error = notebook.run("%%local\n1/0")
    assert error.error.startswith("ZeroDivisionError") and "ranks" not in error.all
    assert notebook.ok("%distributed status").mime("text/plain")
    assert "ZeroDivisionError" in notebook.run("1/0").error
    assert "SyntaxError" in notebook.run("def f(:").error
    notebook.ok("%distributed auto off")
    assert notebook.ok("print(where)").stdout == "notebook\n"


def test_local_without_auto_is_an_ordinary_cell(kernel: Notebook) -> None:
    assert kernel.ok("%%local\nhere = 1\nhere + 1").mime("text/plain") == ["2"]
    failed = kernel.run("%%local\n1 / 0")
    assert failed.all.count("ZeroDivisionError: division by zero") == 1 and not frames_of_ours(failed.all)


def test_an_error_stops_run_all(notebook: Notebook) -> None:
    first, second = notebook.begin("%%distributed\nassert rank != 1"), notebook.begin("reached = True")
    assert "rank 1 raised AssertionError" in notebook.finish(first).error
    notebook.ok("1")
    assert second.outputs == [] and notebook.run("reached").error.startswith("NameError")


def test_line_numbers_are_the_notebooks_own(notebook: Notebook) -> None:
    cell = notebook.run("%%distributed -r 0\n# line 2\nx = 1\n\n1 / 0")
    assert cell.error.endswith("(line 5)")
    assert "----> 5 1 / 0" in cell.stderr


@pytest.mark.slow
def test_max_output(notebook: Notebook) -> None:
    cell = notebook.ok("%%distributed -r 0 --max-output 0.001\nfor i in range(100_000):\n    print(i)")
    assert "lines (" in cell.stdout and "not shown here" in cell.stdout
    assert len(cell.stdout) < 200_000


def test_current_is_the_notebooks_cluster(notebook: Notebook) -> None:
    assert notebook.ok("import allranks\nallranks.current().size").mime("text/plain") == ["4"]
    notebook.ok("allranks.current().push({'from_python': 1})")
    assert notebook.ok("%%distributed\nfrom_python").stdout == "ranks 0-3 │ 1\n"


def test_loading_twice_and_again_after_unloading(kernel: Notebook) -> None:
    kernel.ok("%load_ext allranks")
    kernel.ok("%reload_ext allranks")
    kernel.ok("%unload_ext allranks")
    assert "not found" in kernel.run("%distributed status").all
    kernel.ok("%load_ext allranks")
    assert kernel.run("%distributed status").error.startswith("NoCluster")
    assert kernel.run("%%distributed\n1").error.startswith("NoCluster")


@pytest.mark.slow
def test_in_a_terminal_the_same_lines_are_printed() -> None:
    """IPython without a kernel: no displays to update, no colours of ours, and nothing left at its end."""
    cells = [
        BUSY,
        "%load_ext allranks",
        "%distributed up -n 2 --backend ring",
        "%%distributed\nprint('hello')\nmx.distributed.all_sum(mx.array(1)).item()",
        "%%distributed -r 1\nfrom IPython.display import HTML, display\ndisplay(HTML('<b>x</b>'))",
        "%%distributed\n1 / 0",
    ]
    script = (
        "from IPython.core.interactiveshell import InteractiveShell\n"
        "shell = InteractiveShell.instance(colors='nocolor')\n"
        f"for cell in {cells!r}:\n"
        "    shell.run_cell(cell)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=240)
    said = uncoloured(done.stdout + done.stderr)
    assert "ranks 0-1 │ hello\n          │ 2\n" in said, said
    assert "rank 1 │" in said and "<IPython.core.display.HTML object>" in said
    assert "CellFailed: ranks 0-1 raised ZeroDivisionError: division by zero (line 2)" in said
    assert done.returncode == 0


@pytest.fixture
def two(kernel: Notebook) -> Notebook:
    """Two ring ranks, started by a line that says so."""
    kernel.run("%distributed down")
    kernel.ok("%distributed up -n 2 --backend ring")
    return kernel


def test_comments_are_left_out(two: Notebook) -> None:
    """As the README writes its lines."""
    assert "2 ranks · ring" in str(two.ok("%distributed status   # what each rank is doing").mime("text/plain"))
    assert "2 ranks · ring" in str(two.ok("%distributed status;").mime("text/plain"))
    assert two.ok("%%distributed -r 0  # one is enough\n'#'").text.strip().endswith("'#'")


def test_a_cluster_that_is_down_already_is_not_ended_again(two: Notebook) -> None:
    two.ok("import allranks\nallranks.current().down()")
    assert two.ok("%unload_ext allranks").stdout == ""
    two.ok("%load_ext allranks")


def test_reloading_keeps_the_cluster(two: Notebook) -> None:
    two.ok("%%distributed\nkept = rank")
    two.ok("%reload_ext allranks")
    assert two.ok("%%distributed -r 1\nkept").text == "rank 1 │ 1\n"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("up --n 4", "unknown option --n. Did you mean -n?"),
        ("resize 1000000", "a rank needs about 64 MiB of memory. At most "),
        ("up -n 3", "(running with -n 2"),
    ],
)
def test_slips_in_numbers_of_ranks(line: str, said: str, two: Notebook) -> None:
    assert said in two.run(f"%distributed {line}").error


@pytest.mark.parametrize(
    ("name", "value", "typed"),
    [
        ("n", 2, "-n 2"),
        ("keep", True, "--keep"),
        ("keep", False, "no --keep"),
        ("hosts", ["a", "b"], "--hosts a,b"),
        ("env", {"HF_TOKEN": "secret"}, "--env HF_TOKEN=…"),
        ("mpi_args", ("-x", "A"), "--mpi-arg -x,A"),
        ("ipp_profile", "mpi", "--ipp-profile mpi"),
    ],
)
def test_options_are_said_as_they_are_typed_and_no_secret(name: str, value: object, typed: str) -> None:
    assert _typed(name, value) == typed


@pytest.mark.parametrize(
    ("first", "again", "said"),
    [
        ("-n 3 --backend mpi", "-n 2 --backend ring", ""),
        ("-n 3 --backend mpi --sync", "-n 3 --backend mpi --sync", ""),
        ("-n 3 --backend mpi", "-n 4 --backend mpi", r"resize 4\. .* --backend mpi\. .*\(running with -n 2\)\.$"),
        ("-n 2", "-n 2 --connections 2", r"rewire --connections 2\. .*\(running with --connections 1\)\.$"),
        ("-n 2", "-n 2 --sync", "%distributed sync --on switches"),
    ],
)
def test_up_again_knows_how_the_cluster_is_now(first: str, again: str, said: str, ring2: Cluster) -> None:
    """After `resize` and `rewire`, to two ring ranks."""
    verbs, parser = Verbs(), line_parser()

    def asked_by(line: str) -> UpOptions:
        options = parse(parser, f"up {line}")
        assert options is not None
        return UpOptions(**values_of(options, UpOptions))

    verbs.up_with, asked = asked_by(first), asked_by(again)
    assert verbs._as_it_is_up(ring2, asked) == (not said)
    if said:
        assert re.search(said, str(verbs._already_up(ring2, asked)))


def test_a_timeout_must_be_above_zero(two: Notebook) -> None:
    for seconds in (0, -1):
        assert "must be above 0 seconds" in two.run(f"%%distributed --timeout {seconds}\n1").error
