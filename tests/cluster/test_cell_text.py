"""What a cell printed is read from its ranks: searched, saved, and bounded where it is shown."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from pathlib import Path

import pytest

from allranks import Cluster
from allranks.cluster import cell_text
from allranks.cluster.cell_text import FOUND, CellText
from allranks.errors import CannotCopy, CellInterrupted, UsageError
from allranks.notebook.feed_dashboards import Nowhere
from allranks.notebook.fold import Block
from allranks.notebook.page_room import LONGEST
from tests.waiting import WITHIN, comes_true, eventually


def printed(cluster: Cluster, code: str) -> CellText:
    cluster.run(code).check()
    return cluster.printed()


def lines_of(blocks: list[Block], rank: int) -> list[str]:
    return "".join(block.content for block in blocks if rank in block.ranks).splitlines()


def pid(cluster: Cluster, rank: int) -> int:
    found = cluster.snapshot.ranks[rank].pid
    assert found is not None
    return found


def test_the_last_lines_are_whole_however_long_they_are(ring2: Cluster) -> None:
    text = printed(ring2, "for i in range(1000): print(f'{i:4}', 'é' * 500)")
    lines = lines_of(text.last(50), 0)
    assert [line[:5] for line in lines] == [f"{number:4} " for number in range(950, 1000)]
    assert all(len(line) == LONGEST + 1 and line.endswith("é…") for line in lines)


def test_the_end_of_one_line_is_shown_where_there_is_no_other(ring2: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell_text, "LARGEST", 100_000)
    text = printed(ring2, "print('x' * 1_000_000); print('end')")
    assert lines_of(text.last(5), 1) == ["…" + "x" * (LONGEST - 1), "end"]


def test_what_is_found_is_bounded_over_all_ranks_and_counted_for_each(ring2: Cluster) -> None:
    text = printed(ring2, "for i in range(3000 + rank): print(rank, 'step', i)")
    blocks, counts = text.find("step")
    assert counts == {0: 3000, 1: 3001}
    assert sum(block.content.count("\n") for block in blocks) == FOUND
    assert min(len(lines_of(blocks, rank)) for rank in range(2)) >= FOUND // 4, "no rank has the page for itself"


def test_a_line_of_several_parts_is_found_and_shown_around_the_text(ring2: Cluster, tmp_path: Path) -> None:
    text = printed(ring2, "print('a'); print('y' * 3_000_000 + 'needle' + 'z' * 3_000_000); print('b')")
    blocks, counts = text.find("needle")
    assert counts == {0: 1, 1: 1}
    (line,) = lines_of(blocks, 0)
    assert len(line) <= LONGEST + 2 and line.startswith("…yy") and "needle" in line and line.endswith("zz…")
    assert [len(each) for each in text.lines(1)] == [2, 6_000_007, 2]
    assert text.save(tmp_path / "out") == 3


def test_what_was_saved_before_stays_until_the_new_file_is_whole(ring2: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "run.txt"
    file.write_text("yesterday")
    text = printed(ring2, "print('today')")
    for number in range(5):
        ring2.run(f"print({number})").check()
    with pytest.raises(CannotCopy, match="Output of rank 0 is missing: that cell's output is no longer kept"):
        text.save(file)
    assert file.read_text() == "yesterday" and os.listdir(tmp_path) == ["run.txt"]
    assert ring2.printed().save(file) == 1
    assert file.read_text() == "ranks 0-1 │ 4\n"
    with pytest.raises(CannotCopy, match=r"no/file cannot be written \(No such file or directory\)"):
        text.save(tmp_path / "no" / "file")
    with pytest.raises(CannotCopy, match="is not a regular file"):
        text.save(Path("/dev/null"))


def test_cells_of_bench_are_not_the_users_last(ring2: Cluster) -> None:
    ring2.run("print('mine')").check()
    for _ in range(6):
        ring2.run("1", screen=Nowhere()).check()
    assert lines_of(ring2.printed().last(), 0) == ["mine"]


def test_a_cell_that_printed_nothing(ring2: Cluster, tmp_path: Path) -> None:
    text = printed(ring2, "1;")
    assert text.nbytes == {0: 0, 1: 0}
    assert text.last() == [] and text.find("x") == ([], {0: 0, 1: 0}) and text.save(tmp_path / "out") == 0


def test_a_rank_that_is_dead_or_new_is_named_and_the_others_are_read(ring2: Cluster) -> None:
    ring2.run("print('before', rank)").check()
    os.kill(pid(ring2, 1), signal.SIGKILL)
    assert comes_true(ring2, lambda now: now.ranks[1].state == "dead", WITHIN)
    text = ring2.printed()
    assert text.ranks == [0] and lines_of(text.last(), 0) == ["before 0"]
    assert re.fullmatch(
        r"Output of rank 1 is missing: dead \(.*\)\. %distributed heal replaces dead ranks\.", text.missing_text()
    )
    ring2.heal()
    text = ring2.printed()
    assert text.missing_text() == "Output of rank 1 is missing: that cell's output is no longer kept."
    assert text.find("before")[1] == {0: 1}
    with pytest.raises(CannotCopy, match="Output of rank 1 is missing"):
        ring2.printed(ranks=1)
    with pytest.raises(CannotCopy, match="Output of rank 1 is missing"):
        next(text.lines(1))


def test_without_a_cell_or_its_ranks_there_is_nothing_to_show() -> None:
    with Cluster(2, backend="ring") as cluster:
        with pytest.raises(UsageError, match="no cell has run yet"):
            cluster.printed()
        cluster.run("print(1)", ranks=1).check()
        cluster.resize(1)
        with pytest.raises(UsageError, match="the last cell ran on rank 1; this world has fewer ranks now"):
            cluster.printed()


def test_a_rank_that_does_not_answer_is_named(ring2: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell_text, "WITHIN", 1.0)
    ring2.run("print('here')").check()
    os.kill(pid(ring2, 0), signal.SIGSTOP)
    try:
        text = ring2.printed()
    finally:
        os.kill(pid(ring2, 0), signal.SIGCONT)
    why = "no answer within 1 s", "its process is stopped"
    assert text.missing_text() in {f"Output of rank 0 is missing: {each}." for each in why}
    assert lines_of(text.last(), 1) == ["here"]


def test_ctrl_c_stops_the_wait_for_a_rank(ring2: Cluster) -> None:
    text = printed(ring2, "print('here')")

    def press() -> None:
        if eventually(lambda: signal.getsignal(signal.SIGINT) is not signal.default_int_handler, 10.0):
            os.kill(os.getpid(), signal.SIGINT)

    os.kill(pid(ring2, 0), signal.SIGSTOP)
    pressing = threading.Thread(target=press)
    began = time.monotonic()
    try:
        pressing.start()
        with pytest.raises(CellInterrupted, match="stopped while output was read; nothing was written"):
            text.find("here")
    finally:
        os.kill(pid(ring2, 0), signal.SIGCONT)
        pressing.join()
    assert time.monotonic() - began < cell_text.WITHIN
    assert lines_of(text.last(), 0) == ["here"]


def test_what_cannot_be_asked_of_it_is_refused(ring2: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ring2.run("print('one')")
    text = ring2.printed(ranks=[0])
    for count in (0, -3):
        with pytest.raises(UsageError, match="use 1 or more lines"):
            text.last(count)
    with pytest.raises(UsageError, match="no output of rank 1 was asked for, only of rank 0"):
        list(text.lines(1))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert text.save("~/run.txt") == 1 and (tmp_path / "run.txt").read_text() == "rank 0 │ one\n"
