"""One cell on some ranks: a whole IPython cell, its output and value by rank, and how it ended."""

from __future__ import annotations

import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Timer
from typing import Any

import pytest

from allranks import Cluster
from allranks.errors import CellFailed, CellInterrupted, CellTimeout, UsageError
from allranks.notebook import fold
from allranks.notebook.feed_dashboards import Nowhere
from tests.frames import frames_of_ours
from tests.jupyter import uncoloured
from tests.waiting import comes_true, idle

WITHIN = 60.0


def test_the_last_value_and_what_was_printed_come_by_rank(ring2: Cluster) -> None:
    result = ring2.run("import sys\nprint('out', rank)\nprint('err', file=sys.stderr)\nrank * 2")
    assert [(r.value, r.stdout, r.stderr) for r in result.values()] == [
        (0, "out 0\n", "err\n"),
        (2, "out 1\n", "err\n"),
    ]
    assert result.ok and result.check() is result and result.errors == {}
    assert repr(result).startswith("<CellResult of ranks 0-1: ok, ")


def test_ranks_that_did_not_run_it_are_named(ring2: Cluster) -> None:
    result = ring2.run("rank", ranks=1)
    assert list(result) == [1] and len(result) == 1
    with pytest.raises(KeyError, match="did not run on rank 0, only on rank 1"):
        result[0]


def test_the_names_that_every_cell_starts_with(ring2: Cluster) -> None:
    result = ring2.run("mx.__name__, world.rank(), world.size(), rank, size")
    assert [r.value for r in result.values()] == [("mlx.core", 0, 2, 0, 2), ("mlx.core", 1, 2, 1, 2)]


def test_variables_and_imports_stay(ring2: Cluster) -> None:
    ring2.run("import math\nkept = math.pi\ndef area(r):\n    return kept * r * r")
    assert ring2.run("area(1) == math.pi")[1].value is True


def test_an_error_is_in_the_result_and_the_other_ranks_go_on(ring2: Cluster) -> None:
    result = ring2.run("x = 1\nif rank == 1:\n    raise ValueError('no')\nx")
    assert not result.ok and result[0].ok and result[0].value == 1
    error = result[1].error
    assert error is not None
    assert (error.ename, error.evalue, error.line) == ("ValueError", "no", 3)
    assert "----> 3     raise ValueError('no')\n" in uncoloured(error.traceback)
    with pytest.raises(CellFailed, match=r"^rank 1 raised ValueError: no \(line 3\)$") as caught:
        result.check()
    assert list(caught.value.errors) == [1]


def test_the_line_is_the_cells_own_also_where_the_error_is_deep(ring2: Cluster) -> None:
    ring2.run("def deep(n):\n    return deep(n - 1) if n else 1 / 0")
    result = ring2.run("a = 1\nb = deep(20)\nc = 3")
    assert result[0].error is not None and result[0].error.line == 2


