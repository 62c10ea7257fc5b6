"""The text and displays of a cell on this rank, in order and of limited size; all cut output is counted.

Text is kept as prints: a print is everything up to a write that ends a line. So a printed matrix stays together, and
equal prints can be folded across ranks. The first `limit` bytes (UTF-8) of a cell are kept, then the last `tail`
bytes. Text in between is counted in a ``("cut", {"lines", "bytes"})`` item: nothing is dropped uncounted.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from allranks.messages.events import BundleKind, CellError, Cut, OverwrittenLine, Stream

from .unfinished_line import Unfinished
from .whole_output import Printed

Item = tuple[Any, ...]

LIMIT = 4_000_000
"""Bytes of text kept from the start of a cell's output on one rank."""
TAIL = 64_000
"""Bytes of text kept from the end of a cell's output."""
LIVE_AFTER = 0.2
"""Seconds before an unfinished line is shown: the next write finishes most lines."""
PIECES = 8
"""Number of pieces in which the tail of an endless line is kept; each new piece replaces the oldest."""
WAITING = 10_000
"""Number of queued writes above which the queue is emptied at once."""
AT_ONCE = 1 << 20
"""Number of characters above which text goes to `Printed` without waiting for the agent."""
LARGE = 1000
"""Length, in characters, above which a write is processed at once."""
CURSOR = re.compile(r"\x1b\[\?25[hl]")
"""Shows or hides the cursor: rich writes it after a finished bar, which would then seem to go on."""
LIVE_SIZE = 2000
"""Maximum number of characters shown of an unfinished line, from its end."""
RICH_LIMIT = 64_000_000
"""Maximum total size of the displays and results (as JSON) and errors kept of one cell, in bytes."""


def sendable(text: str) -> str:
    """The text with lone surrogates (bytes that were not UTF-8) written as escapes, since they cannot be encoded."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()
    return text


def _size(text: str) -> int:
    """The number of bytes of the text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))


