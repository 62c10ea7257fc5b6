"""Which of the user's arrays hold garbage, since a collective was broken off while they were computed.

MLX lets what is on its way come to its end, keeps the arrays, and raises nothing when they are looked at later
(0.32.4). What is known of them: what ``mx.eval`` was asked for when it raised, what ``mx.async_eval`` was asked for and
nobody has waited for since, results of collectives that were not followed to their end, and what the line names in
which the cell was stopped.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .variables import leaves

ASKED = 8
"""Calls of ``mx.async_eval`` remembered: more are seldom on their way."""

Arrays = list[weakref.ref[Any]]


class Void:
    """Arrays are held by weak references: what is made anew is forgotten."""

    def __init__(self) -> None:
        self.asked: deque[Arrays] = deque(maxlen=ASKED)
        """What may be on its way."""
        self._raised: Arrays = []
        self._arrays: Arrays = []

    def begin_cell(self) -> None:
        """What raised in the cell before is settled."""
        self._raised = []

    def ask(self, args: Any) -> None:
        """``mx.async_eval`` was called."""
        self.asked.append(_arrays(args))

    def raised(self, args: Any) -> None:
        """``mx.eval`` or ``mx.async_eval`` raised, or was interrupted."""
        self._raised += _arrays(args)

    def break_off(self, *more: Any) -> Arrays:
        """The world was broken: what was on its way holds garbage, as do `more`, if they have been computed.

        Returns those arrays.
        """
        found = [reference for asked in self.asked for reference in asked] + self._raised + _arrays(more)
        found = [reference for reference in found if _computed(reference())]
        self._arrays = [reference for reference in self._arrays if reference() is not None] + found
        self.asked.clear()
        self._raised = []
        return found

    def names(self, variables: Mapping[str, Any], arrays: Arrays | None = None) -> list[str]:
        """Those of the user's variables that are, or hold, such arrays, or some of them."""
        references = self._arrays if arrays is None else arrays
        alive = {id(array): array for reference in references if (array := reference()) is not None}
        return sorted(name for name, value in variables.items() if alive and any(id(a) in alive for a in _of(value)))


def _arrays(value: Any) -> Arrays:
    return [weakref.ref(array) for array in _of(value)]


def _of(value: Any) -> Iterator[Any]:
    """The MLX arrays in a value; those of an optimizer are in its state."""
    import mlx.core as mx

    state = getattr(value, "state", None) if type(value).__module__.startswith("mlx.") else None
    held: Iterable[Any] = (value, state) if isinstance(state, dict) else (value,)
    return (leaf for each in held for _, leaf in leaves(each) if isinstance(leaf, mx.array))


def _computed(array: Any) -> bool:
    """Whether there is an array, with values: one that is yet to be computed raises when that is tried."""
    from .variables import is_pending

    return array is not None and not is_pending(array)
