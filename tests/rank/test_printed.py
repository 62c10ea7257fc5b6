"""All that the last cells printed is kept on the rank, in memory or in a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from allranks.rank.cell import printed as module
from allranks.rank.cell.output_buffer import OutputBuffer
from allranks.rank.cell.printed import KEPT, Printed


def whole(printed: Printed, cell: int) -> str:
    text, nbytes = b"", 1
    while len(text) < nbytes:
        part, nbytes, _ = printed.read(cell, len(text))
        text += part
    return text.decode()


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
    assert whole(printed, 0) == whole(printed, 7)
    assert len(list(tmp_path.iterdir())) == (count > 1000)


def test_a_few_cells_are_kept(tmp_path: Path) -> None:
    printed = Printed(tmp_path)
    printed.write("before any cell")
    for cell in range(1, KEPT + 3):
        printed.begin(cell)
        printed.write(f"{cell}" * (module.IN_MEMORY + 1))
    assert len(list(tmp_path.iterdir())) == KEPT
    assert whole(printed, KEPT + 2).startswith(f"{KEPT + 2}")
    with pytest.raises(LookupError, match="no longer kept"):
        printed.read(1, 0)


def test_a_text_without_end_is_bounded_and_a_full_disk_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 100)
    printed = Printed(tmp_path)
    printed.begin(1)
    printed.write("x" * 90)
    printed.write("y" * 90)
    assert printed.read(1, 0) == (b"x" * 90, 90, "a gigabyte is kept of one cell")
    monkeypatch.setattr(module, "MOST", 1 << 20)
    printed = Printed(tmp_path / "gone")
    printed.begin(1)
    printed.write("x" * (module.IN_MEMORY + 1))
    printed.write("more")
    assert printed.read(1, 0) == (b"", 0, "No such file or directory")
