"""Files of ranks on this machine come to the notebook; tests/hosts/test_sync.py has other hosts."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from allranks import Cluster
from allranks.errors import CannotCopy, CellInterrupted, UsageError
from allranks.head.world.ranks import Ranks
from allranks.notebook import transfer_progress
from tests.waiting import eventually

WITHIN = 60.0


@pytest.fixture
def pair(work: Path) -> Iterator[Cluster]:
    """Two ranks, each in a folder of its own."""
    with Cluster(2, backend="ring") as cluster:
        cluster.run("import os; os.makedirs(f'../r{rank}/runs'); os.chdir(f'../r{rank}')").check()
        yield cluster


def write(cluster: Cluster, name: str, value: str, ranks: list[int] | None = None) -> None:
    cluster.run(f"with open({name!r}, 'wb') as file: file.write({value})", ranks=ranks).check()


def here(work: Path) -> dict[str, bytes]:
    root = work / "fetched"
    return {str(each.relative_to(root)): each.read_bytes() for each in sorted(root.rglob("*")) if each.is_file()}


def test_what_is_equal_comes_once_and_what_differs_by_rank(pair: Cluster, work: Path) -> None:
    write(pair, "runs/same.npz", "b'equal'")
    write(pair, "runs/loss.txt", "str(rank).encode()")
    write(pair, "runs/length.txt", "b'x' * (rank + 1)")
    write(pair, "runs/only.txt", "b'only'", ranks=[1])
    result = pair.fetch("runs/*")
    assert here(work) == {
        ".gitignore": b"*\n",
        "rank-0/runs/length.txt": b"x",
        "rank-0/runs/loss.txt": b"0",
        "rank-1/runs/length.txt": b"xx",
        "rank-1/runs/loss.txt": b"1",
        "runs/only.txt": b"only",
        "runs/same.npz": b"equal",
    }
    assert result.files["runs/same.npz"] == [0, 1] and result.files["runs/only.txt"] == [1]
    assert str(result).startswith(f"6 files (14 B) fetched to {work}/fetched: ")


def test_folders_of_the_ranks_own_do_not_meet_those_of_what_differs(pair: Cluster, work: Path) -> None:
    write(pair, "loss", "str(rank).encode()")
    pair.run("os.makedirs(f'rank-{1 - rank}'); open(f'rank-{1 - rank}/loss', 'w').write(f'own {rank}')").check()
    result = pair.fetch("**/loss")
    assert here(work) == {
        ".gitignore": b"*\n",
        "rank-0/loss": b"0",
        "rank-0/rank-1/loss": b"own 0",
        "rank-1/loss": b"1",
        "rank-1/rank-0/loss": b"own 1",
    }
    assert len(result.files) == 4


def test_a_file_of_one_rank_where_another_has_a_folder(pair: Cluster, work: Path) -> None:
    write(pair, "a", "b'file'", ranks=[0])
    pair.run("os.makedirs('a'); open('a/b', 'w').write('in a folder')", ranks=[1]).check()
    pair.fetch("**")
    assert here(work) == {".gitignore": b"*\n", "rank-0/a": b"file", "a/b": b"in a folder"}


def test_what_was_fetched_before_is_replaced_and_times_are_kept(pair: Cluster, work: Path) -> None:
    write(pair, "a", "b'1'")
    pair.fetch("a")
    write(pair, "a", "b'22'")
    pair.run("os.utime('a', (1000, 1000))").check()
    pair.fetch("a")
    assert here(work)["a"] == b"22" and (work / "fetched" / "a").stat().st_mtime == 1000


def test_more_files_than_are_fetched_at_a_time_are_refused_with_what_to_do(pair: Cluster) -> None:
    pair.run("import allranks.rank.files.found_files as found; found.MOST = 3").check()
    for name in "abcde":
        write(pair, f"runs/{name}", "b''")
    with pytest.raises(
        UsageError, match=r"^5 files of a rank match runs/\*, and at most 3 are fetched at a time\. Name"
    ):
        pair.fetch("runs/*")


def test_empty_and_large_files_come_in_one_stream(pair: Cluster, work: Path) -> None:
    for name, content in (("a", "b''"), ("b", "bytes(5_000_000) + b'end'"), ("c", "str(rank).encode()"), ("d", "b''")):
        write(pair, f"runs/{name}", content)
    pair.fetch("runs/*")
    found = here(work)
    assert found.pop("runs/b") == bytes(5_000_000) + b"end"
    assert found == {
        ".gitignore": b"*\n",
        "rank-0/runs/c": b"0",
        "rank-1/runs/c": b"1",
        "runs/a": b"",
        "runs/d": b"",
    }


def test_many_small_files_come_in_few_messages(pair: Cluster, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.run("for n in range(100): open(f'runs/{n}', 'w').write(str(n % 2 * rank))").check()
    asked, ask = list[str](), Ranks.ask

    def counted(ranks: Ranks, numbers: Any, question: Any, *buffers: Any) -> Any:
        asked.append(type(question).__name__)
        return ask(ranks, numbers, question, *buffers)

    monkeypatch.setattr(Ranks, "ask", counted)
    pair.fetch("runs/*")
    assert len(here(work)) == 1 + 50 + 2 * 50
    assert len(asked) < 10, asked


class Shown:
    """Takes the place of the lines below a notebook's cell."""

    def __init__(self) -> None:
        self.lines = set[str]()

    def want(self, lines: Mapping[int, str]) -> None:
        self.lines.update(lines.values())


