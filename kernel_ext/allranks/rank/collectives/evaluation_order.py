"""Tracks the order in which a rank evaluates its collectives: ranks pair them in that order, not in call order.

Ranks that evaluate two pending collectives in different order swap their results silently. So after each ``mx.eval``
or ``mx.async_eval``, open results, which may still be pending, are checked, oldest first. An evaluated result behind a
pending one is noted, and so are two results that were given to one evaluation in an order other than call order. A
check is one read of an array's status (see `array_status`). Each evaluation takes a few checks, and one more for each
collective that is complete. If statuses cannot be read, order is not tracked: MLX's drawing would take longer than the
training.

Which results are checked depends only on the open results, so a second check, after one rank has evaluated something of
its own, adds nothing. Otherwise ranks with the same order would seem to differ.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice, pairwise
from types import ModuleType
from typing import TYPE_CHECKING, Any

from allranks.messages.value_types import Args
from allranks.rank.arrays import array_status
from allranks.rank.arrays.invalid_arrays import InvalidArrays, is_computed
from allranks.rank.arrays.pending_arrays import is_collective
from allranks.rank.functions.replaced import is_replaced, leave_out_our_frames, replaced

from .aborted import FAILED, Aborted
from .predicted_order import PredictedOrder
from .record import CallCount
from .simultaneous_collectives import AtOnce
from .trace import TRACE, now

if TYPE_CHECKING:
    from mlx.core import array as Array

KEEP = 10_000
"""Maximum number of open results kept, and of evaluations out of order noted."""
LOOK_AT = 8
"""Number of pending results after which a search for evaluated results ends (see `_evaluated_behind`)."""
GIVEN = 64
"""Number of the oldest open results to compare with an evaluation's arrays; twice the number of arrays if more."""