class OutputBuffer:
    """Collects the output of one cell at a time. Any thread of the rank may write; the agent's thread takes the output.

    ``print`` writes each argument and each space separately, so a write only adds to a queue, without the lock. The
    queue is emptied when the agent takes the output, when the queue has more than `WAITING` writes or a write is longer
    than `LARGE`, before a display, an error or a ``clear_output``, in `keep`, and at the end of the cell.
    """

    def __init__(
        self, wake: Callable[[], None], limit: int = LIMIT, tail: int = TAIL, printed: Printed | None = None
    ) -> None:
        """`printed` gets all text, including text that is cut here."""
        self._wake, self._printed = wake, printed
        self._lock = threading.Lock()
        self._tail_limit = tail
        self.written: deque[tuple[Stream, str]] = deque()
        """Writes not yet joined into prints. A stream (`stdio`) adds to it, and calls `settle` and `announce`."""
        self.reset(limit)

    def reset(self, limit: int = LIMIT) -> None:
        """Start a new cell: its first `limit` bytes are kept, and writes that are still queued belong to it."""
        with self._lock:
            self.announced = False
            """Whether the agent knows that there is output to take."""
            self._announced_at = 0.0
            self._left = limit
            self._rich_left = RICH_LIMIT
            self._pending: list[Item] = []
            self._last: tuple[Stream | None, list[str]] = (None, [])
            """Stream and prints of the newest pending item, if it is text."""
            self._to_keep: list[str] = []
            self._size_to_keep = 0
            """The text not yet given to `printed`, and its length."""
            self._begun: dict[Stream, list[str]] = {"stdout": [], "stderr": [], "note": []}
            """Pieces of an unfinished print; empty outside `_settle`."""
            self._unfinished: dict[Stream, Unfinished] = {stream: Unfinished() for stream in self._begun}
            self._live: dict[Stream, str] = {}
            self._tail: deque[Item] = deque()
            self._tail_bytes = 0
            self._cut_lines = 0
            self._cut_bytes = 0
            self._told_lines = 0
            self._told_bytes = 0
            self.lines = 0
            self.nbytes = 0

    def write(self, stream: Stream, text: str) -> None:
        """Take text printed on ``stdout`` or ``stderr``, or whole lines of a ``note``."""
        self.written.append((stream, text))
        if len(self.written) > WAITING or len(text) > LARGE:
            self.settle()
        if not self.announced:
            self.announce()

    def settle(self) -> None:
        """Join queued writes into prints."""
        with self._lock:
            self._settle()

    def _settle(self) -> None:
        """Join queued writes into prints; the rest is held as the beginning of a print that has not ended its line.

        Ctrl-C may interrupt this anywhere, and loses at most one print.
        """
        next_written = self.written.popleft
        for _ in range(len(self.written)):  # another thread may go on writing
            stream, text = next_written()
            pieces = self._begun[stream]
            pieces.append(text)
            if text[-1:] == "\n":
                self._put_text(stream, self._end_print(stream, pieces))
        for stream, pieces in self._begun.items():
            if pieces:
                held = self._unfinished[stream]
                held.since = held.since if held.size else self._announced_at or time.monotonic()
                _add_pieces(held, pieces)
                self._bound(stream, held)
        if self._size_to_keep > AT_ONCE:
            self._keep()

    def _end_print(self, stream: Stream, pieces: list[str]) -> str:
        """Return a whole print: the held text, followed by `pieces`, which are removed from the list."""
        text, held = "".join(pieces), self._unfinished[stream]
        if held.size or "\r" in text:
            if not held.size:
                held.since = self._announced_at or time.monotonic()
            _add_pieces(held, pieces)
            return _taken(held)
        pieces.clear()
        return sendable(text)

    def _keep(self) -> None:
        """Give `printed` the settled text."""
        texts, self._to_keep, self._size_to_keep = self._to_keep, [], 0  # Ctrl-C may come while the disk is written to
        if texts and self._printed is not None:
            self._printed.write("".join(texts))

    def _bound(self, stream: Stream, held: Unfinished) -> None:
        """Add to the output the whole lines of a long unfinished print, and its last line if that is too long."""
        room = max(self._left, 0) + self._tail_limit // PIECES
        if held.has_lines and held.size > min(room, self._tail_limit):
            self._put_text(stream, held.take_lines())
        if held.size > room:
            self._put_text(stream, held.take())

    def announce(self) -> None:
        """Wake the agent, but only once until it takes the output: the agent schedules further batches itself."""
        if not self.announced:
            self.announced, self._announced_at = True, time.monotonic()
            self._wake()

    def rich(self, kind: BundleKind, bundle: dict[str, object]) -> None:
        """Take a display, update or result."""
        self._take_rich(kind, bundle, len(json.dumps(bundle, default=str)))

    def bar(self, line: OverwrittenLine) -> None:
        """Take a finished progress bar that was drawn as a display; nothing if it is empty."""
        with self._lock:
            self._settle()
            if line:
                if not self._unfinished["stdout"].is_bar:
                    self._flush_partial("stdout")
                self._put_text("stdout", line)
        self.announce()

    def _take_rich(self, kind: str, content: object, size: int) -> None:
        with self._lock:
            self._settle()
            if kind == "error" or not self._unfinished["stdout"].is_bar:  # a bar goes on below a display
                self._flush_partial("stdout")
            if kind == "error":
                self._flush_partial("stderr")
            if size > self._rich_left:
                self._cut_bytes += size
            else:
                self._rich_left -= size
                self._put((kind, content))
        self.announce()

    def error(self, error: CellError) -> None:
        """Take the error that the cell raised."""
        self._take_rich("error", error, _size(error.evalue) + sum(map(_size, error.traceback)))

    def clear(self, wait: bool) -> None:
        """Take a ``clear_output``, in order with the text and displays."""
        with self._lock:
            self._flush_partial("stdout")
            self._put(("clear", wait))
        self.announce()

    def end(self) -> None:
        """End the cell: add unfinished lines, the amount of cut output, and the tail to the items for the agent."""
        with self._lock:
            self._flush_partial("stdout")
            self._flush_partial("stderr")
            lines, size = self._cut_lines - self._told_lines, self._cut_bytes - self._told_bytes
            if lines or size:
                self._add(("cut", {"lines": lines, "bytes": size}))
                self._told_lines, self._told_bytes = self._cut_lines, self._cut_bytes
            for item in _joined(self._tail):
                self._add(item)
            self._tail.clear()
            self._tail_bytes = 0
            self._keep()

    def take(self) -> tuple[list[Item], dict[Stream, str] | None]:
        """Return the items since the last call, and the unfinished line of each stream (None if no line has changed).

        Successive prints on one stream are one item: ``("text", stream, prints)``.
        """
        with self._lock:
            self.announced = False
            self._settle()
            self._keep()
            items, self._pending, self._last = self._pending, [], (None, [])
            shown_before = time.monotonic() - LIVE_AFTER
            live = {
                stream: held.last(LIVE_SIZE)
                for stream, held in self._unfinished.items()
                if held.size and held.since <= shown_before
            }
            changed = live != self._live
            self._live = live
        return items, live if changed else None

    def keep(self) -> None:
        """Give `printed` all text that was written so far."""
        with self._lock:
            self._settle()
            self._keep()

    def drop_in_child(self) -> None:
        """Drop all output in a forked child: nothing takes it, and a thread that the child lacks may hold the lock."""
        self._lock = threading.Lock()
        self.written = deque(maxlen=0)

    @property
    def cut(self) -> Cut:
        return Cut(self._cut_lines, self._cut_bytes)

    def _flush_partial(self, stream: Stream) -> None:
        """Add the unfinished print of `stream` to the output, after all prints that were written before it."""
        self._settle()
        if text := _taken(self._unfinished[stream]):
            self._put_text(stream, text)

    def _put_text(self, stream: Stream, text: str) -> None:
        size = _size(text)
        self.lines += text.count("\n")
        self.nbytes += size
        self._to_keep.append(text)
        self._size_to_keep += len(text)
        if size <= self._left:
            self._left -= size
            self._add_text(stream, text)
            return
        if self._left > 0:
            # The first print over the limit is cut at the last line that fits, so that little of it is lost.
            head = text.encode()[: self._left].decode(errors="ignore")
            text = text[len(head) :]
            keep, newline, rest = head.rpartition("\n")
            if newline:
                head, text = keep + newline, rest + text
            self._add_text(stream, head)
            self._left = 0
        self._put_tail(("text", stream, text))

    def _add(self, item: Item) -> None:
        """Queue an item for the agent. As in the tail, a text item contains one print."""
        if item[0] == "text":
            self._add_text(item[1], item[2])
        else:
            self._last = None, []
            self._pending.append(item)

    def _add_text(self, stream: Stream, text: str) -> None:
        before, prints = self._last
        if stream != before:
            prints = []
            self._pending.append(("text", stream, prints))
            self._last = stream, prints
        prints.append(text)

    def _put(self, item: Item) -> None:
        if self._left > 0:
            self._add(item)
        else:
            self._put_tail(item)

    def _put_tail(self, item: Item) -> None:
        if item[0] == "text" and _size(item[2]) > self._tail_limit:
            kept = item[2].encode()[-self._tail_limit :].decode(errors="ignore")
            lost = item[2][: len(item[2]) - len(kept)]
            self._cut_lines += lost.count("\n")
            self._cut_bytes += _size(lost)
            item = ("text", item[1], kept)
        self._tail.append(item)
        self._tail_bytes += _size(item[2]) if item[0] == "text" else 0
        while self._tail_bytes > self._tail_limit:
            self._drop_oldest_text()

    def _drop_oldest_text(self) -> None:
        kept = []
        while self._tail:
            item = self._tail.popleft()
            if item[0] == "text":
                self._cut_lines += item[2].count("\n")
                self._cut_bytes += _size(item[2])
                self._tail_bytes -= _size(item[2])
                break
            kept.append(item)
        self._tail.extendleft(reversed(kept))


def _add_pieces(held: Unfinished, pieces: list[str]) -> None:
    """Add `pieces` to `held`, one by one if there is a carriage return, and empty the list."""
    text = sendable("".join(pieces))
    parts = [CURSOR.sub("", sendable(part)) for part in pieces] if "\r" in text else [text]
    pieces.clear()
    for part in parts:
        held.add(part)


def _taken(held: Unfinished) -> str:
    """Remove all text of `held`, and return it; a progress bar as an `OverwrittenLine`."""
    if not held.is_bar:
        return held.take()
    line = OverwrittenLine(held.take())
    line.seconds = time.monotonic() - held.since
    return line


def _joined(items: Iterable[Item]) -> list[Item]:
    """The items, with the pieces of one line put together again."""
    joined: list[Item] = []
    for item in items:
        before = joined[-1] if joined else None
        if before and before[:2] == item[:2] and item[0] == "text" and not before[2].endswith("\n"):
            joined[-1] = (*item[:2], before[2] + item[2])
        else:
            joined.append(item)
    return joined