@pytest.mark.parametrize(
    ("code", "ename"),
    [
        ("mx.distributed.all_sum('text')", "ValueError"),
        ("mx.distributed.sum_scatter(mx.ones(4))", "NotImplementedError"),
        ("mx.ones(3) + mx.ones(4)", "ValueError"),
        ("input()", "RuntimeError"),
        ("import getpass; getpass.getpass()", "RuntimeError"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("assert False, 'no'", "AssertionError"),
        # Whose message raises in turn: IPython tells of that.
        ("class Odd(Exception):\n    def __str__(self):\n        raise RuntimeError\nraise Odd", "RuntimeError"),
        ("raise ExceptionGroup('two', [ValueError(1), TypeError(2)])", "ExceptionGroup"),
        ("def f(:", "SyntaxError"),
        ("  x = 1\n y = 2", "IndentationError"),
        ("%no_such_magic", "UsageError"),
        ("%%no_such_cell_magic\n1", "UsageError"),
    ],
    ids=lambda value: value.replace("\n", ";") if isinstance(value, str) else None,
)
def test_whatever_a_cell_raises_is_told_and_shows_no_frames_of_ours(code: str, ename: str, ring2: Cluster) -> None:
    result = ring2.run(code)
    assert not result.ok
    for rank in result.values():
        assert rank.error is not None and rank.error.ename == ename
        assert not frames_of_ours(rank.error.traceback)
    assert ring2.run("mx.distributed.all_sum(mx.array(1)).item()")[0].value == 2


@pytest.mark.parametrize("code", ["raise SystemExit(3)", "exit()", "quit", "import sys; sys.exit('bye')"])
def test_leaving_a_cell_leaves_the_rank_up(code: str, ring2: Cluster) -> None:
    result = ring2.run(code)
    assert not result.ok and result[0].error is not None
    # ipykernel ends its process a moment after exit(): the ranks are to be there still when that is over.
    assert (
        ring2.run("import asyncio\nawait asyncio.sleep(0.3)\nmx.distributed.all_sum(mx.array(1)).item()")[0].value == 2
    )


def test_exit_says_what_to_type_instead(ring2: Cluster) -> None:
    error = ring2.run("exit()")[0].error
    assert error is not None and "%distributed down" in error.evalue and not frames_of_ours(error.traceback)


def test_a_stream_that_a_cell_took_away_is_given_back(ring2: Cluster) -> None:
    for taken in ("None", "open(os.devnull, 'w'); sys.stdout.close()"):
        result = ring2.run(f"import os, sys\nsys.stdout = {taken}").check()
        assert "sys.stdout could not be written to" in result[0].stdout
        assert ring2.run("print(rank)").check()[1].stdout == "1\n"


def test_a_warning_names_its_cell_as_a_traceback_does(ring2: Cluster) -> None:
    warned = ring2.run("import warnings\nwarnings.warn('careful')").check()
    assert re.match(r"Cell In\[\d+\], line 2: UserWarning: careful\n", warned[1].stderr), warned[1].stderr


def test_a_log_of_the_user_is_named_where_it_is_called_as_ours(ring2: Cluster) -> None:
    ring2.run("from math import *").check()
    error = ring2.run("print(log(1.0))\nlog(loss=0.5)")
    assert "log is the log of math here, not that of allranks: `del log`" in error[0].stderr
    ring2.run("del log").check()
    ring2.run("log(loss=0.5)").check()
    assert "log is" not in ring2.run("log(loss='no number')")[0].stderr


def test_the_line_of_an_error_whose_text_is_no_unicode(ring2: Cluster) -> None:
    error = ring2.run("text = 1\nraise ValueError('\\ud800')")[0].error
    assert error is not None and (error.ename, error.line) == ("ValueError", 2)


def test_a_recursion_without_end_is_shown_without_a_look_at_all_modules_for_each_frame(ring2: Cluster) -> None:
    ring2.run("""
import inspect
looks, ismodule = 0, inspect.ismodule
def counted(each):
    global looks
    looks += 1
    return ismodule(each)
inspect.ismodule = counted
def deeper(n):
    return deeper(n + 1)
""").check()
    error = ring2.run("deeper(0)")[0].error
    assert error is not None and (error.ename, error.line) == ("RecursionError", 1)
    assert "skipping similar frames: deeper at line 9" in error.traceback
    assert ring2.run("inspect.ismodule = ismodule\nlooks").check()[0].value < 100_000  # there were some three million


def test_magics_shell_commands_and_await(ring2: Cluster) -> None:
    result = ring2.run("""
import asyncio
%time total = sum(range(1000))
words = !echo one two
!echo from the shell
await asyncio.sleep(0.01)
async def three():
    return 3
total, list(words), await three()""")
    assert result.ok, result[0].stderr
    assert result[1].value == (499500, ["one two"], 3)
    assert "Wall time" in result[0].stdout and "from the shell" in result[0].stdout


@pytest.mark.parametrize(
    ("cell", "printed"),
    [
        ("%%time\nprint('timed')", "timed"),
        ("%%capture held\nprint('captured')", ""),
        ("%%bash\necho from bash", "from bash"),
        ("%%writefile /dev/null\ntext", "/dev/null"),
    ],
)
def test_cell_magics_of_the_rank(cell: str, printed: str, ring2: Cluster) -> None:
    result = ring2.run(cell)
    assert result.ok, result.failure()
    assert printed in result[1].stdout
    if not printed:
        assert ring2.run("held.stdout")[0].value == "captured\n"


def test_prints_of_threads_c_code_and_subprocesses_are_all_there(ring2: Cluster) -> None:
    result = ring2.run("""
import os, subprocess, sys, threading
thread = threading.Thread(target=print, args=("from a thread",))
thread.start(); thread.join()
subprocess.run(["echo", "from a child"])
os.write(2, b"from a descriptor\\n")
print("unfinished", end="")""")
    result.check()
    said = result[0].stdout + result[0].stderr
    assert "from a thread\n" in said and said.count("unfinished") == 1
    assert comes_later(ring2, said, "from a child", "from a descriptor")


@pytest.mark.slow
def test_a_limit_on_output_keeps_start_and_end_and_says_what_was_cut(ring2: Cluster) -> None:
    result = ring2.run("for i in range(100_000):\n    print(i)", max_output=10_000)
    for rank in result.values():
        assert rank.stdout.startswith("0\n1\n2\n") and rank.stdout.endswith("99999\n")
        assert rank.lines == 100_000
        assert rank.cut["lines"] + rank.stdout.count("\n") == 100_000
        assert len(rank.stdout) < 100_000


def test_a_timeout_stops_python_code_and_leaves_the_ranks_idle(ring2: Cluster) -> None:
    ring2.run("kept = 'kept'")
    with pytest.raises(CellTimeout, match=r"stopped after 0\.5 s"):
        ring2.run("import time\nwhile True:\n    time.sleep(0.01)", timeout=0.5)
    assert idle(ring2)
    assert ring2.run("kept")[1].value == "kept"


def test_a_timeout_that_is_not_needed_changes_nothing(ring2: Cluster) -> None:
    assert ring2.run("rank", timeout=60)[1].value == 1


def test_a_timeout_of_finish_begins_with_it(ring2: Cluster, tmp_path: Path) -> None:
    go, begun = tmp_path / "go", tmp_path / "begun"
    cell = ring2.begin(
        f"import os, time\nopen({str(begun)!r}, 'w')\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)"
    )
    cell._started -= WITHIN  # as one that has run for long
    Timer(0.2, go.touch).start()
    assert cell.finish(WITHIN / 2).ok


@pytest.mark.parametrize("timeout", [float("nan"), 0, -1, "soon"])
def test_a_timeout_of_finish_that_cannot_be_is_refused_and_the_cell_goes_on(timeout: Any, ring2: Cluster) -> None:
    cell = ring2.begin("rank")
    with pytest.raises(UsageError, match="timeout="):
        cell.finish(timeout)
    assert cell.finish()[1].value == 1


def test_several_threads_may_wait_for_one_cell(ring2: Cluster, tmp_path: Path) -> None:
    """As a notebook does that takes the cell of `--no-wait -o`: its output is handled by one of them."""
    go = tmp_path / "go"
    cell = ring2.begin(f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\nprint('one')\nrank")
    with ThreadPoolExecutor(3) as threads:
        waiting = [threads.submit(cell.finish) for _ in range(3)]
        go.touch()
        results = [each.result(WITHIN) for each in waiting]
    assert all(result is cell.result for result in results) and cell.finish() is cell.result
    assert [each.stdout for each in results[0].values()] == ["one\n"] * 2


def test_the_end_of_a_cell_that_was_given_up_is_not_waited_for_again(ring2: Cluster, tmp_path: Path) -> None:
    go = tmp_path / "go"
    cell = ring2.begin(
        "import os, time\n"
        f"while not os.path.exists({str(go)!r}):\n"
        "    try:\n        time.sleep(0.01)\n    except KeyboardInterrupt:\n        pass",
        timeout=0.3,
    )
    with pytest.raises(CellTimeout, match="Still busy"):
        cell.finish()
    assert cell.finish() is cell.result and not cell.finish().ok
    go.touch()
    assert idle(ring2)


def test_a_second_thread_may_stop_the_cell(ring2: Cluster, patient_stop: None) -> None:
    cell = ring2.begin("while True: pass")
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(cell.finish)
        assert comes_true(ring2, lambda _: cell.followed, WITHIN)
        with pytest.raises(CellTimeout, match="the cell was stopped"):
            cell.finish(0.1)
        with pytest.raises(CellInterrupted):
            first.result(WITHIN)
    assert idle(ring2)


def test_cells_come_in_order_and_quickly(ring2: Cluster) -> None:
    for i in range(50):
        assert ring2.run(f"{i}")[1].value == i


def test_large_values_come_through(ring2: Cluster) -> None:
    result = ring2.run("mx.full((5_000_000,), rank)")
    assert [(r.value.shape, r.value[-1].item()) for r in result.values()] == [((5_000_000,), 0), ((5_000_000,), 1)]


@pytest.mark.slow
def test_a_large_cell_goes_through(ring2: Cluster) -> None:
    code = f"text = {'x' * 3_000_000!r}\nlen(text)"
    assert ring2.run(code)[0].value == 3_000_000


def test_pickling_does_not_print_twice(ring2: Cluster) -> None:
    assert ring2.run("print('once'); 1")[0].stdout == "once\n"


def comes_later(cluster: Cluster, said: str, *wanted: str) -> bool:
    """Whether all that is wanted is in what was said, or is shown with later cells.

    What bypasses Python passes through a pipe, and comes with a later cell: with the next one, on a machine at rest. It
    is shown there as printed after the cell before, and is in no result.
    """
    until = time.monotonic() + WITHIN
    while not all(each in said for each in wanted) and time.monotonic() < until:
        shown: list[Any] = []
        cluster.run("1", screen=Recorder(shown))
        said += "".join(block.content for block in shown if block.kind == "text")
    return all(each in said for each in wanted)


class Recorder(Nowhere):
    """A screen that remembers the blocks it was to show."""

    def __init__(self, blocks: list[Any]) -> None:
        self.shown = blocks

    def blocks(self, blocks: list[Any]) -> None:
        self.shown.extend(blocks)


def test_output_is_shown_while_the_cell_runs(ring2: Cluster, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 ends only after the notebook has shown what rank 0 and rank 1 printed before."""
    monkeypatch.setattr(fold, "GRACE", WITHIN)
    go = tmp_path / "go"

    class Go(Recorder):
        def blocks(self, blocks: list[Any]) -> None:
            super().blocks(blocks)
            if any("first" in str(block.content) for block in blocks):
                go.touch()

    shown: list[Any] = []
    ring2.run(
        "import pathlib, time\nprint('first')\n"
        f"while not pathlib.Path({str(go)!r}).exists():\n    time.sleep(0.01)\nprint('second')",
        screen=Go(shown),
        timeout=2 * WITHIN,
    ).check()
    assert "".join(str(block.content) for block in shown) == "first\nsecond\n"
    assert {block.ranks for block in shown} == {(0, 1)}


def test_the_notebook_hears_of_the_end_whatever_goes_wrong_at_it(ring2: Cluster) -> None:
    broken = (
        "import allranks.rank.cell.changed_names as module\nright = module.pending_names\n"
        "def wrong(*_, **__):\n    module.pending_names = right\n    raise LookupError('what is pending')\n"
        "module.pending_names = wrong\nmx.distributed.all_sum(mx.ones(2)).tolist()"
    )
    result = ring2.run(broken, timeout=60)
    assert {error.ename for error in result.errors.values()} == {"LookupError"}
    assert [rank.value for rank in ring2.run("del module, right, wrong\nrank").check().values()] == [0, 1]


def test_characters_that_come_in_two_pieces_are_whole(ring2: Cluster) -> None:
    """Of what is written as bytes, by Python and by what it runs: a pipe is read 64 KiB at a time."""
    code = (
        "import os, sys, time\n"
        "for byte in 'é€😀\\n'.encode(): sys.stdout.buffer.write(bytes([byte]))\n"
        "sys.stdout.flush()\n"
        "for byte in 'ß→\\n'.encode():\n"
        "    os.write(1, bytes([byte]))\n"
        "    time.sleep(0.05)"
    )
    said = ring2.run(code, ranks=0).check()[0].stdout
    assert said.startswith("é€😀\n") and comes_later(ring2, said, "ß→\n")
