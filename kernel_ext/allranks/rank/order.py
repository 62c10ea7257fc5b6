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

LOOK_AT = 64
"""Open results looked at behind a pending one."""


class EvaluationOrder:
    """Follows what ``mx.eval`` does to the collectives of a cell."""

    def __init__(self) -> None:
        self.watching = False
        self.swapped: list[tuple[int, int]] = []
        """(evaluated, still pending): numbers of collectives evaluated before an older one."""
        self.pending: list[tuple[int, weakref.ref[Any]]] = []
        """Number and result of the collectives that may be pending, oldest first: the ledger adds them."""

    def begin(self, *, watching: bool) -> None:
        """Start a cell."""
        self.watching, self.swapped = watching, []
        self.pending.clear()

    def install(self, mx: Any) -> None:
        """Look after each ``mx.eval`` and ``mx.async_eval``; harmless the second time."""
        for name in ("eval", "async_eval"):
            function = getattr(mx, name)
            if not hasattr(function, "__wrapped__"):
                setattr(mx, name, self._followed(function))

    def _followed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        pending = self.pending

        @functools.wraps(function, updated=())
        def call(*args: Any) -> Any:
            __tracebackhide__ = True
            began = now() if TRACE.active else 0.0
            result = function(*args)
            if began:
                TRACE.evaluation(began)
            # Inside mx.compile an eval raises before this is reached.
            if pending:
                # To look at an array takes 2 microseconds, a collective in shared memory 15: the usual step is known
                # without. Its one collective was evaluated by itself.
                if len(pending) == 1 and len(args) == 1 and pending[0][1]() is args[0]:
                    pending.clear()
                else:
                    self.look()
            return result

        return call

    def look(self) -> None:
        """Note what was evaluated out of order, and forget what is evaluated."""
        pending = self.pending
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
