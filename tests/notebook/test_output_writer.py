"""Text that ranks put out, as the page and the terminal get it."""

from __future__ import annotations

import pytest

from allranks.notebook.fold import Block
from allranks.notebook.output_writer import Writer

TRACEBACK = [
    "\x1b[31mValueError\x1b[39m  Traceback",
    "\x1b[36mCell\x1b[39m \x1b[32mIn[3]\x1b[39m\x1b[32m, line 2\x1b[39m",
    "\x1b[32m----> 2\x1b[39m \x1b[38;5;28;01mraise\x1b[39;00m \x1b[30;43mbad\x1b[39;49m \x1b[38;2;0;136;0m# x\x1b[39m",
]
ERROR = Block("error", (0,), {"ename": "ValueError", "evalue": "bad", "traceback": TRACEBACK})


@pytest.mark.parametrize("live", [True, False], ids=["page", "terminal"])
def test_letters_of_a_traceback_have_no_colours_on_the_pages_red_ground(
    live: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    Writer([0], live=live).write([ERROR])
    said = capsys.readouterr().err
    if not live:
        assert "\x1b[32mIn[3]" in said and "\x1b[38;5;28;01mraise" in said, "a terminal has its own ground"
        return
    assert "\x1b[1mValueError\x1b[22m  Traceback" in said
    assert "\x1b[01mraise\x1b[22;00m \x1b[30;43mbad\x1b[39;49m # x" in said, "what has its own ground keeps it"
    assert not any(colour in said for colour in ("\x1b[32m", "\x1b[36m", "\x1b[31m", "38;"))
