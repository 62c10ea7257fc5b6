"""The first collectives of a cell, and in which order they are evaluated when what is computed from them is.

``mx.eval(a + b)`` on one rank and ``mx.eval(b + a)`` on another swap the results of `a` and `b`, though both are
evaluated by one call, and neither may be held by a variable. So the order is foreseen: MLX's drawing of the graph says
in which order MLX will go through it (see `drawing`). A drawing takes its time, 6 ms for 600 operations, so that only
the first collectives of a cell are followed, where two or more may be pending: a mistake in the code shows there.

A rank need not see all of it: ranks differ where two collectives that both have seen are in another order.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from allranks.rank.arrays import computed
from allranks.rank.arrays.drawing import drawing_of

MOST = 32
"""Collectives of a cell that are followed."""
FREE = 0.02
"""Seconds of a cell that drawings may take; one may take longer."""
SHARE = 0.05
"""Of a cell's time, which they may take if that is more."""


class FirstOnes:
    """Those of this cell; `asked` for is each one, then some are `taken` or `foreseen`."""

    def __init__(self) -> None:
        self.following = False
        """Whether the collectives that are called are to be noted."""
        self.pending: dict[int, int] = {}
        """By number, the address of the operation of each that may be pending."""
        self.order: list[int] = []
        """Those that are known to be evaluated, in that order."""
        self._left = 0
        self._began = self._spent = 0.0

    def begin(self, following: bool, pending: Iterable[tuple[int, Any]] = ()) -> None:
        """A cell begins; of those before it, these are `pending`: numbers and results."""
        self.following, self._left = following and computed.reader is not None, MOST
        self.pending, self.order = {}, []
        self._began, self._spent = time.perf_counter(), 0.0
        for number, result in islice(pending, MOST) if self.following else ():
            self._add(number, result)

    def asked(self, number: int, result: Any, *, closed: bool) -> None:
        """A collective was called; `closed`: in a transformation that makes others of it, which have no numbers."""
        self._left -= 1
        if closed:
            # What it makes may come to have the address of one that is gone.
            self.pending.clear()
            self.following = False
            return
        self.following = self._left > 0
        self._add(number, result)

    def _add(self, number: int, result: Any) -> None:
        if computed.reader is not None and (address := computed.reader.primitive(result)):
            self.pending[number] = address

    def taken(self, number: int) -> None:
        """It is evaluated, after those that were taken before."""
        if self.pending.pop(number, None) is not None:
            self.order.append(number)

    def passed(self, number: int) -> None:
        """It is evaluated, and not known when."""
        self.pending.pop(number, None)

    def foresee(self, arrays: Sequence[Any]) -> None:
        """These are about to be evaluated, and with them those of the collectives that they are computed from."""
        began = time.perf_counter()
        reader = computed.reader
        if reader is None or self._spent > max(FREE, SHARE * (began - self._began)):
            self.pending.clear()  # some are evaluated now, and what comes later may have their addresses
            return
        arrays = [array for array in arrays if reader.is_pending(array)]
        try:
            found = drawing_of(arrays).order([reader.primitive(array) for array in arrays])
            numbers = {address: number for number, address in self.pending.items()}  # the last that had the address
        except Exception:  # a later MLX may draw in any way, and another thread may call collectives meanwhile
            self.pending.clear()
            return
        for address in found:
            if address in numbers:
                self.taken(numbers[address])
        if not self.following:  # collectives that are called from now on may have the addresses of those that are gone
            self.pending.clear()
        self._spent += time.perf_counter() - began
