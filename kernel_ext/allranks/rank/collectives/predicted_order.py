"""The order in which the first collectives of a cell are evaluated as parts of a larger graph.

``mx.eval(a + b)`` on one rank and ``mx.eval(b + a)`` on another swap the results of `a` and `b`, although one call
evaluates both, and perhaps no variable holds either. So the order is predicted: MLX's drawing of the graph shows in
which order MLX will walk the graph (see `graph_drawing`). A drawing takes 6 ms for 600 operations. So only the first
collectives of a cell are tracked, which is enough to show a mistake in the code, and nothing is drawn for a single
collective.

A rank need not see every collective: two ranks differ if both have seen the same two collectives
in different order.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from allranks.rank.arrays import array_status
from allranks.rank.arrays.graph_drawing import drawing_of

if TYPE_CHECKING:
    from mlx.core import array as Array

MOST = 32
"""Maximum number of collectives tracked in a cell."""
FREE = 0.02
"""Seconds that a cell's drawings may take; the last drawing may exceed them."""
SHARE = 0.05
"""Share of the cell's time that drawings may take, if that is more than `FREE`."""


class PredictedOrder:
    """The first collectives of a cell: `asked` notes a call, then `taken`, `passed` or `foresee` its evaluation."""

    def __init__(self) -> None:
        self.following = False
        """Whether calls of collectives are still to be noted."""
        self.pending: dict[int, int] = {}
        """Maps the number of each collective that may be pending to the address of its operation."""
        self.order: list[int] = []
        """Numbers of the collectives that are known to be evaluated, in evaluation order."""
        self._left = 0
        self._began = self._spent = 0.0

    def begin(self, following: bool, pending: Iterable[tuple[int, Array | None]] = ()) -> None:
        """Begin a cell; `pending` has the numbers and results of earlier collectives that are pending."""
        self.following, self._left = following and array_status.reader is not None, MOST
        self.pending, self.order = {}, []
        self._began, self._spent = time.perf_counter(), 0.0
        for number, result in islice(pending, MOST) if self.following else ():
            self._add(number, result)

    def asked(self, number: int, result: Array, *, closed: bool) -> None:
        """Note a call.

        `closed` means that the call is inside a closed transformation (see `transforms`). The transformation replaces
        the collective by collectives without numbers.
        """
        self._left -= 1
        if closed:
            # The new collectives may get the addresses of freed operations.
            self.pending.clear()
            self.following = False
            return
        self.following = self._left > 0
        self._add(number, result)

    def _add(self, number: int, result: Array | None) -> None:
        if array_status.reader is not None and (address := array_status.reader.primitive(result)):
            self.pending[number] = address

    def taken(self, number: int) -> None:
        """Note that a collective is evaluated, after the collectives that were taken before."""
        if self.pending.pop(number, None) is not None:
            self.order.append(number)

    def passed(self, number: int) -> None:
        """Note that a collective is evaluated, at an unknown position in the order."""
        self.pending.pop(number, None)

    def foresee(self, arrays: Sequence[Array]) -> None:
        """Predict the order in which the evaluation of `arrays`, about to begin, will run the pending collectives."""
        began = time.perf_counter()
        reader = array_status.reader
        if reader is None or self._spent > max(FREE, SHARE * (began - self._began)):
            self.pending.clear()  # some are evaluated now, and later operations may get their addresses
            return
        arrays = [array for array in arrays if reader.is_pending(array)]
        try:
            found = drawing_of(arrays).order([reader.primitive(array) for array in arrays])
            numbers = {address: number for number, address in self.pending.items()}  # the newest with the address
        except Exception:  # a later MLX may draw in any way, and another thread may call collectives meanwhile
            self.pending.clear()
            return
        for address in found:
            if address in numbers:
                self.taken(numbers[address])
        if not self.following:  # collectives that are called from now on may get the addresses of freed operations
            self.pending.clear()
        self._spent += time.perf_counter() - began