class EvaluationOrder:
    """Tracks in which order ``mx.eval`` and ``mx.async_eval`` evaluate the collectives of a cell."""

    def __init__(self, count: CallCount, choose_path: Callable[[], None]) -> None:
        """`choose_path` decides whether calls take the slow path (`Ledger.slow`); called when that may have changed."""
        self._count, self._choose_path = count, choose_path
        self.invalid = InvalidArrays()
        self.aborted = Aborted()
        self.at_once = AtOnce()
        self.first = PredictedOrder()
        self.watching = False
        self.evaluating = False
        """Whether a thread is in ``mx.eval`` or ``mx.async_eval``."""
        self.swapped: list[tuple[int, int]] = []
        """Pairs of numbers: a collective, and an older collective that was still pending when the newer one was
        evaluated, or that followed the newer one in the arguments of one evaluation."""
        self.pending: deque[tuple[int, weakref.ref[Array]]] = deque(maxlen=KEEP)
        """Number and result of each collective that may be pending, oldest first; `wrap_collectives` adds both."""
        self.settled = 0
        """Number up to which all collectives have been evaluated, as far as is known: this rank cannot wait in them."""
        self.returned = 0
        """Number of the newest collective when ``mx.eval`` last returned: usually none up to it is in flight."""
        self.called_before = 0
        """Number of the newest collective when the cell began."""

    def begin(self, *, watching: bool, after: int = 0) -> None:
        """Start a cell. Collectives up to number `after` count as settled; if `watching`, pending ones stay tracked."""
        self.watching, self.swapped, self.settled, self.evaluating = watching, [], after, False
        reader, open_before = array_status.reader, list(self.pending)
        self.pending.clear()
        if watching and reader is not None:
            self.pending.extend(each for each in open_before if reader.is_pending(each[1]()))
        self.called_before = self._count.seq
        self.at_once.begin_cell()
        self.first.begin(watching and self._count.size > 1, ((number, result()) for number, result in self.pending))
        self._choose_path()

    def install(self, mx: ModuleType) -> None:
        """Replace ``mx.eval`` and ``mx.async_eval`` by functions that check the order, unless this was already done."""
        array_status.find(mx)
        for name in ("eval", "async_eval"):
            function = getattr(mx, name)
            if not is_replaced(function):
                setattr(mx, name, replaced(function, self._followed(function)))

    def _followed(self, function: Callable[..., object]) -> Callable[..., object]:
        order, pending, invalid, waits = self, self.pending, self.invalid, function.__name__ == "eval"
        count, choose_path = self._count, self._choose_path
        aborted, at_once, trace, first = self.aborted, self.at_once, TRACE, self.first

        def call(*args: object, **kwargs: object) -> object:
            began = now() if trace.active else 0.0
            try:
                alone = not order.evaluating
                if not alone:
                    at_once.two_threads()
                    choose_path()
                order.evaluating = True
                if at_once.active:
                    at_once.before()
                oldest = 0  # number of open results given, if they are the oldest ones in call order; else 0
                if pending:
                    try:
                        # A usual step has one collective: save the function call.
                        one = len(args) == 1 and pending[0][1]() is args[0] is not None
                        oldest = 1 if one else order._given(args)
                    except (IndexError, RuntimeError):  # another user thread evaluates too, and has removed the result
                        pass
                # A graph that another thread evaluates must not be walked.
                if first.pending and not oldest and alone and len(first.pending) + len(first.order) > 1:
                    first.foresee(_leaves(args))
                result = function(*args, **kwargs) if kwargs else function(*args)
                order.evaluating = False
                if aborted.owed is not None or FAILED[0]:
                    aborted.raise_owed()
            except BaseException as error:
                order.evaluating = False
                invalid.raised(args)
                aborted.raised(error)
                leave_out_our_frames(error)
                raise
            if not waits:
                invalid.ask(args)
            else:
                order.returned = count.seq
                if invalid.asked:
                    invalid.asked.clear()
            if began:
                trace.evaluation(began)
            if at_once.active:
                at_once.after(waited=waits)
            # Inside mx.compile an eval raises before this is reached.
            if pending:
                try:
                    if oldest == 1:
                        number = pending.popleft()[0]
                        if first.pending:
                            first.taken(number)
                        if waits and number == order.settled + 1:
                            order.settled = number
                    elif oldest:
                        order._took(oldest, waits)
                    else:
                        order.look(waits)
                except IndexError:  # the other thread has removed the result
                    pass
            return result

        return call

    def last_entered(self) -> Array | None:
        """The result of the newest evaluated collective that is not known to be settled; None if there is none."""
        for number, result in reversed(self.pending):
            if number <= self.settled:
                break
            if is_computed(array := result()):
                return array
        return None

    def _given(self, args: Args) -> int:
        """The number of open results in `args`, if these are the oldest ones in call order; else 0.

        Other arrays may follow only if `args` begins with all open results. If the number is not 0, no evaluation out
        of order is possible, and no check is needed. Results in another order are noted, since MLX's order of
        evaluation depends on the order of the arguments.
        """
        pending, arrays = self.pending, args[0] if len(args) == 1 and type(args[0]) in (list, tuple) else args
        for array, (_, result) in zip(arrays, pending, strict=False):
            if array is None or array is not result():
                break
        else:
            return min(len(arrays), len(pending))
        leaves = _leaves(args)
        if len(leaves) < 2:
            return 0
        for leaf, (_, result) in zip(leaves, pending, strict=False):
            if leaf is None or leaf is not result():
                break
        else:
            return min(len(leaves), len(pending))
        oldest = [(number, result()) for number, result in islice(pending, max(GIVEN, 2 * len(leaves)))]
        numbers = {id(array): number for number, array in oldest if array is not None}
        given = [(numbers[id(leaf)], leaf) for leaf in leaves if id(leaf) in numbers]
        reader = array_status.reader
        if reader is not None and any(late > early for (late, _), (early, _) in pairwise(given)):
            still = [number for number, leaf in given if reader.is_pending(leaf)]
            swapped = [(late, early) for late, early in pairwise(still) if late > early]
            self.swapped += swapped[: KEEP - len(self.swapped)]
        return 0

    def _took(self, count: int, waited: bool) -> None:
        """Remove the `count` oldest open results. If not `waited`, their evaluation may still be under way."""
        pending = self.pending
        for _ in range(count):
            number = pending.popleft()[0]
            self.first.passed(number)  # MLX does not evaluate arrays in the order given
            if waited and number == self.settled + 1:
                self.settled = number

    def look(self, waited: bool = False) -> None:
        """Note the open results that were evaluated out of order, and forget the evaluated ones.

        If the last evaluation was `waited` for, evaluated collectives count as settled, up to the first collective that
        was not tracked, or whose result no code holds any more (an array that is yet to be evaluated may need it).
        """
        pending, reader = self.pending, array_status.reader
        if reader is None:
            pending.clear()
            return
        while pending:
            number, result = pending[0]
            if (array := result()) is not None:
                if reader.is_pending(array):
                    evaluated = self._evaluated_behind(reader.is_pending)
                    if not evaluated:
                        return
                    # An array that was changed in place (y += 1) is pending, but is no longer the collective's result.
                    if is_collective(array):
                        self._note(evaluated, number)
                        return
                else:
                    self.first.passed(number)
                    if waited and number == self.settled + 1:
                        self.settled = number
            pending.popleft()

    def _evaluated_behind(self, is_pending: Callable[[object], bool | None]) -> list[int]:
        """Positions of the results behind the oldest one that were evaluated or that no code holds any more.

        Searches from the oldest result and from the newest; each search ends after `LOOK_AT` pending results.
        """
        pending = self.pending
        found: list[int] = []

        def search(places: range) -> int:
            left = LOOK_AT
            for place in places:
                array = pending[place][1]()
                if array is None or not is_pending(array):
                    found.append(place)
                elif not (left := left - 1):
                    return place
            return len(pending)

        near = search(range(1, len(pending)))
        search(range(len(pending) - 1, near, -1))
        return sorted(found)

    def _note(self, places: list[int], oldest: int) -> None:
        """Note that the results at `places` were evaluated before the `oldest` one, and forget them."""
        for place in places[: KEEP - len(self.swapped)]:
            self.swapped.append((self.pending[place][0], oldest))
        for place in reversed(places):
            del self.pending[place]


def _leaves(args: Args) -> list[Any]:
    leaves: list[Any] = []
    _flatten(args, leaves)
    return leaves


def _flatten(value: Iterable[object], leaves: list[Any]) -> None:
    """Append the leaves of the lists, tuples and dicts in `value` to `leaves`, in the order in which MLX finds them."""
    for each in dict.values(value) if isinstance(value, dict) else value:
        if isinstance(each, (list, tuple, dict)):
            _flatten(each, leaves)
        else:
            leaves.append(each)
