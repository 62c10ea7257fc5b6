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


class Kind(NamedTuple):
    """What calls have in common. The ledger keeps one for all calls of a line that are alike: thousands of tuples of
    their own would be out of the processor's cache, which cost more than to make them (5 of 12 microseconds on MPI).
    """

    op: str
    shape: tuple[int, ...]
    dtype: Any
    where: Place
    shared: bool = True
    """Every rank of the world must enter it alike."""
    peer: int | None = None
    """The rank it sends to or receives from."""


NO_KIND = Kind("", (), None, NOWHERE, shared=False)


class Call(NamedTuple):
    """One call, as the ledger keeps it."""

    seq: int
    """Among all calls of this rank."""
    entered: int
    """How many shared ones the rank has asked for, up to this call."""
    kind: Kind


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


def record_of(call: Call) -> Record:
    """A call with sizes, file and line worked out."""
    return records_of([call])[0]


def records_of(calls: Sequence[Call]) -> list[Record]:
    """The same of each; what calls of one line have in common is worked out once."""
    known: dict[int, tuple[tuple[int, ...], str, int, str | None, int | None]] = {}
    records = []
    for seq, entered, kind in calls:
        op, shape, dtype, where, shared, peer = kind
        common = known.get(id(kind))
        if common is None:
            name, nbytes = str(dtype).removeprefix("mlx.core."), math.prod(shape) * dtype.size
            common = known[id(kind)] = (tuple(shape), name, nbytes, *_file_and_line(where))
        records.append(Record(seq, op, *common, shared, entered, peer))
    return records


def _file_and_line(where: Place) -> tuple[str | None, int | None]:
    code, instruction = where
    if code is None:
        return None, None
    lines = (line for start, end, line in code.co_lines() if start <= instruction < end)
    return code.co_filename, next(lines, None)
