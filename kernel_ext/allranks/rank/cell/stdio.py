"""What a rank has for ``sys.stdout`` and ``sys.stderr``."""

from __future__ import annotations

import codecs
import io
import os
import select
from contextlib import suppress
from typing import Any

from ipykernel.iostream import OutStream

from .output_buffer import OutputBuffer

UTF8 = codecs.getincrementaldecoder("utf-8")
"""Keeps the start of a character whose rest comes with the next bytes."""


class RankStream(OutStream):
    """Also fed by what the process writes to its descriptors 1 and 2."""

    output: OutputBuffer
    elsewhere = False
    """True while a cell of plain ipyparallel runs."""

    _bytes: _Bytes | None = None

    def write(self, string: str) -> int:
        if RankStream.elsewhere:
            return int(super().write(string) or len(string))
        if not isinstance(string, str):
            raise TypeError(f"write() argument must be str, not {type(string).__name__}")
        self.output.write(self.name, string)
        return len(string)

    def flush(self) -> None:
        """Nothing: what is written is with the agent. ipykernel's own waits for another thread, for some 0.2 ms."""
        if RankStream.elsewhere:
            super().flush()  # type: ignore[no-untyped-call]

    @property
    def pipe(self) -> int | None:
        """Where what is written to the descriptor is read."""
        return self._fid

    def _watch_pipe_fd(self) -> None:
        """Take what the process writes to its descriptors: to the cell's output, and to the file for last words.

        ipykernel's own (7.4) reads first and then waits for the GIL, and what it has read is lost when the process ends
        meanwhile. This one leaves it in the pipe until then, which the host process reads after the rank's end.
        """
        if self._fid is None:
            return
        decoder = UTF8("replace")
        with suppress(OSError):  # the pipe is closed when the stream is
            while self._should_watch:
                select.select([self._fid], [], [])
                if not (written := os.read(self._fid, 65_536)):
                    return
                os.write(self._original_stdstream_copy, written)
                self.write(decoder.decode(written))

    @property
    def buffer(self) -> io.RawIOBase:
        """For code that writes bytes; what is no UTF-8 is shown as replacement characters."""
        if self._bytes is None:
            self._bytes = _Bytes(self)
        return self._bytes


class _Bytes(io.RawIOBase):
    def __init__(self, stream: RankStream) -> None:
        self._stream, self._decoder = stream, UTF8("replace")

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._stream.write(self._decoder.decode(bytes(data)))
        return len(data)
