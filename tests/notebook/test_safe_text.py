"""Remote text made safe: colours pass, nothing else that steers a terminal or a notebook does."""

from __future__ import annotations

import pytest

from allranks.notebook.safe_text import clean, closed_lines, plain
from tests.growth import growth


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "\x1b[31mred\x1b[0m"),
        ("\x1b[2J\x1b[1;1Hgone\x1b[?25l", "gone"),
        ("\x1b]0;title\x07x\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\", "xlink"),
        ("\x1b]52;c;Y2xpcA==\x07clip", "clip"),
        ("\x1b]52;never closed\nnext", "52;never closed\nnext"),
        ("\x1bP1$r\x1b\\x\x1bc\x1b(0y", "xy"),
        ("\x9b31mx\x9d0;t\x9cy\x85", "31mx0;ty"),
        ("a\x07b\x00c\x08d\x0be\tf", "abcde\tf"),
        ("\x1b", ""),
        ("\x1b\x00[2Jx", "[2Jx"),
        ("10%\r50%\r100%\n", "100%\n"),
        ("done\r\nnext\r", "done\nnext"),
    ],
)
def test_only_colours_pass(raw: str, shown: str) -> None:
    assert clean(raw) == shown
    assert "\x1b" not in plain(raw)


@pytest.mark.parametrize(("head", "repeated"), [("", "\x1b]"), ("", "\r"), ("", "\x1b["), ("a\r", "b"), ("\x1b]", "x")])
def test_hostile_text_costs_no_more_than_its_length(head: str, repeated: str) -> None:
    assert growth(lambda number: clean(head + repeated * number), 50_000) < 11


def test_every_line_ends_the_colours_it_opened() -> None:
    assert closed_lines("\x1b[31ma\nb\x1b[0m\nc") == "\x1b[31ma\x1b[0m\n\x1b[31mb\x1b[0m\nc"
    assert closed_lines("\x1b[1mopen") == "\x1b[1mopen\x1b[0m"
    assert closed_lines("a\nb") == "a\nb"
