"""Limits how much of a cell's text is shown on the page. The rest is counted, and its last lines are shown.

A page of 100,000 lines takes the browser minutes to lay out, and a gigabyte of memory. `%distributed output` shows,
searches and saves all text that the ranks keep.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable
from itertools import chain, count
from typing import NamedTuple

from allranks.units import count_text
from allranks_widgets.status import human_bytes

from .fold import Block

LINES = 2000
NBYTES = 1_000_000
"""Limits for the text that is shown of one cell: lines, and characters."""
LAST = 10
"""How many of the last omitted lines are shown. The final summary shows at least one line of each rank."""
LONGEST = 500
"""Limit for the characters shown of an omitted line."""


class _Line(NamedTuple):
    """A line that was left out."""

    number: int
    ranks: tuple[int, ...]
    text: str


class PageRoom:
    """The room that is left on the page for one cell's text. Not thread-safe."""

    def __init__(self, lines: int | None = None) -> None:
        self._lines, self._nbytes = LINES if lines is None else lines, NBYTES
        self._full = False
        self._lines_left_out, self._bytes_left_out = Counter[int](), Counter[int]()
        """By rank, the lines and bytes left out since `conclude`; text that was sent here is counted in characters."""
        self._last = defaultdict[int, deque[_Line]](lambda: deque(maxlen=LAST))
        """By rank, the last lines that were left out."""
        self._numbers = count()

    def take(self, block: Block) -> Block | None:
        """The part of the block that is shown; None if none of it is."""
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
        self._lines, self._nbytes = self._lines - text.count("\n", 0, end), self._nbytes - end
        self._leave_out(block.ranks, text[end:], text.count("\n", end), len(text) - end)
        return block._replace(content=text[:end]) if end else None

    def _fitting(self, text: str) -> int:
        """The position after the last line that fits."""
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

    def cleared(self, ranks: Collection[int], blocks: Iterable[Block]) -> None:
        """Make room again, since `ranks` cleared their output: `blocks`, which no other rank has, left the page."""
        for rank in ranks:
            for of_rank in (self._lines_left_out, self._bytes_left_out, self._last):
                of_rank.pop(rank, None)
        for lines in self._last.values():
            left = [(line, tuple(rank for rank in line.ranks if rank not in ranks)) for line in lines]
            lines.clear()
            lines.extend(line._replace(ranks=others) for line, others in left if others)
        texts: list[str] = [block.content for block in blocks if block.is_printed and block.kind == "text"]
        self._lines += sum(text.count("\n") or 1 for text in texts)
        self._nbytes += sum(map(len, texts))
        self._full = self._full and bool(self._bytes_left_out) and not texts

    def conclude(self) -> list[Block]:
        """Return the final summary, at the end of the cell or before an error, and restart the count."""
        summary = self.summary(ended=True)
        self._lines_left_out.clear()
        self._bytes_left_out.clear()
        self._last.clear()
        return summary

    @property
    def leaves_out(self) -> bool:
        """Whether text was left out since the last `conclude`."""
        return bool(self._bytes_left_out)

    def summary(self, *, ended: bool = False) -> list[Block]:
        """How much was left out, and the last of the omitted lines."""
        if not self.leaves_out:
            return []
        ranks = tuple(sorted(self._bytes_left_out))
        counts = [max(lines, 1) for lines in self._lines_left_out.values()]  # an unfinished line counts, too
        least, most = min(counts), max(counts)
        lines = f"{f'{least:,} to ' if least < most else ''}{count_text(most, 'line')}"
        of = " of each rank" if len(ranks) > 1 else ""
        size = f"{'up to ' * (least < most)}{human_bytes(max(self._bytes_left_out.values()))}"
        it = "it" if len(ranks) == most == 1 else "them"
        are = "is" if most == 1 else "are"
        to_see = f"%distributed output shows {it}, --find TEXT searches {it}, --save FILE writes {it} to a file."
        how = f"{are} not shown: {to_see}" if ended else f"{are} not shown so far."
        shown = self._last_of_each() if ended else sorted({*chain(*self._last.values())})[-LAST:]
        last = [Block("text", line.ranks, f"{line.text}\n", own=True) for line in shown]
        how += " The last:" if last else ""  # there are none if the ranks themselves cut all omitted lines
        return [Block("text", ranks, f"… {lines}{of} ({size}) {how}\n", "note"), *last]

    def _last_of_each(self) -> list[_Line]:
        """The last omitted lines in order of arrival; fewer of each rank if ranks have different lines."""
        for each in (LAST, max(LAST // max(len(self._last), 1), 1)):
            found = {line for lines in self._last.values() for line in list(lines)[-each:]}
            if len(found) <= LAST:
                break
        return sorted(found)
