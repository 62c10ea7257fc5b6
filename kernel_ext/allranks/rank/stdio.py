"""What a rank has for ``sys.stdout`` and ``sys.stderr``."""

from __future__ import annotations

import io
from typing import Any

from ipykernel.iostream import OutStream

from .outlet import Outlet


class RankStream(OutStream):
    """Also fed by what the process writes to its descriptors 1 and 2."""

    outlet: Outlet
    elsewhere = False
    """True while a cell of plain ipyparallel runs."""

    def write(self, string: str) -> int:
        if RankStream.elsewhere:
            return int(super().write(string) or len(string))
        if not isinstance(string, str):
            raise TypeError(f"write() argument must be str, not {type(string).__name__}")
        RankStream.outlet.write(self.name, string)
        return len(string)

    @property
    def buffer(self) -> io.RawIOBase:
        """For code that writes bytes; what is no UTF-8 is shown as replacement characters."""
        return _Bytes(self)


class _Bytes(io.RawIOBase):
    def __init__(self, stream: RankStream) -> None:
        self._stream = stream

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._stream.write(bytes(data).decode("utf-8", "replace"))
        return len(data)
