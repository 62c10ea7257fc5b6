"""The streams that a rank has as ``sys.stdout`` and ``sys.stderr``."""

from __future__ import annotations

import codecs
import io
import os
import select
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ipykernel.iostream import OutStream

from .output_buffer import LARGE, WAITING, OutputBuffer

UTF8 = codecs.getincrementaldecoder("utf-8")
"""A decoder that keeps the start of a character until its other bytes arrive."""


class RankStream(OutStream):
    """A stream that also takes what the process writes to its descriptor 1 or 2."""

    output: OutputBuffer
    elsewhere = False
    """True while a cell or an applied function of plain ipyparallel runs."""

    _bytes: _Bytes | None = None

    def write(self, string: str) -> int:
        if RankStream.elsewhere:
            return self._write_elsewhere(string)
        write = self._writer()
        if "write" not in vars(self):  # otherwise code of the user has replaced it, and calls this one
            self.write = write  # type: ignore[method-assign, assignment]
        return write(string)

    def _writer(self) -> Callable[[str], int]:
        """The stream's `write` from its first call on: `print` writes each argument and each space by a call."""
        output, name = self.output, self.name

        def write(string: str) -> int:
            if RankStream.elsewhere:
                return self._write_elsewhere(string)
            if not isinstance(string, str):
                raise TypeError(f"write() argument must be str, not {type(string).__name__}")
            # The same as `OutputBuffer.write`, without another call.
            (written := output.written).append((name, string))
            size = len(string)
            if len(written) > WAITING or size > LARGE:
                output.settle()
            if not output.announced:
                output.announce()
            return size

        return write

    def _write_elsewhere(self, string: str) -> int:
        return int(super().write(string) or len(string))

    def flush(self) -> None:
        """Do nothing in the notebook's cells: `output` has the text, and ipykernel's flush takes some 0.2 ms."""
        if RankStream.elsewhere:
            super().flush()  # type: ignore[no-untyped-call]

    @property
    def pipe(self) -> int | None:
        """The end of the pipe from which writes to the descriptor are read; None if they do not go through a pipe."""
        return self._fid

    def _watch_pipe_fd(self) -> None:
        """Copy what the process writes to its descriptor to the cell's output, and to the file of the rank's output.

        ipykernel's own method (7.4) reads first and then waits for the GIL; what it has read is lost if the process
        ends meanwhile. This method leaves the text in the pipe until it has the GIL; after the rank's end, the host
        process reads the pipe.
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
        """A binary stream for code that writes bytes; bytes that are not UTF-8 show as replacement characters."""
        if self._bytes is None:
            self._bytes = _Bytes(self)
        return self._bytes


def note(sentence: str) -> None:
    """Show a sentence of allranks that is not an error; in plain ipyparallel's cells, it goes to stderr."""
    if RankStream.elsewhere:
        print(sentence, file=sys.stderr)
    else:
        RankStream.output.write("note", f"{sentence}\n")


class _Bytes(io.RawIOBase):
    def __init__(self, stream: RankStream) -> None:
        self._stream, self._decoder = stream, UTF8("replace")

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._stream.write(self._decoder.decode(bytes(data)))
        return len(data)
