"""In which order a rank evaluates its collectives: evaluation order decides, not call order.

Ranks that evaluate two pending collectives in different order swap their results silently. So after each ``mx.eval``
the results still open are looked at, oldest first; an evaluated one behind a pending one is noted. A look is one read
of an array's status (see `computed`), and each evaluation takes a few of them, apart from one for each collective that
is done with. Where statuses cannot be read, order is not tracked: MLX's drawing would take longer than the training.

Which results are looked at depends on the open ones alone: a second look, after one rank has evaluated something of its
own, adds nothing. Otherwise ranks in the same order would seem to differ.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import computed
from .aborted import FAILED, Aborted
from .invalid import InvalidArrays, is_computed
from .pending import is_collective
from .replaced import is_replaced, leave_out_our_frames, replaced
from .trace import TRACE, now

if TYPE_CHECKING:
    from .ledger import Ledger

KEEP = 10_000
"""Open results kept, and evaluations out of order."""
LOOK_AT = 8
"""Pending results looked at behind the oldest one, and as many of the newest."""


class EvaluationOrder:
    """Follows what ``mx.eval`` does to the collectives of a cell."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.invalid = InvalidArrays()
        self.aborted = Aborted()
        self.watching = False
        self.swapped: list[tuple[int, int]] = []
        """(evaluated, still pending): numbers of collectives evaluated before an older one."""
        self.pending: deque[tuple[int, weakref.ref[Any]]] = deque(maxlen=KEEP)
        """Number and result of the collectives that may be pending, oldest first: the ledger adds them."""
        self.settled = 0
        """All collectives up to this number have been evaluated, for all that is known: nobody can wait in them."""
        self.returned = 0
        """Number of the newest collective when ``mx.eval`` last returned: no older one is in flight, as a rule."""

    def begin(self, *, watching: bool, after: int = 0) -> None:
        """Start a cell; the collectives up to number `after` were asked for before it."""
        self.watching, self.swapped, self.settled = watching, [], after
        self.pending.clear()

    def install(self, mx: Any) -> None:
        """Look after each ``mx.eval`` and ``mx.async_eval``; harmless the second time."""
        computed.find(mx)
        for name in ("eval", "async_eval"):
            function = getattr(mx, name)
            if not is_replaced(function):
                setattr(mx, name, replaced(function, self._followed(function)))

    def _followed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        pending, invalid, waits = self.pending, self.invalid, function.__name__ == "eval"
        ledger, aborted, failed = self._ledger, self.aborted, FAILED

        def call(*args: Any, **kwargs: Any) -> Any:
            began = now() if TRACE.active else 0.0
            try:
                result = function(*args, **kwargs) if kwargs else function(*args)
                if aborted.owed is not None or failed[0]:
                    aborted.raise_owed()
            except BaseException as error:
                invalid.raised(args)
                aborted.raised(error)
                leave_out_our_frames(error)
                raise
            if not waits:
                invalid.ask(args)
            else:
                self.returned = ledger.seq
                if invalid.asked:
                    invalid.asked.clear()
            if began:
                TRACE.evaluation(began)
            # Inside mx.compile an eval raises before this is reached.
            if pending:
                try:
                    # The usual step has one collective: no call for it.
                    if len(args) == 1 and pending[0][1]() is args[0] is not None:
                        number = pending.popleft()[0]
                        if waits and number == self.settled + 1:
                            self.settled = number
                    elif not self._took_oldest(args, waits):
                        self.look(waits)
                except IndexError:  # another thread of the user's evaluates too, and has taken it
                    pass
            return result

        return call

    def last_entered(self) -> Any:
        """The result of the newest collective that was evaluated, where nobody is known to have waited for it."""
        for number, result in reversed(self.pending):
            if number <= self.settled:
                break
            if is_computed(array := result()):
                return array
        return None

    def _took_oldest(self, args: tuple[Any, ...], waited: bool) -> bool:
        """Whether what was evaluated are the oldest results, in the order of the calls: no other can be open then.

        That is known without a look: a collective in shared memory takes 15 microseconds, ten of them hardly more.
        """
        pending = self.pending
        for array in args[0] if len(args) == 1 and type(args[0]) in (list, tuple) else args:
            if not pending:
                break
            number, result = pending[0]
            if array is None or result() is not array:
                return False
            pending.popleft()
            if waited and number == self.settled + 1:
                self.settled = number
        return True

    def look(self, waited: bool = False) -> None:
        """Note what was evaluated out of order, and forget what is evaluated.

        Where the evaluation was `waited` for, what is evaluated now is settled as well, up to the first collective that
        nobody has any more (its result may be part of what is yet to be evaluated) or that was not tracked.
        """
        pending, reader = self.pending, computed.reader
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
                    # An array that was changed in place (y += 1) is pending again, without its collective.
                    if is_collective(array):
                        self._note(evaluated, number)
                        return
                elif waited and number == self.settled + 1:
                    self.settled = number
            pending.popleft()

    def _evaluated_behind(self, is_pending: Callable[[Any], bool | None]) -> list[int]:
        """Where evaluated results are behind the oldest one: near it, and near the newest."""
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
        """The results there were evaluated before the oldest one."""
        for place in places[: KEEP - len(self.swapped)]:
            self.swapped.append((self.pending[place][0], oldest))
        for place in reversed(places):
            del self.pending[place]
