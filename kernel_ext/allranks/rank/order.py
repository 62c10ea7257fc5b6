"""In which order a rank evaluates its collectives: evaluation order decides, not call order.

Ranks that evaluate two pending collectives in different order swap their results silently. So after each ``mx.eval``
the oldest and the newest result still open are looked at; an evaluated one behind a pending one is noted.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

from . import transforms
from .pending import waits_for_collective

LOOK_AT = 64
"""Open results looked at behind a pending one."""


class EvaluationOrder:
    """The collectives' results that may be pending, oldest first."""

    def __init__(self) -> None:
        self.watching = False
        self.swapped: list[tuple[int, int]] = []
        """(evaluated, still pending): numbers of collectives evaluated before an older one."""
        self._open: list[tuple[int, weakref.ref[Any]]] = []

    def begin(self, *, watching: bool) -> None:
        """Start a cell."""
        self.watching, self.swapped, self._open = watching, [], []

    def add(self, seq: int, result: Any) -> None:
        """A collective was asked for."""
        if not transforms.inside():
            self._open.append((seq, weakref.ref(result)))

    def install(self, mx: Any) -> None:
        """Look after each ``mx.eval`` and ``mx.async_eval``; harmless the second time."""
        for name in ("eval", "async_eval"):
            function = getattr(mx, name)
            if not hasattr(function, "__wrapped__"):
                setattr(mx, name, self._followed(function))

    def _followed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function, updated=())
        def call(*args: Any) -> Any:
            __tracebackhide__ = True
            result = function(*args)
            # Inside mx.compile an eval raises before this is reached.
            if self.watching and self._open:
                self.look()
            return result

        return call

    def look(self) -> None:
        """Note what was evaluated out of order, and forget what is evaluated."""
        if self._evaluated(self._open[0]) and self._evaluated(self._open[-1]):
            self._open.clear()  # one evaluation took them all, as it does in a training step
            return
        while self._open and self._evaluated(self._open[0]):
            self._open.pop(0)
        for entry in [entry for entry in self._open[1:LOOK_AT] if self._evaluated(entry)]:
            self.swapped.append((entry[0], self._open[0][0]))
            self._open.remove(entry)

    @staticmethod
    def _evaluated(entry: tuple[int, weakref.ref[Any]]) -> bool:
        array = entry[1]()
        return array is None or not waits_for_collective(array)
