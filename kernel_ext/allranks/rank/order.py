"""In which order a rank evaluates its collectives: evaluation order decides, not call order.

Ranks that evaluate two pending collectives in different order swap their results silently. So after each ``mx.eval``
the oldest and the newest result still open are looked at; an evaluated one behind a pending one is noted.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

from .pending import waits_for_collective
from .trace import TRACE, now
from .void import Void, is_computed

LOOK_AT = 64
"""Open results looked at behind a pending one."""
SETTLED_AT = 4
"""Open results looked at to say that nobody waits in them; a training step has more, and each look takes its time."""


class EvaluationOrder:
    """Follows what ``mx.eval`` does to the collectives of a cell."""

    def __init__(self) -> None:
        self.void = Void()
        self.watching = False
        self.swapped: list[tuple[int, int]] = []
        """(evaluated, still pending): numbers of collectives evaluated before an older one."""
        self.pending: list[tuple[int, weakref.ref[Any]]] = []
        """Number and result of the collectives that may be pending, oldest first: the ledger adds them."""
        self.settled = 0
        """All collectives up to this number have been evaluated, for all that is known: nobody can wait in them."""

    def begin(self, *, watching: bool, after: int = 0) -> None:
        """Start a cell; the collectives up to number `after` were asked for before it."""
        self.watching, self.swapped, self.settled = watching, [], after
        self.pending.clear()

    def install(self, mx: Any) -> None:
        """Look after each ``mx.eval`` and ``mx.async_eval``; harmless the second time."""
        for name in ("eval", "async_eval"):
            function = getattr(mx, name)
            if not hasattr(function, "__wrapped__"):
                setattr(mx, name, self._followed(function))

    def _followed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        pending, void, waits = self.pending, self.void, function.__name__ == "eval"

        @functools.wraps(function, updated=())
        def call(*args: Any) -> Any:
            __tracebackhide__ = True
            began = now() if TRACE.active else 0.0
            try:
                result = function(*args)
            except BaseException:
                void.raised(args)
                raise
            if not waits:
                void.ask(args)
            elif void.asked:
                void.asked.clear()
            if began:
                TRACE.evaluation(began)
            # Inside mx.compile an eval raises before this is reached.
            if pending:
                # To look at an array takes 2 microseconds, a collective in shared memory 15: the usual step is known
                # without. Its one collective was evaluated by itself.
                if len(pending) == 1 and len(args) == 1 and pending[0][1]() is args[0]:
                    if waits and pending[0][0] == self.settled + 1:
                        self.settled += 1
                    pending.clear()
                else:
                    self.look(waits)
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

    def look(self, waited: bool = False) -> None:
        """Note what was evaluated out of order, and forget what is evaluated.

        Where the evaluation was `waited` for, what is evaluated now is settled as well, up to the first collective that
        nobody has any more (its result may be part of what is yet to be evaluated) or that was not followed.
        """
        pending = self.pending
        for number, result in pending if waited and len(pending) <= SETTLED_AT else ():
            array = result()
            if number != self.settled + 1 or array is None or waits_for_collective(array):
                break
            self.settled = number
        # Those before the first that anybody still has are done with.
        del pending[: next((n for n, (_, result) in enumerate(pending) if result() is not None), len(pending))]
        if len(pending) < 2:  # nothing to be out of order with
            return
        if self._evaluated(pending[0]) and self._evaluated(pending[-1]):
            pending.clear()  # one evaluation took them all, as it does in a training step
            return
        while pending and self._evaluated(pending[0]):
            pending.pop(0)
        for entry in [entry for entry in pending[1:LOOK_AT] if self._evaluated(entry)]:
            self.swapped.append((entry[0], pending[0][0]))
            pending.remove(entry)

    @staticmethod
    def _evaluated(entry: tuple[int, weakref.ref[Any]]) -> bool:
        array = entry[1]()
        return array is None or not waits_for_collective(array)
