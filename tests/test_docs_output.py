"""Output in README and docs has its labels as cells print them: one column, padded, shortened where too narrow."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from allranks.notebook.output_writer import BAR, Writer

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^( *)```.*?\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
LABEL = re.compile(rf"(?:ranks? )?(?P<ranks>[\d, -]*) *{BAR}")


def ranks_of(label: str) -> tuple[int, ...]:
    """Of ``0-1, 3``."""
    spans = re.findall(r"(\d+)(?:-(\d+))?", label)
    return tuple(rank for first, last in spans for rank in range(int(first), int(last or first) + 1))


def wrong(block: str) -> Iterator[tuple[str, str]]:
    """Lines whose label is not the one that a cell on all ranks prints, each with the label that it should have."""
    lines = [(line, ranks_of(found["ranks"])) for line in block.splitlines() if (found := LABEL.match(line))]
    last = max((rank for _, ranks in lines for rank in ranks), default=0)
    everywhere = Writer(range(max(last + 1, 2)))
    writer, before = everywhere, tuple[int, ...]()
    for line, ranks in lines:
        # The debugger has the gutter of its one rank.
        alone = Writer(ranks) if len(ranks) == 1 and "debug -r" in block else None
        if ranks:
            writer = alone if alone and line.startswith(alone.prefix(ranks)[0].rstrip()) else everywhere
        before = ranks or before
        label = writer.prefix(before)[0 if ranks else 1]
        if not line.startswith(label.rstrip()) or line[: len(label)].rstrip() != label.rstrip():
            yield line, label


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_labels_stand_as_they_are_printed(page: Path) -> None:
    found = [each for _, block in BLOCK.findall(page.read_text("utf-8")) for each in wrong(block)]
    assert not found, "\n".join(f"{line}\nbegins with\n{label}" for line, label in found)


def test_a_label_out_of_its_column_is_found() -> None:
    right = "ranks 0-3 │ a\n0, 2-3    │ b\n          │ c\nrank 1    │ d\n"
    assert not list(wrong(right))
    for printed, label in (
        ("0, 2-3    │", "ranks 0, 2-3 │"),
        ("          │", "             │"),
        ("rank 1    │", "rank 1 │"),
    ):
        (found,) = wrong(right.replace(printed, label))
        assert found[1] == f"{printed} "
    assert not list(wrong("%distributed debug -r 2\nrank 2 │ a\n       │ b\nrank 2    │ c\n          │ d\n"))


def test_there_is_output_with_labels() -> None:
    """Else the first test holds of nothing."""
    assert sum(len(LABEL.findall(page.read_text("utf-8"))) for page in PAGES) > 50
