"""All that the last cells printed is kept on the rank, in memory or in a file."""

from __future__ import annotations

import multiprocessing
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from allranks.rank.cell import whole_output as module
from allranks.rank.cell.output_buffer import OutputBuffer
from allranks.rank.cell.whole_output import IN_MEMORY, KEPT, SILENT, Printed


def whole(printed: Printed, cell: int) -> str:
    text, nbytes = b"", 1
    while len(text) < nbytes:
        part, nbytes, _ = printed.read(cell, len(text))
        text += part
    return text.decode()


@contextmanager
def disk_of(nbytes: int) -> Iterator[None]:
    """Nothing more than this can be written to a file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("count", [0, 10, 10_000])
def test_what_is_cut_is_kept_in_order(tmp_path: Path, count: int) -> None:
    printed = Printed(tmp_path)
    output = OutputBuffer(lambda: None, limit=1000, tail=200, printed=printed)
    printed.begin(7)
    for number in range(count):
        output.write("stdout" if number % 3 else "stderr", f"line {number} é\n")
    output.write("stdout", "no end")
    output.end()
    assert whole(printed, 7) == "".join(f"line {number} é\n" for number in range(count)) + "no end"


def test_a_few_cells_are_kept(tmp_path: Path) -> None:
    printed = Printed(tmp_path)
    printed.write("before any cell")
    for cell in range(1, KEPT + 3):
        printed.begin(cell)
        printed.write(f"{cell}" * (IN_MEMORY + 1))
    assert whole(printed, KEPT + 2).startswith(f"{KEPT + 2}")
    assert whole(printed, 3).startswith("3")
    with pytest.raises(RuntimeError, match="that cell's output is no longer kept"):
        printed.read(2, 0)


def test_cells_that_print_nothing_take_no_others_place(tmp_path: Path) -> None:
    printed = Printed(tmp_path)
    printed.begin(1)
    printed.write("loss 1.0\n")
    for cell in range(2, 2 * SILENT):
        printed.begin(cell)
    assert (whole(printed, 1), whole(printed, SILENT)) == ("loss 1.0\n", "")
    with pytest.raises(RuntimeError, match="that cell's output is no longer kept"):
        printed.read(2, 0)


def test_a_cell_without_output_costs_the_same_however_many_came_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed, looked_at = Printed(tmp_path), list[object]()

    def nbytes(text: module._Text) -> int:
        looked_at.append(text)
        return len(text._rest)

    monkeypatch.setattr(module._Text, "nbytes", property(nbytes))
    for cell in range(1, SILENT):
        looked_at.clear()
        printed.begin(cell)
        assert len(looked_at) <= 1


def test_a_cell_with_the_number_of_an_earlier_one_replaces_it(tmp_path: Path) -> None:
    printed = Printed(tmp_path)
    for cell, text in ((1, "one"), (2, ""), (2, "two"), (3, ""), (1, "new"), (3, "three")):
        printed.begin(cell)
        printed.write(text)
    assert [whole(printed, cell) for cell in (1, 2, 3)] == ["new", "two", "three"]


def test_all_cells_before_the_last_are_bounded_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 100)
    printed = Printed(tmp_path)
    for cell in (1, 2, 3):
        printed.begin(cell)
        printed.write("x" * 60)
    assert whole(printed, 2) == whole(printed, 3) == "x" * 60
    with pytest.raises(RuntimeError, match="that cell's output is no longer kept"):
        printed.read(1, 0)


def test_a_text_without_end_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 100)
    printed = Printed(tmp_path)
    printed.begin(1)
    printed.write("x" * 90)
    printed.write("y" * 90)
    printed.write("z")
    assert printed.read(1, 0) == (b"x" * 90 + b"y" * 10, 100, "only the first 1 GiB of a cell is kept")


def test_a_disk_that_is_full_costs_no_cell_and_its_space_comes_back(tmp_path: Path) -> None:
    printed, before = Printed(tmp_path), psutil.Process().num_fds()
    printed.begin(1)
    with disk_of(3 * IN_MEMORY):
        for _ in range(10):
            assert not list(tmp_path.iterdir()), "a rank that is killed would leave its file"
            printed.write("x" * IN_MEMORY)
        part, nbytes, incomplete = printed.read(1, 0)
        assert incomplete == f"File too large in {tmp_path}"
        assert whole(printed, 1) == "x" * nbytes and len(part) == 2 * IN_MEMORY <= nbytes <= 4 * IN_MEMORY
        assert psutil.Process().num_fds() == before + 1
        for cell in range(2, KEPT + 3):
            printed.begin(cell)
            printed.write(f"{cell}")
    assert psutil.Process().num_fds() == before
    assert whole(printed, KEPT + 2) == f"{KEPT + 2}"


def test_a_folder_that_is_gone_is_said(tmp_path: Path) -> None:
    printed = Printed(tmp_path / "gone")
    printed.begin(1)
    printed.write("x" * (IN_MEMORY + 1))
    printed.write("more")
    assert printed.read(1, 0) == (b"x" * IN_MEMORY, IN_MEMORY, f"No such file or directory in {tmp_path / 'gone'}")


def test_some_of_the_disk_is_left_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    printed = Printed(tmp_path)
    printed.begin(1)
    printed.write("x" * (IN_MEMORY + 1))
    monkeypatch.setattr(module, "SPARE", 1 << 60)
    printed.write("y" * (IN_MEMORY + 1))
    printed.write("more")
    text = "x" * (IN_MEMORY + 1) + "y" * IN_MEMORY
    assert whole(printed, 1) == text
    assert printed.read(1, 0)[1:] == (len(text), "the disk of that host is nearly full")


def test_a_forked_child_writes_nothing_into_it(tmp_path: Path) -> None:
    printed = Printed(tmp_path)
    printed.begin(1)
    printed.write("x" * (IN_MEMORY + 1))
    printed.write("parent ")

    def child() -> None:
        printed.write("c" * 2 * IN_MEMORY)

    forked = multiprocessing.get_context("fork").Process(target=child)
    forked.start()
    forked.join()
    assert forked.exitcode == 0
    printed.write("goes on")
    assert whole(printed, 1) == "x" * (IN_MEMORY + 1) + "parent goes on"


def test_text_that_is_no_unicode_is_kept_as_it_can_be(tmp_path: Path) -> None:
    printed = Printed(tmp_path)
    printed.begin(1)
    printed.write("a\ud800b\n")
    assert whole(printed, 1) == "a\\ud800b\n"
