"""Which of the user's arrays may be invalid, since a collective was aborted while they were computed.

MLX lets what is on its way come to its end, keeps the arrays, and raises nothing when they are looked at later
(0.32.4). What is known of them: what ``mx.eval`` was asked for when it raised, what ``mx.async_eval`` was asked for and
has not been waited for, and what else the caller finds: the result of the collective, what the line names in which the
cell stood.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .pending import MOST_LEAVES, is_pending, pending_names

ASKED = 8
"""Calls of ``mx.async_eval`` remembered: more are seldom on their way."""

PENDING_WITHIN = 0.5
"""Seconds of processor time spent on finding arrays that wait for collectives."""

PLAIN = frozenset({int, float, complex, bool, str, bytes, type(None)})
"""Types that hold no array."""

Arrays = list[weakref.ref[Any]]


class InvalidArrays:
    """Arrays are held by weak references: what is recomputed is forgotten."""

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
        self.asked.append(_references(args))

    def raised(self, args: Any) -> None:
        """``mx.eval`` or ``mx.async_eval`` raised, or was interrupted."""
        self._raised += _references(args)

    def on_its_way(self) -> set[int]:
        """The ``id`` of each array that may be on its way."""
        return {id(array) for asked in self.asked for reference in asked if (array := reference()) is not None}

    def watch(self, streams: list[Any], whole: Callable[[], bool]) -> None:
        """Forget what is on its way over `streams` once it has come to its end, if the world is `whole` then.

        Does not wait for that here.
        """
        import mlx.core as mx

        asked = list(self.asked)

        def wait() -> None:
            try:
                for stream in streams:
                    mx.synchronize(stream)
            except RuntimeError:
                return  # that was no right end
            for each in asked if whole() else ():
                if each in self.asked:
                    self.asked.remove(each)

        threading.Thread(target=wait, name="allranks-on-its-way", daemon=True).start()

    def break_off(self, left: list[Any], *more: Any) -> Arrays:
        """The world was broken: what was on its way may be invalid, and so may `more`, if it has been computed.

        `left` are arrays that are to be computed from it. Returns all those arrays.
        """
        found = [reference for asked in self.asked for reference in asked] + self._raised + _references(more)
        found = [reference for reference in found if is_computed(reference())] + [weakref.ref(array) for array in left]
        self._arrays = [reference for reference in self._arrays if reference() is not None] + found
        self.asked.clear()
        self._raised = []
        return found

    def mark(self, value: Any) -> None:
        """The arrays in `value` came from another process, where they may have been invalid."""
        self._arrays += _references(value)

    def give_up(self, variables: Mapping[str, Any]) -> list[str]:
        """Arrays that wait for collectives are invalid, as these do not run as meant. Returns names that are new."""
        known = self.names(variables)
        found = [name for name in pending_names(variables, within=PENDING_WITHIN) if name not in known]
        self._arrays += _references([each for name in found for each in arrays_in(variables[name]) if is_pending(each)])
        return found

    def names(self, variables: Mapping[str, Any], arrays: Arrays | None = None) -> list[str]:
        """Those of the user's variables that are, or hold, such arrays, or some of them."""
        alive = self.alive(arrays)
        if not alive:
            return []
        return sorted(name for name, value in variables.items() if any(id(each) in alive for each in arrays_in(value)))

    def alive(self, arrays: Arrays | None = None) -> dict[int, Any]:
        """Such arrays, or those of them, by their ``id``."""
        references = self._arrays if arrays is None else arrays
        return {id(array): array for reference in references if (array := reference()) is not None}


def arrays_in(value: Any) -> Iterator[Any]:
    """The MLX arrays in a value, through lists, tuples, dicts (an ``nn.Module`` is one) and the states of optimizers.

    No method of the user's own is called, and no more than `MOST_LEAVES` things are looked at.
    """
    import mlx.core as mx

    waiting, looked_at = [value], 0
    while waiting and looked_at < MOST_LEAVES:
        each = waiting.pop()
        looked_at += 1
        room, inside = MOST_LEAVES - looked_at, list[Any]()
        if isinstance(each, mx.array):
            yield each
        elif isinstance(each, dict):
            inside = list(dict.values(each))[:room]
        elif isinstance(each, list):
            inside = list.__getitem__(each, slice(room))
        elif isinstance(each, tuple):
            inside = list(tuple.__getitem__(each, slice(room)))
        elif type(each).__module__.startswith("mlx.optimizers"):
            inside = [getattr(each, "state", None)]
        found = [one for one in inside if type(one) not in PLAIN]  # a list of numbers costs next to nothing
        looked_at += len(inside) - len(found)
        waiting += found


def is_computed(array: Any) -> bool:
    """Whether there is an array, with values: one that is yet to be computed raises when that is tried."""
    return array is not None and not is_pending(array)


def _references(value: Any) -> Arrays:
    return [weakref.ref(array) for array in arrays_in(value)]
