"""Calls and bytes that this rank's code passed to ``mx.distributed``, counted from the ledger by the agent's thread."""

from __future__ import annotations

import math
import time
from collections import Counter

from allranks.messages.events import OpTotals
from allranks.rank.collectives.ledger import Ledger

UNRECORDED = "not kept"
"""Operation name for calls whose entries the ledger dropped before they were counted; their bytes are unknown."""


class Traffic:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._seq = 0
        self._ops: dict[str, list[int]] = {}
        self._nbytes = 0
        self._before: tuple[int, float] = (0, time.monotonic())

    def count(self) -> None:
        """Count new calls; must be called often enough that the ledger still has their entries."""
        if self._ledger.seq == self._seq:
            return
        seq, kinds = self._ledger.kinds_since(self._seq)
        if len(kinds) == self._ledger.keep and (missed := seq - self._seq - len(kinds)) > 0:
            self._add(UNRECORDED, 0, missed)
        # Calls share kinds, so compare kinds by identity: comparing shapes and dtypes takes ten times as long.
        known = {id(kind): kind for kind in kinds}
        for each, calls in Counter(map(id, kinds)).items():
            op, shape, dtype = known[each][:3]
            self._add(op, math.prod(shape) * dtype.size, calls)
        self._seq = seq

    def _add(self, op: str, nbytes: int, calls: int) -> None:
        known = self._ops.setdefault(op, [0, 0, nbytes, nbytes])
        known[0] += calls
        known[1] += nbytes * calls
        known[2], known[3] = min(known[2], nbytes), max(known[3], nbytes)
        self._nbytes += nbytes * calls

    def read(self) -> tuple[float, tuple[OpTotals, ...]]:
        """Bytes a second passed to collectives since the last call, and the totals of each operation."""
        self.count()
        now = time.monotonic()
        before, at = self._before
        self._before = (self._nbytes, now)
        rate = round((self._nbytes - before) / (now - at)) if now > at else 0
        return rate, tuple(OpTotals(op, *known) for op, known in self._ops.items())
