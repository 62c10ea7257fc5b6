"""Writes what ranks put out: text with the label of its ranks before every line, the rest as IPython displays it."""

from __future__ import annotations

import re
import shutil
import sys
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from IPython.display import display, update_display

from allranks.units import count_text
from allranks_backends.plan import rank_label, rank_list
from allranks_widgets.status import human_bytes

from .fold import Block
from .terminal import clean, closed_lines

BAR = "\u2502"
PROGRESS = re.compile(r"\b\d{1,3}%\|[^|]*\|")
"""A line of tqdm, and of those that write like it."""
SGR = re.compile(r"\x1b\[([\d;]*)m")
"""Colours and weight of letters, as terminals read them."""
NARROWEST = 20
"""Characters of a line that a terminal must have room for beside its label."""
LONG = 60
"""Characters of a line from which on a page may be too narrow for it."""
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

    def __init__(
        self, ranks: tuple[int, ...], ids: Mapping[int, str], bundle: Mapping[str, Any], owner: object
    ) -> None:
        self.ranks = ranks
        self.ids = ids
        """The id that each rank uses."""
        self.bundle = bundle
        self.owner = owner
        """Who shows it, and can show it again."""
        self.id = f"allranks-{uuid.uuid4().hex}"
        """Unique in the notebook, which the ranks' own ids are not."""

    @property
    def has_titles(self) -> bool:
        """Whether it names its ranks itself."""
        return False

    def leave(self, ranks: Collection[int]) -> None:
        """`ranks` no longer share in it."""
        self.ranks = tuple(rank for rank in self.ranks if rank not in ranks)


class Writer:
    """Remembers the line written last, so that a label is written where it changes and blanks where it does not."""

    def __init__(self, ranks: Sequence[int], *, live: bool = False, has_page: bool = False) -> None:
        """`live` in a notebook, which shows stderr on red: notes and progress bars go to stdout there.

        `has_page` if that is a page, on which a line that is wrapped can stay to the right of its label.
        """
        self._live = live
        self._has_page, self._has_long_lines, self._hangs = has_page, False, False
        self._terminal = 0 if live or not sys.stdout.isatty() else shutil.get_terminal_size().columns
        """Characters that fit beside each other; 0 if that is not known."""
        last = max(ranks, default=0)
        span = f"ranks {last}-{last}" if len(ranks) > 1 else f"rank {last}"
        self._width = max(len(span), len(rank_label(tuple(ranks))))
        self._prefixes: dict[tuple[int, ...], tuple[str, str]] = {}
        self._last: tuple[tuple[int, ...], str] | None = None

    def start_over(self) -> None:
        """The output was cleared."""
        self._last = None
        self._hangs = False

    def write(self, items: Iterable[Block | Display]) -> None:
        """Everything in order, with as few writes as that allows."""
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
        """Stream and text: all there is of plain items, of the others the label above them."""
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
        """Change a display that was written before, where it stands."""
        metadata = item.bundle.get("metadata") or {}
        update_display(self._data(item), display_id=item.id, metadata=metadata, raw=True)  # type: ignore[no-untyped-call]

    def _display(self, item: Block | Display) -> None:
        bundle, name = (item.content, None) if isinstance(item, Block) else (item.bundle, item.id)
        metadata = bundle.get("metadata") or {}
        display(self._data(item), metadata=metadata, raw=True, display_id=name)  # type: ignore[no-untyped-call]

    def _data(self, item: Block | Display) -> dict[str, Any]:
        """What to show. Text alone carries its label within, so that it stays in column when it is updated."""
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

        A label that would move the bar is shorter, ``0-1, 3``, as long as that is enough.
        """
        if ranks not in self._prefixes:
            listed = rank_list(ranks)
            labels = (rank_label(ranks), listed, listed.replace(" ", ""))
            label = next((each for each in labels if len(each) <= self._width), labels[-1]).ljust(self._width)
            self._prefixes[ranks] = f"{label} {BAR} ", f"{' ' * len(label)} {BAR} "
        return self._prefixes[ranks]


def is_plain(bundle: Mapping[str, Any]) -> bool:
    """There is nothing but text to show of ``bundle``."""
    return showable(bundle["data"]).keys() == {"text/plain"}


def settled(bundle: Mapping[str, Any], has_widget: Callable[[str], bool]) -> Mapping[str, Any]:
    """``bundle`` with a widget's view only where the page has its model, and always with its text: that is saved."""
    data = dict(bundle["data"])
    view = data.get(WIDGET_VIEW)
    if view is None:
        return bundle
    if "text/plain" in data:
        data["text/plain"] = f"{data['text/plain']}\n{WIDGET_AS_TEXT}"
    if not has_widget(str(view.get("model_id"))):
        del data[WIDGET_VIEW]
    return {**bundle, "data": data}


def showable(data: Mapping[str, Any]) -> dict[str, Any]:
    """``data`` with its text made safe."""
    kept = dict(data)
    if "text/plain" in kept:
        kept["text/plain"] = clean(str(kept["text/plain"]))
    return kept or {"text/plain": "(output that cannot be shown from a rank)"}


def _on_red(sgr: re.Match[str]) -> str:
    """A change of colours without those of letters: IPython's green and red cannot be read on JupyterLab's red ground.

    The names of errors, which are red, are bold. Letters with a ground of their own keep their colours.
    """
    codes, kept = sgr[1].split(";"), list[str]()
    if any(code.startswith("4") and len(code) > 1 for code in codes) and "38" not in codes:
        return sgr[0]
    while codes:
        code = codes.pop(0)
        if code == "38":  # a number follows, or three
            del codes[: 2 if codes[:1] == ["5"] else 4]
        elif code in ("31", "91"):
            kept.append("1")
        elif code == "39":
            kept.append("22")
        elif not (len(code) == 2 and code[0] in "39"):
            kept.append(code)
    return f"\x1b[{';'.join(kept)}m" if kept else ""


def _is_rich(item: Block | Display) -> bool:
    """It goes to IPython's display; everything else is written as text."""
    return isinstance(item, Display) or (item.kind in ("display", "result") and not is_plain(item.content))


def _wrapped(line: str, room: int) -> str:
    """`line` in rows of `room` characters, where each of them is known to be one wide."""
    if room < NARROWEST or not (line.isascii() and line.isprintable()):
        return line
    return "\n".join(line[at : at + room] for at in range(0, len(line), room))


def as_text(block: Block) -> str:
    match block.kind:
        case "text":
            return str(block.content)
        case "error":
            error = block.content
            return "\n".join(error["traceback"]) or f"{error['ename']}: {error['evalue']}"
        case "cut":
            lines, size = block.content["lines"], human_bytes(block.content["bytes"])
            if not lines:  # all of one line, or figures
                return f"… {size} of text or figures not shown here: %distributed output has the text"
            return f"… {count_text(lines, 'line')} ({size}) not shown here: %distributed output has them"
        case _:
            return str(showable(block.content["data"])["text/plain"])


def _flush(stream: str, texts: list[str]) -> None:
    if any(texts):
        out = getattr(sys, stream)
        out.write("".join(texts))
        out.flush()  # stdout and stderr travel apart: this keeps them in order
    texts.clear()
