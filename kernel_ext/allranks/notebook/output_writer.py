"""Writes the output of ranks: text with a label that names its ranks, the rest as IPython displays it."""

from __future__ import annotations

import re
import shutil
import sys
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from IPython.display import display, update_display

from allranks.units import count_text
from allranks_backends.plan import rank_label, rank_list
from allranks_widgets.status import human_bytes

from .finished_bars import bar_line
from .fold import Block
from .safe_text import clean, closed_lines

MimeBundle: TypeAlias = Mapping[str, Any]
"""Output that IPython displays: ``data`` by MIME type, ``metadata``, ``display_id``; see `Block.content`."""

BAR = "\u2502"
PROGRESS = re.compile(r"\b\d{1,3}%\|[^|]*\|")
"""A line of tqdm, or of a progress bar in the same format."""
SGR = re.compile(r"\x1b\[([\d;]*)m")
"""Escape sequences that set the colours and weight of letters in a terminal."""
NARROWEST = 20
"""Minimum width, in characters, that a terminal must have beside the label for lines to be wrapped."""
LONG = 60
"""Length, in characters, above which a line may be too long for a page."""
# JupyterLab shows text in a `pre`, and breaks lines within words.
# Browsers that do not know `each-line` wrap lines below their labels.
HANGING = """<style>@supports (text-indent: 1em each-line) {{
.jp-OutputArea:has(.allranks-gutter-{width}) .jp-RenderedText pre {{
  padding-left: {width}ch; text-indent: -{width}ch each-line; word-break: normal; overflow-wrap: anywhere }}
}}
.jp-OutputArea-child:has(> * > .allranks-gutter-{width}) {{ display: none }}
</style><i class="allranks-gutter-{width}" hidden></i>"""
WIDGET_AS_TEXT = "(a rank's widget, shown as text)"
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


class Display:
    """A display with an id: the one kind of output that can change after it was shown."""

    def __init__(self, ranks: tuple[int, ...], ids: Mapping[int, str], bundle: MimeBundle, owner: object) -> None:
        self.ranks = ranks
        self.ids = ids
        """By rank, the id that the rank uses for the display."""
        self.bundle = bundle
        self.owner = owner
        """The object that shows the display, and can show it again."""
        self.id = f"allranks-{uuid.uuid4().hex}"
        """Unique in the notebook, unlike the ranks' own ids."""

    @property
    def has_titles(self) -> bool:
        """Whether the display itself shows which ranks it belongs to."""
        return False

    def leave(self, ranks: Collection[int]) -> None:
        """Remove `ranks` from the display."""
        self.ranks = tuple(rank for rank in self.ranks if rank not in ranks)


class Writer:
    """Writes output, with a label where the ranks or the stream change and blanks before all other lines."""

    def __init__(self, ranks: Sequence[int], *, live: bool = False, has_page: bool = False) -> None:
        """`live`: in a notebook, which shows stderr on red, so that notes and progress bars go to stdout.

        `has_page`: on a page, on which the rows of a wrapped line can stay to the right of its label.
        """
        self._live = live
        self._has_page, self._has_long_lines, self._hangs = has_page, False, False
        self._terminal = 0 if live or not sys.stdout.isatty() else shutil.get_terminal_size().columns
        """The terminal's width in characters; 0 if output does not go to a terminal."""
        last = max(ranks, default=0)
        span = f"ranks {last}-{last}" if len(ranks) > 1 else f"rank {last}"
        self._width = max(len(span), len(rank_label(tuple(ranks))))
        self._prefixes: dict[tuple[int, ...], tuple[str, str]] = {}
        self._last: tuple[tuple[int, ...], str] | None = None

    def start_over(self) -> None:
        """Forget the last line, since the output was cleared."""
        self._last = None
        self._hangs = False

    def write(self, items: Iterable[Block | Display]) -> None:
        """Write all items in order, with as few writes as possible."""
        stream, texts = "stdout", list[str]()
        for item in items:
            to, text = self._as_text(item)
            if to != stream:
                _flush(stream, texts)
                stream = to
            texts.append(text)
            if _is_rich(item):
                _flush(stream, texts)
                self._display(item)
        _flush(stream, texts)
        if self._has_long_lines and not self._hangs:
            self._hangs = True
            display({"text/html": HANGING.format(width=self._width + 3)}, raw=True)  # type: ignore[no-untyped-call]

    def _as_text(self, item: Block | Display) -> tuple[str, str]:
        """Stream and text of an item: all of a plain item, or the label above a rich item."""
        if _is_rich(item):
            self._last = None
            within = isinstance(item, Display) and (not item.ranks or item.has_titles or is_plain(item.bundle))
            return "stdout", "" if within else self.prefix(item.ranks)[0].rstrip() + "\n"
        assert isinstance(item, Block)
        text = as_text(item)
        if item.kind == "error" and self._live:
            text = SGR.sub(_on_red, text)
        stream = "stderr" if item.kind == "error" else self._stream(item.stream, text)
        if not text:
            return stream, ""
        first = self._last != (item.ranks, stream)
        self._last = item.ranks, stream
        return stream, self.labelled(item.ranks, text, first)

    def _stream(self, stream: str, text: str) -> str:
        if self._live and stream == "stderr" and all(map(PROGRESS.search, text.splitlines())):
            return "stdout"
        return ("stdout" if self._live else "stderr") if stream == "note" else stream

    def update(self, item: Display) -> None:
        """Update a display in place."""
        metadata = item.bundle.get("metadata") or {}
        update_display(self._data(item), display_id=item.id, metadata=metadata, raw=True)  # type: ignore[no-untyped-call]

    def _display(self, item: Block | Display) -> None:
        bundle, name = (item.content, None) if isinstance(item, Block) else (item.bundle, item.id)
        metadata = bundle.get("metadata") or {}
        display(self._data(item), metadata=metadata, raw=True, display_id=name)  # type: ignore[no-untyped-call]

    def _data(self, item: Block | Display) -> dict[str, object]:
        """The data to show. Plain text includes its label, so that it stays aligned when it is updated."""
        bundle = item.content if isinstance(item, Block) else item.bundle
        data = showable(bundle["data"])
        if is_plain(bundle):
            return {"text/plain": self.labelled(item.ranks, data["text/plain"]).removesuffix("\n")}
        return data

    def labelled(self, ranks: tuple[int, ...], text: str, first: bool = True) -> str:
        """``text`` with the label in front of its first line if ``first``, and blanks in front of the others."""
        text = closed_lines(clean(text.removesuffix("\n")))
        label, blanks = self.prefix(ranks)
        if self._has_page and not self._has_long_lines:
            self._has_long_lines = max(map(len, text.split("\n"))) > LONG
        if self._terminal:
            room = self._terminal - len(blanks)
            text = "\n".join([_wrapped(line, room) for line in text.split("\n")])
        body = text.replace("\n", "\n" + blanks) if "\n" in text else text
        return f"{label if first else blanks}{body}\n"

    def prefix(self, ranks: tuple[int, ...]) -> tuple[str, str]:
        """The label of ``ranks`` with the bar, and blanks of the same width with the bar.

        A label too long for the bar's column is shortened to ``0-1, 3``, and if necessary to ``0-1,3``.
        """
        if ranks not in self._prefixes:
            listed = rank_list(ranks)
            labels = (rank_label(ranks), listed, listed.replace(" ", ""))
            label = next((each for each in labels if len(each) <= self._width), labels[-1]).ljust(self._width)
            self._prefixes[ranks] = f"{label} {BAR} ", f"{' ' * len(label)} {BAR} "
        return self._prefixes[ranks]


