"""Modules beside the notebook, edited between two cells, on ranks of this machine: all reload them, or none."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from allranks import Cluster
from allranks.errors import CannotCopy, CellInterrupted
from allranks.files.notebook_folder import Contents, Folder
from tests.jupyter import Notebook
from tests.waiting import comes_true, eventually, idle

WITHIN = 60.0


@pytest.fixture
def pair(work: Path) -> Iterator[Cluster]:
    """Two ranks that work in the folder."""
    (work / "mine.py").write_text("N = 1\n\ndef f():\n    return N\n")
    with Cluster(2, backend="ring", sync=True) as cluster:
        cluster.run("import mine; from mine import f").check()
        yield cluster


def values(cluster: Cluster, code: str) -> list[object]:
    return [rank.value for rank in cluster.run(code, timeout=WITHIN).check().values()]


def test_the_next_cell_runs_what_was_edited_and_variables_stay(pair: Cluster, work: Path) -> None:
    pair.run("kept = mx.full((3,), rank)").check()
    (work / "mine.py").write_text("N = 2\n\ndef f():\n    return 10 * N\n")
    assert values(pair, "mine.f(), f(), kept[0].item()") == [(20, 20, 0), (20, 20, 1)]
    assert pair.apply(len, "abc") == [3, 3]
    (work / "mine.py").write_text("N = 3\n\ndef f():\n    return 10 * N\n")
    result = pair.sync()
    assert result.reloaded == {(0, 1): ("mine",)} and result.hosts["localhost"].same
    assert str(result).splitlines()[-1] == "Reloaded on all ranks: mine."


def test_a_module_that_is_saved_while_it_is_sent_is_sent_whole(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there").mkdir()
    (work / "mine.py").write_text("N = 1\n")
    scan, later = Folder.scan, iter(["N = 1\nN = 2\n"])

    def scanned(*args: Any) -> Contents:
        found = scan(*args)
        for text in islice(later, 1):  # once it is known how large the file is
            (work / "mine.py").write_text(text)
        return found

    monkeypatch.setattr(Folder, "scan", scanned)
    with Cluster(2, backend="ring", cwd=tmp_path / "there", sync=True) as cluster:
        assert values(cluster, "import mine; mine.N") == [2, 2]


def test_a_folder_that_cannot_be_read_for_a_while_is_removed_nowhere(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a file server that is away for a moment."""
    (there := tmp_path / "there").mkdir()
    (work / "data").mkdir()
    (work / "data" / "points").write_text("1 2")
    with Cluster(2, backend="ring", cwd=there) as cluster:
        cluster.sync()
        with monkeypatch.context() as away:
            for name in ("scandir", "lstat"):
                away.setattr(os, name, partial(fails_below, work / "data", getattr(os, name)))
            said = str(cluster.sync())
        assert "Not sent: data: it cannot be read here (Stale file handle)." in said and "Removed" not in said
        assert (there / "data" / "points").read_text() == "1 2"
        (work / "data" / "points").unlink()
        assert "Removed: data/points." in str(cluster.sync())
        assert not (there / "data").exists()


def fails_below(folder: Path, function: Any, path: Any, *args: Any, **options: Any) -> Any:
    if isinstance(path, str | Path) and Path(path).is_relative_to(folder):
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)
    return function(path, *args, **options)


def test_one_rank_that_cannot_keeps_all_from_it(pair: Cluster, work: Path) -> None:
    pair.run("import builtins; builtins.whose = rank").check()
    (work / "mine.py").write_text("N = 2\nif whose == 1:\n    raise ValueError('not here')\n\ndef f():\n    return N\n")
    assert values(pair, "mine.f(), f(), mine.N") == [(1, 1, 1)] * 2
    result = pair.sync()
    assert result.not_reloaded == "rank 1: mine.py, line 3: ValueError: not here"
    pair.run("builtins.whose = 0").check()
    assert values(pair, "mine.f(), f(), mine.N") == [(2, 2, 2)] * 2, "it is tried again before each cell"


def test_a_slip_is_said_above_the_cell_which_runs_with_the_old_module(kernel: Notebook, tmp_path: Path) -> None:
    (tmp_path / "slip.py").write_text("def f():\n    return 1\n")
    kernel.run("%distributed down")
    kernel.ok(f"import os; before = os.getcwd(); os.chdir({str(tmp_path)!r})")
    try:
        kernel.ok("%distributed up -n 2 --sync")
        assert kernel.ok("%%distributed\nimport slip\nslip.f()").stdout == "ranks 0-1 │ 1\n"
        (tmp_path / "slip.py").write_text("def f():\n    return 2 +\n")
        cell = kernel.ok("%%distributed\nslip.f()")
        assert cell.stdout == "ranks 0-1 │ 1\n"
        assert (
            "Not reloaded; all ranks keep the modules they had. ranks 0-1: slip.py, line 2: SyntaxError" in cell.stderr
        )
        (tmp_path / "slip.py").write_text("def f():\n    return 2\n")
        cell = kernel.ok("%%distributed\nslip.f()")
        assert cell.stdout == "ranks 0-1 │ 2\n" and "Reloaded on all ranks: slip." in cell.stderr
        assert kernel.ok("%distributed sync").stdout == "localhost: has this folder itself; nothing to send.\n"
        kernel.ok("%distributed sync --off")
        (tmp_path / "slip.py").write_text("def f():\n    return 3\n")
        assert kernel.ok("%%distributed\nslip.f()").stdout == "ranks 0-1 │ 2\n"
        kernel.ok("%load_ext autoreload\n%autoreload 2")
        assert kernel.ok("%%distributed\nslip.f()").stdout == "ranks 0-1 │ 3\n", "as the notebook itself does"
    finally:
        kernel.run("%autoreload 0\nos.chdir(before)\n%distributed down")


