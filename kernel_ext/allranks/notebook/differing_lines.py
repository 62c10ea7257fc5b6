"""Lines that differ between ranks, on a page: a column for each rank, or line by line, as the reader chooses.

The choice needs no script, so readers of a saved notebook have it too. An untrusted notebook loses the stylesheet: then
only the elements' own styles apply, and the lines are shown as in a terminal.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape
from itertools import groupby, takewhile
from typing import NamedTuple

from allranks_backends.plan import rank_label

from .fold import Block
from .live_lines import PRE_STYLE
from .output_writer import Display
from .safe_text import plain

ROWS = 100
"""Limit for the rows of one display: all of them are sent and drawn again when a line is added."""
LINES = 1000
"""A display with this many lines gets no more rows: where many ranks print, it has fewer."""
WIDEST = 32
"""Maximum width, in characters, to which a long line widens its column."""
_WORD = re.compile(r"[\w.]+|\s+|[^\w\s]")

# CSS cannot indent only the later rows of a wrapped line, so all rows get padding, and the first a negative indent.
# The choice sets properties that the lines inherit: a rule that named the lines themselves after `body:has` would have
# the browser match all elements of the page again after each click. Labels without size stay in the accessibility tree.
# So do positioned and clipped ones, but those make layers, thousands of which slow down clicks and scrolls.
CHOICE = """<style>
.allranks-choice {{ display: block !important; padding: 4px 1ch 0; font: 12px var(--jp-ui-font-family, sans-serif) }}
.allranks-choice label {{ margin-right: 12px }}
.allranks-choice input {{ margin: 0 4px 0 0; vertical-align: -2px }}
.allranks-lines > span {{ display: block; white-space: pre-wrap; word-break: normal; overflow-wrap: anywhere;
  padding: 0 var(--allranks-right, 0) 0 var(--allranks-left, var(--gutter));
  text-indent: var(--allranks-indent, calc(-1 * var(--gutter))); border-left: var(--allranks-edge, none) }}
