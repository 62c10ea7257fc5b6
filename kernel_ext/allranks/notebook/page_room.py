"""What a page bears of a cell's text. The rest is counted, and its last lines are shown until the cell ends.

A page of 100,000 lines takes the browser minutes to lay out, and a gigabyte. Nothing is lost: the text is in the cell's
result, and `%distributed output` shows, searches and saves it.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable
from itertools import count
from typing import NamedTuple

from allranks_widgets.status import human_bytes

from .fold import Block

LINES = 2000
NBYTES = 1_000_000
"""What is shown of one cell."""
LAST = 10
"""Lines shown of those that are left out: the last. At least one of each rank."""
LONGEST = 500
"""Characters of such a line."""


class _Line(NamedTuple):
    """A line that is left out."""

    number: int
    ranks: tuple[int, ...]
    text: str


class PageRoom:
    """The room that is left on the page for one cell's text. For one thread."""

    def __init__(self) -> None:
        self._lines, self._nbytes = LINES, NBYTES
        self._full = False
        self._lines_left_out, self._bytes_left_out = Counter[int](), Counter[int]()
        """What is not on the page, and was not concluded, by rank."""
        self._last = defaultdict[int, deque[_Line]](lambda: deque(maxlen=LAST))
        """The last lines of each rank."""
        self._numbers = count()

    def take(self, block: Block) -> Block | None:
        """What of a block of text goes on the page; None where nothing does."""
        if block.kind == "cut":
            if not self._full:
                return block
            self._leave_out(block.ranks, "", block.content["lines"], block.content["bytes"])
            return None
        text: str = block.content
        count = text.count("\n") or 1
        if not self._full and count <= self._lines and len(text) <= self._nbytes:
            self._lines, self._nbytes = self._lines - count, self._nbytes - len(text)
            return block
        end = 0 if self._full else self._fitting(text)
        self._full = True
        self._leave_out(block.ranks, text[end:], text.count("\n", end), len(text) - end)
        return block._replace(content=text[:end]) if end else None

    def _fitting(self, text: str) -> int:
        """Where the last line ends for which there is room."""
        end = 0
        for _ in range(self._lines):
            newline = text.find("\n", end)
            if newline < 0 or newline >= self._nbytes:
                break
            end = newline + 1
        return end

    def _leave_out(self, ranks: tuple[int, ...], text: str, lines: int, nbytes: int) -> None:
        for rank in ranks:
            self._lines_left_out[rank] += lines
            self._bytes_left_out[rank] += nbytes
        if text:
            ends = text.removesuffix("\n").rsplit("\n", LAST)[-LAST:]
            last = [_Line(next(self._numbers), ranks, line[:LONGEST]) for line in ends]
            for rank in ranks:
                self._last[rank].extend(last)

    def freed(self, blocks: Iterable[Block]) -> None:
        """These blocks are on the page no more."""
        for block in blocks:
            if block.kind == "text":
                self._lines += block.content.count("\n") or 1
                self._nbytes += len(block.content)
                self._full = False

    def conclude(self) -> list[Block]:
        """What is to stand where the text was left out; from here on it is counted afresh."""
        said = self.said(ended=True)
        self._lines_left_out.clear()
        self._bytes_left_out.clear()
        self._last.clear()
        return said

    def said(self, *, ended: bool = False) -> list[Block]:
        """How much is left out, and its last lines."""
        if not self._bytes_left_out:
            return []
        ranks, most = tuple(sorted(self._bytes_left_out)), max(max(self._lines_left_out.values()), 1)
        equal = len(set(self._lines_left_out.values())) == 1
        lines = f"{'' if equal else 'up to '}{most:,} more {'line' if most == 1 else 'lines'}"
        size = human_bytes(max(self._bytes_left_out.values()))
        it = "it" if len(ranks) == most == 1 else "them"
        how = f": %distributed output shows {it}, --find TEXT searches, --save FILE keeps {it}." if ended else " so far."
        of = " of each rank" if len(ranks) > 1 else ""
        last = (Block("text", line.ranks, f"{line.text}\n") for line in self._last_lines())
        return [Block("text", ranks, f"… {lines} ({size}){of}{how} The last:\n", "note"), *last]

    def _last_lines(self) -> list[_Line]:
        """In the order in which they came; of ranks whose lines differ, fewer of each."""
        for each in (LAST, max(LAST // max(len(self._last), 1), 1)):
            found = {line for lines in self._last.values() for line in list(lines)[-each:]}
            if len(found) <= LAST:
                break
        return sorted(found)
