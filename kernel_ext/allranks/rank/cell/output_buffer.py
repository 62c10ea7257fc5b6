"""What a cell prints and shows on this rank, in order, bounded, and counted where it was cut.

Text is kept as print bursts (everything up to a write that ends a line), so that a printed matrix stays together and
equal prints can be folded across ranks. The first `limit` bytes of a cell are kept, then the last `tail` bytes; what
fell in between is counted in a ``("cut", {"lines", "bytes"})`` item. Nothing disappears without being counted.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from allranks.messages.events import BundleKind, CellError, Cut, Stream

Item = tuple[Any, ...]

LIMIT = 4_000_000
"""Bytes of text kept from the start of a cell's output on one rank."""
TAIL = 64_000
"""Bytes of text kept from its end."""
LIVE_AFTER = 0.2
"""Seconds an unfinished line must stand before it is shown as one: most are finished by the next write."""
RICH_LIMIT = 64_000_000
"""Bytes of figures and HTML kept of one cell."""


def sendable(text: str) -> str:
    """The text with lone surrogates (bytes that were no UTF-8) written as escapes, since they cannot be encoded."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()
    return text


def overlaid(text: str) -> str:
    """What a terminal shows of a line after its carriage returns: the last non-empty segment of each line."""
    if "\r" not in text:
        return text
    lines = text.replace("\r\n", "\n").split("\n")
    return "\n".join(next((part for part in reversed(line.split("\r")) if part), "") for line in lines)


class OutputBuffer:
    """Collects one cell's output; written by any thread of the rank, read by its agent."""

    def __init__(self, wake: Callable[[], None], limit: int = LIMIT, tail: int = TAIL) -> None:
        self._wake = wake
        self._lock = threading.Lock()
        self._tail_limit = tail
        self.reset(limit)

    def reset(self, limit: int = LIMIT) -> None:
        """Start a new cell with `limit` bytes of text to keep."""
        with self._lock:
            self._announced = False
            self._left = limit
            self._rich_left = RICH_LIMIT
            self._pending: list[Item] = []
            self._partial: dict[Stream, str] = {"stdout": "", "stderr": ""}
            self._partial_since = {"stdout": 0.0, "stderr": 0.0}
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
        """Take text printed on ``stdout`` or ``stderr``."""
        if not text.isascii():
            text = sendable(text)
        with self._lock:
            held = self._partial[stream]
            whole = held + text
            if whole.endswith("\n"):
                self._partial[stream] = ""
                self._put_text(stream, overlaid(whole))
            elif held and "\r" not in whole and len(whole) <= self._tail_limit:  # print writes each argument by itself
                self._partial[stream] = whole
            elif len(whole) > self._tail_limit and "\n" in whole:
                done, _, rest = whole.rpartition("\n")
                self._partial[stream] = rest
                self._put_text(stream, overlaid(done + "\n"))
            else:
                if not held:
                    self._partial_since[stream] = time.monotonic()
                self._hold(stream, whole)
        self._announce()

    def _announce(self) -> None:
        """Wake the agent, once until it has taken what there is: it knows itself when the next batch is due."""
        if not self._announced:
            self._announced = True
            self._wake()

    def _hold(self, stream: Stream, unfinished: str) -> None:
        """Keep an unfinished line; only the last state of a progress bar, only the start of an endless line."""
        if "\r" in unfinished and "\n" not in unfinished:
            returned = "\r" if unfinished.endswith("\r") else ""  # what is written next goes over it
            unfinished = overlaid(unfinished)
            # A progress bar that is all blanks has wiped itself out.
            unfinished = unfinished + returned if unfinished.strip() else ""
        room = max(self._left, 0) + self._tail_limit
        if len(unfinished) > room:
            self._cut_bytes += len(unfinished) - room
            self.nbytes += len(unfinished) - room
            unfinished = unfinished[:room]
        self._partial[stream] = unfinished

    def rich(self, kind: BundleKind, bundle: dict[str, Any]) -> None:
        """Take a display, update or result."""
        self._take_rich(kind, bundle, len(json.dumps(bundle, default=str)))

    def _take_rich(self, kind: str, content: object, size: int) -> None:
        with self._lock:
            self._flush_partial("stdout")
            if kind == "error":
                self._flush_partial("stderr")
            if size > self._rich_left:
                self._cut_bytes += size
            else:
                self._rich_left -= size
                self._put((kind, content))
        self._announce()

    def error(self, error: CellError) -> None:
        """Take what the cell raised."""
        self._take_rich("error", error, len(error.evalue) + sum(map(len, error.traceback)))

    def clear(self, wait: bool) -> None:
        """Take a ``clear_output``: what is waiting in the tail is gone for the user too, so it is not kept."""
        with self._lock:
            self._flush_partial("stdout")
            self._put(("clear", wait))
        self._announce()

    def end(self) -> None:
        """Close the cell: hand over unfinished lines, the count of what was cut, and the tail."""
        with self._lock:
            self._flush_partial("stdout")
            self._flush_partial("stderr")
            lines, size = self._cut_lines - self._told_lines, self._cut_bytes - self._told_bytes
            if lines or size:
                self._pending.append(("cut", {"lines": lines, "bytes": size}))
                self._told_lines, self._told_bytes = self._cut_lines, self._cut_bytes
            self._pending.extend(self._tail)
            self._tail.clear()
            self._tail_bytes = 0

    def take(self) -> tuple[list[Item], dict[Stream, str] | None]:
        """The items since the last call, and the unfinished lines where those changed (None where not)."""
        with self._lock:
            self._announced = False
            items, self._pending = self._pending, []
            shown_before = time.monotonic() - LIVE_AFTER
            live = {
                stream: text.rstrip("\r")[-2000:]
                for stream, text in self._partial.items()
                if text and self._partial_since[stream] <= shown_before
            }
            changed = live != self._live
            self._live = live
        return items, live if changed else None

    @property
    def cut(self) -> Cut:
        return Cut(self._cut_lines, self._cut_bytes)

    def _flush_partial(self, stream: Stream) -> None:
        text, self._partial[stream] = self._partial[stream], ""
        if text:
            self._put_text(stream, text.removesuffix("\r"))

    def _put_text(self, stream: Stream, text: str) -> None:
        size = len(text)
        self.lines += text.count("\n")
        self.nbytes += size
        if size <= self._left:
            self._left -= size
            self._pending.append(("text", stream, text))
            return
        if self._left > 0:
            # The first burst over the limit is cut at the last line that fits, so that little is lost of it.
            head, text = text[: self._left], text[self._left :]
            keep, newline, rest = head.rpartition("\n")
            if newline:
                head, text = keep + newline, rest + text
            self._pending.append(("text", stream, head))
            self._left = 0
        self._put_tail(("text", stream, text))

    def _put(self, item: Item) -> None:
        if self._left > 0:
            self._pending.append(item)
        else:
            self._put_tail(item)

    def _put_tail(self, item: Item) -> None:
        if item[0] == "text" and len(item[2]) > self._tail_limit:
            lost = item[2][: -self._tail_limit]
            self._cut_lines += lost.count("\n")
            self._cut_bytes += len(lost)
            item = ("text", item[1], item[2][-self._tail_limit :])
        self._tail.append(item)
        self._tail_bytes += len(item[2]) if item[0] == "text" else 0
        while self._tail_bytes > self._tail_limit:
            self._drop_oldest_text()

    def _drop_oldest_text(self) -> None:
        kept = []
        while self._tail:
            item = self._tail.popleft()
            if item[0] == "text":
                self._cut_lines += item[2].count("\n")
                self._cut_bytes += len(item[2])
                self._tail_bytes -= len(item[2])
                break
            kept.append(item)
        self._tail.extendleft(reversed(kept))
