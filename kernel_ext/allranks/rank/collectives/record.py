"""One collective as the ledger keeps it: operation, shape, dtype, bytes, and the user's line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import CodeType
from typing import Any, NamedTuple

from allranks.messages.events import LedgerEntry

Place = tuple[CodeType | None, int]
"""The code that asked for a collective, and the instruction in it (``f_lasti``)."""
NOWHERE: Place = (None, 0)


class Record(NamedTuple):
    seq: int
    """Among all calls of this rank."""
    op: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    file: str | None
    line: int | None
    shared: bool = True
    """Every rank of the world must enter it alike."""
    entered: int = 0
    """How many of those the rank has asked for, up to this call."""
    peer: int | None = None
    """The rank it sends to or receives from."""

    @property
    def number(self) -> int:
        """Among the calls that all ranks share, or among those of this rank alone."""
        return self.entered if self.shared else self.seq - self.entered

    def entry(self, line: int | None) -> LedgerEntry:
        """As it travels, with this line."""
        return LedgerEntry(self.number, self.op, self.shape, self.dtype, self.nbytes, line, self.shared, self.peer)


def record_of(
    seq: int,
    op: str,
    shape: Sequence[int],
    dtype: Any,
    where: Place,
    shared: bool = True,
    entered: int = 0,
    peer: int | None = None,
) -> Record:
    """A record as the ledger keeps it, with sizes, file and line worked out."""
    name = str(dtype).removeprefix("mlx.core.")
    nbytes = math.prod(shape) * dtype.size
    return Record(seq, op, tuple(shape), name, nbytes, *_file_and_line(where), shared, entered, peer)


def _file_and_line(where: Place) -> tuple[str | None, int | None]:
    code, instruction = where
    if code is None:
        return None, None
    lines = (line for start, end, line in code.co_lines() if start <= instruction < end)
    return code.co_filename, next(lines, None)
