"""The whole text that the last cells printed on this rank, in order, for `%distributed output`.

What a cell prints beyond a limit is not sent to the notebook: it is here.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from pathlib import Path
from typing import BinaryIO

from allranks.machine.files import new_private

KEPT = 4
"""Cells whose text is kept."""
IN_MEMORY = 64_000
"""Bytes of a cell's text after which it goes to a file."""
MOST = 1 << 30
"""Bytes that are kept of one cell."""
PART = 1 << 20
"""Bytes that are read at once."""


class _Text:
    """What one cell printed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._head = list[bytes]()
        self._file: BinaryIO | None = None
        self.nbytes = 0
        self.not_kept = ""
        """Why the text does not go on, if it does not."""

    def write(self, text: str) -> None:
        data = text.encode()
        if self.not_kept:
            return
        if self.nbytes + len(data) > MOST:
            self.not_kept = "a gigabyte is kept of one cell"
            return
        try:
            if self._file is None and self.nbytes + len(data) > IN_MEMORY:
                self._file = new_private(self._path)
                self._file.write(b"".join(self._head))
                self._head.clear()
            if self._file is None:
                self._head.append(data)
            else:
                self._file.write(data)
        except OSError as error:
            self.not_kept = str(error.strerror)
            return
        self.nbytes += len(data)

    def read(self, offset: int) -> bytes:
        """At most `PART` bytes from there on. Raises OSError."""
        if self._file is None:
            return b"".join(self._head)[offset : offset + PART]
        self._file.flush()
        return os.pread(self._file.fileno(), PART, offset)

    def forget(self) -> None:
        if self._file is not None:
            self._file.close()
            self._path.unlink(missing_ok=True)


class Printed:
    """The text of the last cells, by their number. Written by any thread of the rank."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._texts = OrderedDict[int, _Text]()
        self._lock = threading.Lock()

    def begin(self, cell: int) -> None:
        """What is printed from here on is this cell's."""
        with self._lock:
            if (before := self._texts.pop(cell, None)) is not None:  # of another notebook, which has gone
                before.forget()
            self._texts[cell] = _Text(self._folder / f"printed-{cell}")
            while len(self._texts) > KEPT:
                self._texts.popitem(last=False)[1].forget()

    def write(self, text: str) -> None:
        with self._lock:
            if self._texts:
                next(reversed(self._texts.values())).write(text)

    def read(self, cell: int, offset: int) -> tuple[bytes, int, str]:
        """A part of a cell's text, the length of all of it, and why it does not go on, if so; 0 for the last cell.

        Raises LookupError for a cell that is not kept, and OSError.
        """
        with self._lock:
            if not self._texts or (cell and cell not in self._texts):
                raise LookupError("what it printed is no longer kept there")
            text = self._texts[cell] if cell else next(reversed(self._texts.values()))
            return text.read(offset), text.nbytes, text.not_kept