.allranks-lines > .by-rank {{ display: var(--allranks-by-rank, none) !important }}
.allranks-lines > .stderr {{ background: var(--jp-rendermime-error-background, #fdd) }}
.allranks-lines b {{ font-weight: inherit; font-size: var(--allranks-label, inherit);
  line-height: var(--allranks-label, inherit) }}
.allranks-lines u {{ text-decoration: underline 2px; text-underline-offset: 2px }}
.allranks-lines > .head > b {{ font-weight: 600; font-size: inherit; line-height: inherit }}
body:has(#{key}:checked) .{key} {{ display: grid; overflow-x: auto;
  font-size: calc(0.92 * var(--jp-code-font-size, 1em)) !important; background: {shade} !important;
  --allranks-left: 3ch; --allranks-right: 1ch; --allranks-indent: -2ch; --allranks-by-rank: block;
  --allranks-edge: 1px solid var(--jp-border-color2, #8888); --allranks-label: 0 }}
</style><div class="allranks-choice" style="display:none" role="radiogroup" aria-label="layout of the output">
<label><input type="radio" name="{key}" id="{key}" checked>by rank ({columns} columns)</label>
<label><input type="radio" name="{key}">by line</label></div>"""


# A shadow at the right edge says that there are more columns. The page's colour, which scrolls with the last, hides it.
SHADE = (
    "linear-gradient(to left, var(--jp-layout-color0, Canvas) 40%, transparent) right / 32px 100% no-repeat local, "
    "linear-gradient(to left, #8888, transparent) right / 12px 100% no-repeat scroll"
)


class LayoutChoice(Display):
    """The choice between the layouts, for all lines of a cell. Never updated, so that the reader's choice stays."""

    def __init__(self, columns: int, owner: object) -> None:
        super().__init__((), {}, {}, owner)
        self.bundle = {"data": {"text/html": CHOICE.format(key=self.id, columns=columns, shade=SHADE)}}


class _Printed(NamedTuple):
    ranks: tuple[int, ...]
    stream: str
    text: str


class _Cell(NamedTuple):
    """A line in the columns of neighbouring ranks."""

    column: int
    width: int
    content: str
    """HTML."""
    kind: str
    """The line's stream, or ``head``."""
    hidden: bool
    """Whether it is seen only in the layout by rank."""


class LineColumns(Display):
    """Lines of a cell on `ranks`. Equal lines of several ranks are shown in one row, in all their columns."""

    def __init__(
        self, ranks: Sequence[int], prefix: Callable[[tuple[int, ...]], tuple[str, str]], choice: LayoutChoice
    ) -> None:
        super().__init__(tuple(ranks), {}, {}, choice.owner)
        self.blocks: list[Block] = []
        """The blocks that this display shows."""
        self._prefix, self._key = prefix, choice.id
        self._lines: list[list[_Printed]] = []
        self._ends = dict.fromkeys(ranks, 0)
        """By rank, the row below its last line."""
        self._count = 0
        """The number of lines."""

    @property
    def has_titles(self) -> bool:
        return True

    def add(self, blocks: Iterable[Block]) -> list[Block]:
        """Add the lines that fit; return the rest."""
        before, rest = len(self.blocks), list[Block]()
        for block in blocks:
            at = max(self._ends[rank] for rank in block.ranks)
            most = ROWS if self._count < LINES else len(self._lines)
            fit = block.content.removesuffix("\n").split("\n")[: most - at] if at < most else []
            end = len("\n".join(fit)) + 1 if fit else 0
            if fit:
                self.blocks.append(block._replace(content=block.content[:end]))
                for row, text in enumerate(plain("\n".join(fit)).split("\n"), at):
                    if row == len(self._lines):
                        self._lines.append([])
                    self._lines[row].append(_Printed(block.ranks, block.stream, text))
            self._count += len(fit)
            more = block.content[end:]
            if more:
                rest.append(block._replace(content=more))
            # What these ranks print later must not come before the rest.
            self._ends.update(dict.fromkeys(block.ranks, ROWS if more else at + len(fit)))
        if len(self.blocks) > before:
            self._draw()
        return rest

    def _draw(self) -> None:
        rows = list(self._rows())
        widest = max(len(one.text) for line in self._lines for one in line)
        columns = f"grid-template-columns:repeat({len(self.ranks)},minmax(calc({min(widest, WIDEST) + 2}ch + 2px),1fr))"
        gutter = len(self._prefix(self.ranks)[1])
        style = f"{PRE_STYLE};white-space:pre-wrap;--gutter:{gutter}ch;{columns}"
        heads = [
            _Cell(column, 1, f"<b>{rank_label((rank,))}</b>", "head", hidden=True)
            for column, rank in enumerate(self.ranks)
        ]
        body = "".join(_placed([heads, *[cells for _, cells in rows]], len(self.ranks)))
        self.bundle = {
            "data": {
                "text/html": f'<pre class="allranks-lines {self._key}" style="{style}" tabindex="0">{body}</pre>',
                "text/plain": "\n".join(text for texts, _ in rows for text in texts),
            }
        }

    def _rows(self) -> Iterator[tuple[list[str], list[_Cell]]]:
        """Each row as the text of its lines, with their labels, and as the cells of the grid."""
        before: tuple[int, ...] = ()
        for printed in self._lines:
            printed.sort()
            texts, cells = list[str](), list[_Cell]()
            for (ranks, stream, text), html in zip(printed, marked([text for _, _, text in printed]), strict=True):
                label = self._prefix(ranks)[ranks == before]
                before = ranks
                texts.append(label + text)
                cells += self._cells(ranks, f"<b>{label}</b>{html}", stream)
            yield texts, sorted(cells)

    def _cells(self, ranks: Sequence[int], content: str, kind: str) -> Iterator[_Cell]:
        """The cells of a line in the columns of `ranks`; in the layout by line, only the first of them is seen."""
        columns = enumerate(map(self.ranks.index, ranks))
        for number, (_, group) in enumerate(groupby(columns, lambda pair: pair[1] - pair[0])):
            beside = list(group)
            yield _Cell(beside[0][1], len(beside), content, kind, hidden=number > 0)


def _placed(rows: Iterable[Sequence[_Cell]], columns: int) -> Iterator[str]:
    """The cells as HTML. Cells that follow one another need no place: the page reads thousands of styles slowly."""
    end = columns
    for row in rows:
        if row[0].column:
            row = [_Cell(0, row[0].column, "", "stdout", hidden=True), *row]
        for column, width, content, kind, hidden in row:
            styles = ["display:none"] * hidden
            if column != end % columns or width > 1:
                styles.append(f"grid-column:{column + 1}/span {width}")
            classes = [kind] * (kind != "stdout") + ["by-rank"] * hidden
            named = f' class="{" ".join(classes)}"' if classes else ""
            styled = f' style="{";".join(styles)}"' if styles else ""
            yield f"<span{named}{styled}>{content}\n</span>"
            end = column + width


def marked(texts: Sequence[str]) -> list[str]:
    """Convert texts to HTML. If a text has words in common with the others, the words that differ are underlined."""
    words: list[list[str]] = [_WORD.findall(text) for text in texts]
    head = _alike(words)
    tail = _alike([own[head:][::-1] for own in words])
    in_step = len(set(map(len, words))) == 1
    same = {at for at, column in enumerate(zip(*words, strict=False)) if in_step and len(set(column)) == 1}
    found = []
    for own in words:
        differ = {at for at in range(head, len(own) - tail) if at not in same and not own[at].isspace()}
        if not any(word[0].isalnum() for at, word in enumerate(own) if at not in differ):
            differ.clear()
        found.append("".join(f"<u>{escape(word)}</u>" if at in differ else escape(word) for at, word in enumerate(own)))
    return found


def _alike(words: Sequence[Sequence[str]]) -> int:
    """The number of words at the beginning that are equal in all texts."""
    return sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, zip(*words, strict=False)))
