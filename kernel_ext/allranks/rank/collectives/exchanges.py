"""What a cell sent to and received from each other rank: the notebook compares both ends when the cell is over.

MLX compares nothing: it copies as many bytes as the receiver asks for, and reads them as the receiver's dtype (0.32.4).
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from allranks.messages.events import Exchanged

from .record import Record, record_of

if TYPE_CHECKING:
    from .ledger import Ledger


def exchanges_of(ledger: Ledger) -> list[Record]:
    """The last cell's sends and receives in the group of all ranks, in call order.

    The list is empty if the ledger no longer has all calls of the cell.
    """
    before = ledger.order.called_before
    if all(kind.peer is None for kind in ledger.kinds_since(before)[1]):  # the usual case
        return []
    calls = ledger.calls(before)
    if calls and calls[0].seq > before + 1:
        return []
    return [record_of(call) for call in calls if call.kind.peer is not None]


def exchanged(ledger: Ledger) -> tuple[Exchanged, ...]:
    """Return, for each rank that this rank sent to or received from, the counts and checksums to compare.

    The order of calls does not count: sends and receives are paired in evaluation order, which may differ.
    """
    records = exchanges_of(ledger)
    return tuple(
        Exchanged(
            peer,
            _summed_up([each for each in records if each.peer == peer and each.op == "send"]),
            _summed_up([each for each in records if each.peer == peer and each.op != "send"]),
        )
        for peer in sorted({each.peer for each in records if each.peer is not None})
    )


def _summed_up(records: Sequence[Record]) -> tuple[int, int]:
    kinds = sorted((each.dtype, each.nbytes) for each in records)
    return len(kinds), zlib.crc32(repr(kinds).encode()) if kinds else 0
