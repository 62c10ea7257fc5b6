"""A collective in the ledger: operation, shape, dtype, bytes, and the user's line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import CodeType, FrameType
from typing import Any, NamedTuple

from allranks.messages.events import LedgerEntry
from allranks.messages.value_types import Namespace
from allranks.rank.functions.refused_operations import COLLECTIVES

Place = tuple[CodeType | None, int]
"""The code that called a collective, and the instruction in it (``f_lasti``)."""
NOWHERE: Place = (None, 0)
COLLECTIVE = frozenset({*COLLECTIVES, "sum_scatter"})
"""Operations that all ranks of a group must enter with equal shapes and dtypes, unlike `send` and `recv`."""


class CallCount:
    """Counts this rank's calls of collectives, and holds the size of its world."""

    def __init__(self) -> None:
        self.seq = 0
        """Number of the newest call, shared or not. If joining a world raises `number`, it raises `seq` by as much."""
        self.number = 0
        """Number of the newest call that all ranks share: equal numbers mean the same collective on every rank."""
        self.size = 1
        """Number of ranks in the world."""


class Kind(NamedTuple):
    """What equal calls of one line have in common.

    On the fast path, the ledger keeps one `Kind` for all these calls. Thousands of separate tuples would not fit in the
    processor's cache, and the cache misses cost more than creating the tuples (5 of 12 microseconds on MPI).
    """

    op: str
    shape: tuple[int, ...]
    dtype: Any
    where: Place
    shared: bool = True
    """Whether every rank of the world must enter an equal collective."""
    peer: int | None = None
    """The rank to send to or receive from; None for other operations, and in a group smaller than the world."""


NO_KIND = Kind("", (), None, NOWHERE, shared=False)


class LedgerCall(NamedTuple):
    """One call. The ledger keeps only the kind of each call, and works out the numbers (see `Ledger.kinds`)."""

    seq: int
    """Its number among all calls of this rank."""
    entered: int
    """`CallCount.number` as it was after this call: the number of the newest shared call."""
    kind: Kind


class Record(NamedTuple):
    seq: int
    """Its number among all calls of this rank."""
    op: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    file: str | None
    line: int | None
    shared: bool = True
    """Whether every rank of the world must enter an equal collective."""
    entered: int = 0
    """`CallCount.number` as it was after this call: the number of the newest shared call."""
    peer: int | None = None
    """The rank to send to or receive from; None for other operations, and in a group smaller than the world."""

    @property
    def number(self) -> int:
        """If `shared`, its number among the calls that all ranks share; if not, among this rank's other calls."""
        return self.entered if self.shared else self.seq - self.entered

    def entry(self, line: int | None) -> LedgerEntry:
        """Return this record as a ledger entry to send, with `line` as its line number."""
        return LedgerEntry(self.number, self.op, self.shape, self.dtype, self.nbytes, line, self.shared, self.peer)


def user_place(user_ns: Namespace | None, frame: FrameType | None) -> Place:
    """The location of the innermost frame with the globals `user_ns`, searched from `frame` outwards; or `NOWHERE`."""
    while frame is not None and frame.f_globals is not user_ns:
        frame = frame.f_back
    return (frame.f_code, frame.f_lasti) if frame is not None else NOWHERE


def record_of(call: LedgerCall) -> Record:
    """Return the record of a call, with sizes, file and line worked out."""
    return records_of([call])[0]


def records_of(calls: Sequence[LedgerCall]) -> list[Record]:
    """Return the record of each call; what calls of one kind have in common is worked out once."""
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
