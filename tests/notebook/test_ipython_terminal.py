"""allranks in a real terminal: IPython and `jupyter console`, on a pseudo terminal."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.needs import need

if TYPE_CHECKING:
    import pexpect

WITHIN = 120.0
COLUMNS = 80
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b[=>]|\x1b\][^\x07]*\x07")
TAB = "\t"
ENDS = "\r\r\r"
"""Ends a cell magic of several lines: two empty lines."""


class Terminal:
    """A program on a pseudo terminal of `COLUMNS` columns."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        import pexpect

        env = {**os.environ, "IPYTHONDIR": str(folder), "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"}
        self.process: pexpect.spawn[str] = pexpect.spawn(
            sys.executable, ["-m", *arguments], encoding="utf-8", dimensions=(40, COLUMNS), env=env, timeout=WITHIN
        )
        self.text = ""
        """What was shown so far, without colours and movements of the cursor."""

    def shows(self, wanted: str, since: int = 0) -> str:
        """Wait until it shows what matches `wanted`, in the text from position `since`; return this text."""
        import pexpect

        raw, deadline = "", time.monotonic() + WITHIN
        while not re.search(wanted, self.text[since:]):
            assert time.monotonic() < deadline, f"{wanted!r} was not shown:\n{self.text[since:]}"
            try:
                raw += self.process.read_nonblocking(65536, timeout=5)
            except pexpect.TIMEOUT:
                continue
            whole = raw.rfind("\x1b") if re.search(r"\x1b[^a-zA-Z]*\Z", raw) else len(raw)
            self.text += ESCAPES.sub("", raw[:whole]).replace("\r", "")
            raw = raw[whole:]
        return self.text[since:]

    def types(self, keys: str) -> int:
        """Type these keys; return the position from which the text shows their effect."""
        self.process.send(keys)
        return len(self.text)

    def runs(self, code: str, wanted: str) -> str:
        """Run a cell and wait until it shows `wanted`."""
        return self.shows(wanted, self.types(code + "\r"))

    def close(self) -> None:
        self.process.close(force=True)


@pytest.fixture
def ipython(tmp_path: Path) -> Iterator[Terminal]:
    need(importlib.util.find_spec("pexpect"), "pexpect is not installed")
    options = ["--no-banner", "--no-confirm-exit", "--TerminalInteractiveShell.display_completions=readlinelike"]
    terminal = Terminal(tmp_path, "IPython", *options, "--TerminalInteractiveShell.autosuggestions_provider=None")
    try:
        terminal.shows(r"In \[1\]: ")
        yield terminal
        terminal.runs("%distributed down", "ranks ended|no cluster|No cluster")
    finally:
        terminal.close()


@pytest.mark.slow
def test_a_terminal_shows_labels_beside_wrapped_lines_completes_verbs_and_says_what_it_lacks(ipython: Terminal) -> None:
    ipython.runs("%load_ext allranks", r"In \[2\]: ")
    offered = ipython.shows("interrupt", ipython.types("%distributed " + TAB))
    assert "status" in offered and "bench" in offered and not re.search(r"\b(and|elif|lambda)\b", offered)
    ipython.types("\x15")  # Ctrl-U: an empty line again
    ipython.runs("%distributed up -n 2", r"2 ranks · ring · ready[\s\S]*In \[3\]: ")

    cell = "%%distributed\r" + "print('from rank', rank); print('word ' * 40 if rank else 'short')" + ENDS
    shown = ipython.shows(r"In \[4\]: ", ipython.types(cell))
    lines = [line.rstrip() for line in shown.splitlines()]
    assert "rank 0    │ from rank 0" in lines and "rank 1    │ from rank 1" in lines and "rank 0    │ short" in lines
    first = next(number for number, line in enumerate(lines) if line.startswith("rank 1    │ word word"))
    wrapped = lines[first : first + 3]
    assert [line[:12] for line in wrapped] == ["rank 1    │ ", "          │ ", "          │ "]
    assert all(len(line) <= COLUMNS for line in wrapped)

    shown = ipython.runs("%distributed watch", r"In \[5\]: ")
    assert "2 ranks · ring · ready" in shown and "%distributed status" in shown and "live" in shown


@pytest.mark.slow
def test_ctrl_c_in_a_terminal_ends_a_hang_and_the_next_cell_runs(ipython: Terminal) -> None:
    ipython.runs("%load_ext allranks", r"In \[2\]: ")
    ipython.runs("%distributed up -n 2 --backend ring", r"2 ranks · ring · ready[\s\S]*In \[3\]: ")
    waits = "import time; time.sleep(600 * rank); mx.eval(mx.distributed.all_sum(mx.ones(3)))"
    begun = ipython.types("%%distributed\r" + waits + ENDS)
    ipython.shows(r"rank 1 has not entered", begun)
    shown = ipython.shows(r"In \[4\]: ", ipython.types("\x03"))
    assert "KeyboardInterrupt" in shown and "--kill" not in shown
    shown = ipython.shows(r"In \[5\]: ", ipython.types("%%distributed\rprint('again', rank)" + ENDS))
    assert "rank 0    │ again 0" in shown and "rank 1    │ again 1" in shown


@pytest.mark.slow
def test_jupyter_console_is_a_terminal_as_well(tmp_path: Path) -> None:
    need(importlib.util.find_spec("pexpect"), "pexpect is not installed")
    need(importlib.util.find_spec("jupyter_console"), "jupyter console is not installed (pip install -e '.[test]')")
    terminal = Terminal(tmp_path, "jupyter_console", "--ZMQTerminalInteractiveShell.banner=''")
    try:
        terminal.shows(r"In \[1\]: ")
        terminal.runs("%load_ext allranks", r"In \[2\]: ")
        terminal.runs("%distributed up -n 2", r"2 ranks · ring · ready[\s\S]*In \[3\]: ")
        cell = "%%distributed\rprint('from rank', rank)" + ENDS
        shown = terminal.shows(r"In \[4\]: ", terminal.types(cell))
        assert "rank 0    │ from rank 0" in shown and "rank 1    │ from rank 1" in shown
        terminal.runs("%distributed down", "2 ranks ended")
    finally:
        terminal.close()