def test_a_module_of_the_notebook_is_no_variable_to_push(kernel: Notebook) -> None:
    kernel.run("%distributed up -n 2")
    kernel.ok("import json as js")
    failed = kernel.run("%%distributed\njs.dumps(1)")
    assert "js is a module that the notebook has imported: import json as js in the cell." in failed.all
    kernel.ok("%distributed down")


def test_a_variable_that_cannot_be_sent_is_not_said_to_be_pushed(kernel: Notebook) -> None:
    kernel.run("%distributed up -n 2")
    kernel.ok("steps, rate = (i for i in range(3)), 0.1")
    failed = kernel.run("%%distributed\nnext(steps)")
    assert "steps is a notebook variable, and a generator cannot be sent to the ranks: define it there." in failed.all
    assert "push steps" not in failed.all
    assert "%distributed push rate" in kernel.run("%%distributed\nrate").all
    kernel.ok("%distributed down")


@pytest.mark.slow
def test_a_rank_that_does_not_respond_keeps_all_from_it_and_from_the_cell(pair: Cluster, work: Path) -> None:
    pair.run("import builtins; builtins.whose = rank").check()
    stops = (
        "import os, signal\nif whose == 1 and not os.path.exists('went'):\n    os.kill(os.getpid(), signal.SIGSTOP)\n"
    )
    (work / "mine.py").write_text(stops + "N = 2\n\ndef f():\n    return N\n")
    with pytest.raises(
        CannotCopy, match=r"^rank 1 did not respond .* no longer shows 'suspended', 'silent' or 'out of reach'\.$"
    ):
        pair.run("mine.f()")
    assert comes_true(pair, lambda now: now.ranks[1].doing == "suspended", WITHIN)
    (work / "went").touch()
    os.kill(pair.snapshot.ranks[1].pid or 0, signal.SIGCONT)
    assert idle(pair)
    assert values(pair, "mine.f(), f(), mine.N") == [(2, 2, 2)] * 2


def test_a_decision_that_is_lost_is_learned_with_the_next_cell(
    pair: Cluster, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (work / "mine.py").write_text("N = 2\n\ndef f():\n    return N\n")
    with monkeypatch.context() as patched:
        patched.setattr("allranks.cluster.reload_modules.DECIDED_WITHIN", 0.0)
        with pytest.raises(CannotCopy, match="did not respond while modules"):
            pair.run("mine.f()")
    assert values(pair, "mine.f(), f(), mine.N") == [(2, 2, 2)] * 2


def test_a_module_that_calls_a_collective_is_refused_on_all_and_blocks_none(pair: Cluster, work: Path) -> None:
    (work / "mine.py").write_text(
        "import mlx.core as mx\nN = mx.distributed.all_sum(mx.ones(1)).item()\n\ndef f():\n    return N\n"
    )
    assert values(pair, "mine.f()") == [1, 1]
    assert "mine.py, line 2: CollectiveAborted: a module that is reloaded cannot call collectives" in str(pair.sync())
    assert values(pair, "mx.distributed.all_sum(mx.ones(1)).item()") == [2, 2]


def test_ranks_that_run_a_cell_reload_later(pair: Cluster, work: Path) -> None:
    cell = pair.begin("import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)", ranks=[1])
    (work / "mine.py").write_text("N = 2\n\ndef f():\n    return N\n")
    assert [rank.value for rank in pair.run("mine.f()", ranks=[0]).check().values()] == [1]
    (work / "go").touch()
    cell.finish(WITHIN)
    assert values(pair, "mine.f()") == [2, 2]


def test_ctrl_c_ends_a_module_that_does_not_end_and_undoes_it(pair: Cluster, work: Path) -> None:
    (work / "mine.py").write_text(
        "import os, time\nN = 2\nopen(f'began-{os.getpid()}', 'w').close()\nwhile True:\n    time.sleep(0.01)\n"
    )

    def press() -> None:
        eventually(lambda: len(list(work.glob("began-*"))) == 2)
        os.kill(os.getpid(), signal.SIGINT)

    pressing = threading.Thread(target=press)
    pressing.start()
    with pytest.raises(CellInterrupted):
        pair.run("mine.f()")
    pressing.join(WITHIN)
    (work / "mine.py").write_text("N = 3\n\ndef f():\n    return N\n")
    assert idle(pair)
    assert values(pair, "mine.f()") == [3, 3]


def test_ranks_reload_what_the_notebook_reloads(work: Path) -> None:
    """Without `sync`, cells cost no look at the folder, and modules stay as they are."""
    (work / "mine.py").write_text("def f():\n    return 1\n")
    with Cluster(2, backend="ring") as cluster:
        cluster.run("import mine").check()
        (work / "mine.py").write_text("def f():\n    return 2\n")
        assert values(cluster, "mine.f()") == [1, 1]
        cluster.auto_sync = True
        assert values(cluster, "mine.f()") == [2, 2]
    assert "mine" not in sys.modules
