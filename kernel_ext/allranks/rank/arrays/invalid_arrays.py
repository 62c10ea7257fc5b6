"""Which of the user's arrays may be invalid, because a collective was aborted while they were computed.

After an abort, MLX finishes the evaluations under way, keeps their arrays, and raises nothing when they are read later
(0.32.4). Arrays may be invalid if they were given to an ``mx.eval`` or ``mx.async_eval`` that raised, or to an
``mx.async_eval`` that nothing has waited for. The caller adds others: the result of the collective, the variables named
in the line at which the cell was blocked, pending arrays, and arrays from another process that were invalid there.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import TYPE_CHECKING, TypeAlias

from .pending_arrays import MOST_LEAVES, is_pending, pending_names

if TYPE_CHECKING:
    from mlx.core import Stream
    from mlx.core import array as Array

ASKED = 8
"""Maximum number of calls of ``mx.async_eval`` remembered; more are seldom under way."""

PENDING_WITHIN = 0.5
"""Maximum seconds of processor time spent on finding arrays that wait for collectives."""

PLAIN = frozenset(
    {int, float, complex, bool, str, bytes, type, type(None), FunctionType, BuiltinFunctionType, ModuleType}
)
"""Types that hold no array."""

Arrays: TypeAlias = "list[weakref.ref[Array]]"


class InvalidArrays:
    """Holds arrays by weak references: when the user recomputes an array, the old one is forgotten."""

    def __init__(self) -> None:
        self.asked: deque[Arrays] = deque(maxlen=ASKED)
        """The arrays of each ``mx.async_eval`` that may still be under way."""
        self._raised: Arrays = []
        self._arrays: Arrays = []

    def begin_cell(self) -> None:
        """Forget the arrays of evaluations that raised in the previous cell."""
        self._raised = []

    def ask(self, args: object) -> None:
        """Note that ``mx.async_eval`` was called with `args`."""
        self.asked.append(_references(args))

    def raised(self, args: object) -> None:
        """Note that ``mx.eval`` or ``mx.async_eval``, called with `args`, raised or was interrupted."""
        self._raised += _references(args)

    def on_its_way(self) -> set[int]:
        """The ``id`` of each array whose evaluation may be under way."""
        return {id(array) for asked in self.asked for reference in asked if (array := reference()) is not None}

    def watch(self, streams: list[Stream], whole: Callable[[], bool]) -> None:
        """Forget the evaluations under way on `streams` once they are done, if the world is `whole` then.

        Returns immediately: a new thread waits for the evaluations.
        """
        import mlx.core as mx

        asked = list(self.asked)

        def wait() -> None:
            try:
                for stream in streams:
                    mx.synchronize(stream)
            except RuntimeError:
                return  # an evaluation has failed
            for each in asked if whole() else ():
                if each in self.asked:
                    self.asked.remove(each)

        threading.Thread(target=wait, name="allranks-on-its-way", daemon=True).start()

    def break_off(self, left: list[Array], *more: object) -> Arrays:
        """Mark all arrays that may be invalid now that the world is broken, and return them.

        Computed arrays are marked if they belong to an evaluation that is under way or has raised, or are in `more`.
        The arrays in `left` are pending, may depend on an aborted collective, and are all marked.
        """
        found = [reference for asked in self.asked for reference in asked] + self._raised + _references(more)
        found = [reference for reference in found if is_computed(reference())] + [weakref.ref(array) for array in left]
        self._arrays = [reference for reference in self._arrays if reference() is not None] + found
        self.asked.clear()
        self._raised = []
        return found

    def mark(self, value: object) -> None:
        """Mark the arrays in `value`, which come from another process and may have been invalid there."""
        self._arrays += _references(value)

    def give_up(self, variables: Mapping[str, object]) -> list[str]:
        """Mark the arrays in `variables` that wait for collectives: those collectives will not run as intended.

        Returns the names of the variables that are newly marked.
        """
        known = self.names(variables)
        found = [name for name in pending_names(variables, within=PENDING_WITHIN) if name not in known]
        self._arrays += _references([each for name in found for each in arrays_in(variables[name]) if is_pending(each)])
        return found

    def names(self, variables: Mapping[str, object], arrays: Arrays | None = None) -> list[str]:
        """Names of the variables that are, or hold, an array that may be invalid, or one of `arrays` if given."""
        alive = self.alive(arrays)
        if not alive:
            return []
        return sorted(name for name, value in variables.items() if any(id(each) in alive for each in arrays_in(value)))

    def alive(self, arrays: Arrays | None = None) -> dict[int, Array]:
        """The arrays that may be invalid, or `arrays` if given, as far as they still exist, by their ``id``."""
        references = self._arrays if arrays is None else arrays
        return {id(array): array for reference in references if (array := reference()) is not None}


def arrays_in(value: object) -> Iterator[Array]:
    """The MLX arrays in a value, through lists, tuples, dicts (an ``nn.Module`` is one) and the states of optimizers.

    Calls none of the user's methods, and looks at no more than `MOST_LEAVES` objects.
    """
    import mlx.core as mx

    waiting, looked_at = [value], 0
    while waiting and looked_at < MOST_LEAVES:
        each = waiting.pop()
        looked_at += 1
        room, inside = MOST_LEAVES - looked_at, list[object]()
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


def may_hold(value: object) -> bool:
    """Whether `arrays_in` looks into the value, or it is an array; costs less than a search that finds nothing."""
    import mlx.core as mx

    return isinstance(value, (mx.array, dict, list, tuple)) or type(value).__module__.startswith("mlx.optimizers")


def is_computed(array: Array | None) -> bool:
    """Whether there is an array whose evaluation has begun. (After an abort, evaluating a pending array raises.)"""
    return array is not None and not is_pending(array)


def _references(value: object) -> Arrays:
    return [weakref.ref(array) for array in arrays_in(value)]