def is_plain(bundle: MimeBundle) -> bool:
    """Whether ``bundle`` has only text to show."""
    return showable(bundle["data"]).keys() == {"text/plain"}


def settled(bundle: MimeBundle, has_widget: Callable[[str], bool]) -> MimeBundle:
    """Return ``bundle`` with a widget's view only if the page has its model; text stays, since notebooks save it."""
    data = dict(bundle["data"])
    view = data.get(WIDGET_VIEW)
    if view is None:
        return bundle
    if "text/plain" in data:
        data["text/plain"] = f"{data['text/plain']}\n{WIDGET_AS_TEXT}"
    if not has_widget(str(view.get("model_id"))):
        del data[WIDGET_VIEW]
    return {**bundle, "data": data}


def showable(data: Mapping[str, object]) -> dict[str, Any]:
    """Return ``data`` with its text made safe; if it is empty, a placeholder."""
    kept = dict(data)
    if "text/plain" in kept:
        kept["text/plain"] = clean(str(kept["text/plain"]))
    return kept or {"text/plain": "(output that cannot be shown from a rank)"}


def _on_red(sgr: re.Match[str]) -> str:
    """Remove letter colours from an escape sequence: IPython's green and red are illegible on JupyterLab's red.

    Names of errors, which are red, become bold. Letters with a background colour of their own keep their colours.
    """
    codes, kept = sgr[1].split(";"), list[str]()
    if any(code.startswith("4") and len(code) > 1 for code in codes) and "38" not in codes:
        return sgr[0]
    while codes:
        code = codes.pop(0)
        if code == "38":  # a palette number follows, or red, green and blue
            del codes[: 2 if codes[:1] == ["5"] else 4]
        elif code in ("31", "91"):
            kept.append("1")
        elif code == "39":
            kept.append("22")
        elif not (len(code) == 2 and code[0] in "39"):
            kept.append(code)
    return f"\x1b[{';'.join(kept)}m" if kept else ""


def _is_rich(item: Block | Display) -> bool:
    """Whether the item goes to IPython's display; all other items are written as text."""
    return isinstance(item, Display) or (item.kind in ("display", "result") and not is_plain(item.content))


def _wrapped(line: str, room: int) -> str:
    """Break `line` into rows of `room` characters, unless `room` is small or a character may be wider than a column."""
    if room < NARROWEST or not (line.isascii() and line.isprintable()):
        return line
    return "\n".join(line[at : at + room] for at in range(0, len(line), room))


def as_text(block: Block) -> str:
    match block.kind:
        case "text":
            return str(block.content)
        case "bar":
            return bar_line(block.content)
        case "error":
            error = block.content
            return "\n".join(error["traceback"]) or f"{error['ename']}: {error['evalue']}"
        case "cut":
            lines, size = block.content["lines"], human_bytes(block.content["bytes"])
            if not lines:  # part of one line, or figures
                return f"… {size} of text or figures not shown here: %distributed output has the text"
            return f"… {count_text(lines, 'line')} ({size}) not shown here: %distributed output has them"
        case _:
            return str(showable(block.content["data"])["text/plain"])


def _flush(stream: str, texts: list[str]) -> None:
    if any(texts):
        out = getattr(sys, stream)
        out.write("".join(texts))
        out.flush()  # stdout and stderr are separate streams; this keeps them in order
    texts.clear()