def test_long_steps_of_many_files_are_shown(work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Shown()
    monkeypatch.setattr(transfer_progress, "SHOW_AFTER", 0.0)
    monkeypatch.setattr(transfer_progress, "_area", lambda _ranks: shown)
    slowly = "lambda *args: (time.sleep(1), real(*args))[1]"
    for name in ("a", "b"):
        (work / name).write_text(name)
    (tmp_path / "there").mkdir()
    with Cluster(2, backend="ring", cwd=tmp_path / "there") as cluster:
        patched = "import time; from allranks.rank.files import synced_folder as its, found_files as found\n"
        cluster.run(f"{patched}real = its.commit; its.commit = {slowly}").check()
        cluster.sync()
        assert "puts 2 files in place" in shown.lines
        cluster.run("import os; os.makedirs(f'r{rank}'); os.chdir(f'r{rank}')").check()
        write(cluster, "x", "b'1'")
        cluster.run(f"real = found.digest; found.digest = {slowly}").check()
        cluster.fetch("x")
        assert "0 of 1 files compared" in shown.lines


def test_a_folder_of_the_users_is_not_written_over(pair: Cluster, work: Path) -> None:
    write(pair, "a", "b'theirs'")
    (work / "a").write_text("mine")
    with pytest.raises(UsageError, match=r"a in .*: already there. --overwrite replaces it"):
        pair.fetch("a", to=".")
    assert (work / "a").read_text() == "mine"
    pair.fetch("a", to=".", overwrite=True)
    assert (work / "a").read_text() == "theirs"
    assert not (work / "fetched").exists() and not (work / ".gitignore").exists()


def test_absolute_patterns_and_folders_in_folders(pair: Cluster, work: Path) -> None:
    pair.run("os.makedirs('runs/deep'); open(f'runs/deep/{rank}.txt', 'w').write('x')").check()
    pair.fetch(f"{work.parent}/r*/runs/**/*.txt")
    assert set(here(work)) == {".gitignore", "r0/runs/deep/0.txt", "r1/runs/deep/1.txt"}, "one machine: each found once"
    pair.fetch("../r0/**/0.txt", ranks=[1])
    assert "runs/deep/0.txt" in here(work)


def test_large_and_empty_files_and_odd_names(pair: Cluster, work: Path) -> None:
    write(pair, "large", "os.urandom(1) * (5 * 2**20 + 17) + bytes([rank])")
    write(pair, "runs/it's \n\udcff", "b''")
    pair.fetch("**")
    assert pair.fetch(f"{work.parent}/**", ranks=[0]).files, "what was fetched is not fetched again"
    found = here(work)
    assert not any("fetched" in name for name in found)
    assert [len(found[f"rank-{rank}/large"]) for rank in range(2)] == [5 * 2**20 + 18] * 2
    assert [found[f"rank-{rank}/large"][-1] for rank in range(2)] == [0, 1]
    assert found["runs/it's \n\udcff"] == b""


def test_ranks_may_run_a_cell_meanwhile(pair: Cluster, work: Path) -> None:
    write(pair, "a", "b'1'")
    cell = pair.begin("import time\nwhile not os.path.exists('go'): time.sleep(0.01)")
    pair.fetch("a")
    assert here(work)["a"] == b"1"
    for rank in range(2):
        (work.parent / f"r{rank}" / "go").touch()
    cell.finish(WITHIN).check()


def test_what_is_not_there_is_said(pair: Cluster, work: Path) -> None:
    with pytest.raises(UsageError, match=r"no rank has a file runs/\*\.npz \(they work in .*/r0, .*/r1\)"):
        pair.fetch("runs/*.npz")
    assert not (work / "fetched").exists()
    write(pair, "one", "b'1'", ranks=[0])
    assert str(pair.fetch("one")).endswith("one. rank 1 had none.")


def test_a_file_that_changes_meanwhile_is_not_fetched(pair: Cluster, work: Path) -> None:
    write(pair, "log", "b'x' * 2**26", ranks=[0])
    cell = pair.begin(
        "while not os.path.exists('go'):\n    with open('log', 'ab') as file: file.write(b'y')", ranks=[0]
    )
    with pytest.raises(CannotCopy, match=r"rank 0: .*/r0/log was changed while it was fetched. Try again"):
        pair.fetch("log")
    (work.parent / "r0" / "go").touch()
    cell.finish(WITHIN).check()
    assert set(here(work)) == {".gitignore"}


def test_ctrl_c_leaves_whole_files_only(pair: Cluster, work: Path) -> None:
    write(pair, "large", "os.urandom(2**20) * 700", ranks=[0])

    def press() -> None:
        eventually(lambda: list((work / "fetched").glob(".large.part")))
        os.kill(os.getpid(), signal.SIGINT)

    pressing = threading.Thread(target=press)
    pressing.start()
    with pytest.raises(CellInterrupted, match="files that are whole are in"):
        pair.fetch("large")
    pressing.join(WITHIN)
    assert set(here(work)) == {".gitignore"}
    assert [rank.value for rank in pair.run("1").check().values()] == [1, 1]
