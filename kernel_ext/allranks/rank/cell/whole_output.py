"""The whole text that the last cells printed on this rank, in order, for `%distributed output`.

Text beyond a cell's limit is not sent to the notebook, but kept here.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from allranks.machine.private_files import write_all_at

KEPT = 4
"""Number of cells whose text is kept."""
SILENT = 100
"""Number of cells without output that are remembered."""
IN_MEMORY = 64_000
"""Number of bytes above which a cell's text goes to a file."""
MOST = 1 << 30
"""Maximum number of bytes kept of one cell, and of all earlier cells together."""
SPARE = 1 << 30
"""Bytes left free on the disk: other programs need them, and the disk may be the host's memory (tmpfs)."""
PART = 1 << 20
"""Maximum number of bytes per read."""


class _Text:
    """The text that one cell printed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # Written at offsets and without Python's buffer, which would raise a disk's error again on a read or close, and
        # which a forked child would copy. The file has no name, so it never outlives the process.
        self._file: BinaryIO | None = None
        self._written, self._rest = 0, bytearray()
        """Bytes in the file, and the text after them."""
        self.incomplete = ""
        """Why later text is not kept; empty if all text is."""

    @property
    def nbytes(self) -> int:
        return self._written + len(self._rest)

    def write(self, text: str) -> None:
        """Add text. Never raises: if text cannot be kept, `incomplete` says why."""
        if self.incomplete:
            return
        data, room = text.encode(errors="backslashreplace"), MOST - self._written - len(self._rest)
        if len(data) > room:
            self.incomplete, data = "only the first 1 GiB of a cell is kept", data[:room]
        self._rest += data
        if len(self._rest) > IN_MEMORY:
            try:
                self.incomplete = self._flush() or self.incomplete
            except OSError as error:
                self.incomplete = f"{error.strerror} in {self._folder}"
            if self.incomplete:
                self._rest = self._rest[:IN_MEMORY]

    def _flush(self) -> str:
        """Write the text in memory to the file. Returns an empty string, or why it was not written. Raises OSError."""
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=self._folder, buffering=0)
        disk = os.fstatvfs(self._file.fileno())
        if disk.f_bavail * disk.f_frsize < SPARE:
            return "the disk of that host is nearly full"
        write_all_at(self._file.fileno(), self._rest, self._written)
        self._written += len(self._rest)
        self._rest.clear()
        return ""

    def read(self, offset: int) -> bytes:
        """Read at most `PART` bytes from `offset` on. Raises OSError."""
        if self._file is not None and offset < self._written:
            return os.pread(self._file.fileno(), min(PART, self._written - offset), offset)
        begin = offset - self._written
        return bytes(self._rest[begin : begin + PART])

    def forget(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                self._file.close()


class Printed:
    """The text of the last cells, by the cell's number. Any thread of the rank may write."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._pid = folder, os.getpid()
        self._texts = dict[int, _Text]()
        self._printed, self._silent = list[int](), deque[int]()
        """The ended cells in `_texts`, oldest first: those with and those without output."""
        self._last = 0
        self._now: _Text | None = None
        """The cell that began last, and its text."""
        self._lock = threading.Lock()

    def begin(self, cell: int) -> None:
        """Start the text of a cell, to which all later prints belong, and forget the oldest texts."""
        with self._lock:
            if self._now is not None:
                (self._printed if self._now.nbytes else self._silent).append(self._last)
            if cell in self._texts:  # an earlier notebook's
                self._forget(self._printed if cell in self._printed else self._silent, cell)
            printed = self._printed
            while len(printed) >= KEPT or sum([self._texts[each].nbytes for each in printed]) > MOST:
                self._forget(printed, printed[0])
            if len(self._silent) > SILENT:
                self._forget(self._silent, self._silent[0])
            self._last, self._now = cell, _Text(self._folder)
            self._texts[cell] = self._now

    def _forget(self, ended: list[int] | deque[int], cell: int) -> None:
        ended.remove(cell)
        self._texts.pop(cell).forget()

    def write(self, text: str) -> None:
        if os.getpid() != self._pid:  # a child that the cell has forked: its output is not sent either
            return
        with self._lock:
            if self._now is not None:
                self._now.write(text)

    def read(self, cell: int, offset: int) -> tuple[bytes, int, str]:
        """The part of a cell's text at `offset`, the whole text's length in bytes, and why the text is incomplete.

        Raises RuntimeError for a cell that is not kept, and OSError.
        """
        with self._lock:
            if (text := self._texts.get(cell)) is None:
                raise RuntimeError("that cell's output is no longer kept")
            return text.read(offset), text.nbytes, text.incomplete
