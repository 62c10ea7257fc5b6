"""Time one operation at one size, in all ranks that take part: check the values, warm up, then time each call.

`measure` needs only a joined MLX world, so the same loop also runs in ranks started from a shell (`benchmarks.busbw`).
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from allranks.messages.bench_payload import ITEM, usable_bytes

if TYPE_CHECKING:
    from mlx.core import array as Array
    from numpy.typing import NDArray

FEWEST, MOST = 4, 1000
"""Minimum number of timed calls, however slow they are, and maximum."""
WARM_UP = 0.2
"""Time for the warm-up, as a fraction of the time for the timed calls."""
PATTERN = 97
"""Period of the values, in elements: a prime, so that a block in the wrong place is detected."""


def measure(op: str, nbytes: int, seconds: float, link: tuple[int, int] | None = None) -> NDArray[np.float64]:
    """Seconds of each timed call, as a float64 array; together they take about `seconds`.

    Every rank of the world calls `measure` with the same arguments, and each call passes `usable_bytes` of float32 to
    `op`. With a `link` (source, target) only these two ranks call `measure`: `nbytes` travel there and back, and a time
    is half of the round trip. One rank decides the number of calls for all. Raises RuntimeError on all ranks if a
    result is wrong on any.
    """
    taking: _Taking = _Link(nbytes, *link) if link is not None else _Collective(op, nbytes)
    try:
        taking.call()  # the first call connects and allocates buffers
        _raise_if_wrong(taking, op, nbytes)
        before = taking.agreed(_fitting(WARM_UP * seconds, _timed(taking.call, 1)[0], fewest=2))
        calls = taking.agreed(_fitting(seconds, median(_timed(taking.call, before)), fewest=FEWEST))
        times = _timed(taking.call, calls)
        _raise_if_wrong(taking, op, nbytes)
    finally:
        del taking
        _free_memory()
    return times / (2 if link is not None else 1)


def in_cell(op: str, nbytes: int, seconds: float, link: tuple[int, int] | None) -> None:
    """Call `measure` and make the times the cell's value; as an expression they would also set the user's ``_``."""
    displayhook: Any = sys.displayhook  # IPython's, while a cell runs
    displayhook.exec_result.result = measure(op, nbytes, seconds, link)


def _fitting(seconds: float, each: float, *, fewest: int) -> int:
    return min(max(int(seconds / max(each, 1e-9)), fewest), MOST)


def _timed(call: Callable[[], None], calls: int) -> NDArray[np.float64]:
    times, clock = np.empty(calls), time.perf_counter
    collected = gc.isenabled()
    gc.disable()  # keep garbage collection out of the timings
    try:
        for i in range(calls):
            before = clock()
            call()
            times[i] = clock() - before
    finally:
        if collected:
            gc.enable()
    return times


def _raise_if_wrong(taking: _Taking, op: str, nbytes: int) -> None:
    if wrong := taking.total(not taking.right()):
        ranks = "1 rank" if wrong == 1 else f"{wrong} ranks"
        raise RuntimeError(f"{op} of {nbytes} bytes gave wrong values on {ranks}")


def _free_memory() -> None:
    import mlx.core as mx

    mx.clear_cache()


def _values(rank: int, count: int) -> NDArray[np.float32]:
    """The input of `rank`: whole numbers, so that their sums are exact in float32."""
    pattern = np.roll(np.arange(PATTERN, dtype=np.float32), 31 * rank)
    return _repeated(pattern, count)


def _repeated(pattern: NDArray[np.float32], count: int) -> NDArray[np.float32]:
    return np.tile(pattern, count // PATTERN + 1)[:count]


class _Taking(Protocol):
    """The timed operation, and how its ranks agree on numbers."""

    def call(self) -> None:
        """Make one call and evaluate its result."""

    def right(self) -> bool:
        """Whether the last call's result is correct on this rank."""

    def total(self, number: int) -> int:
        """The sum of `number` over all ranks that take part."""

    def agreed(self, number: int) -> int:
        """The `number` that the deciding rank passed."""


class _Collective:
    """A collective that all ranks of the world enter."""

    def __init__(self, op: str, nbytes: int) -> None:
        import mlx.core as mx

        self._mx, self._op = mx, op
        world = mx.distributed.init()
        self._rank, self._size = world.rank(), world.size()
        self._count = usable_bytes(op, nbytes, self._size) // ITEM
        self._function = getattr(mx.distributed, op)
        self._x = mx.array(_values(self._rank, self._count))
        self._result: Array | None = None
        mx.eval(self._x)

    def call(self) -> None:
        self._result = self._function(self._x)
        self._mx.eval(self._result)

    def right(self) -> bool:
        result, count = np.asarray(self._result), self._count
        if self._op == "all_gather":
            parts = result.reshape(self._size, count)
            return all(np.array_equal(parts[rank], _values(rank, count)) for rank in range(self._size))
        expected = _repeated(self._reduced(), count)
        if self._op == "sum_scatter":
            expected = expected.reshape(self._size, -1)[self._rank]
        return np.array_equal(result, expected)

    def _reduced(self) -> NDArray[np.float32]:
        patterns = [_values(rank, PATTERN) for rank in range(self._size)]
        reduce: Callable[..., NDArray[np.float32]] = {"all_max": np.max, "all_min": np.min}.get(self._op, np.sum)
        return reduce(patterns, axis=0)

    def total(self, number: int) -> int:
        mx = self._mx
        return int(mx.distributed.all_sum(mx.array([number], mx.int32)).item())

    def agreed(self, number: int) -> int:
        return self.total(number if self._rank == 0 else 0)


class _Link:
    """A transfer from one rank to another and back; no other rank takes part."""

    def __init__(self, nbytes: int, source: int, target: int) -> None:
        import mlx.core as mx

        self._mx = mx
        rank = mx.distributed.init().rank()
        self._first, self._other = rank == source, target if rank == source else source
        self._x = mx.array(_values(rank, nbytes // ITEM))
        self._result: Any = None
        mx.eval(self._x)

    def call(self) -> None:
        self._result = self._exchanged(self._x)

    def _exchanged(self, mine: Array) -> Any:
        """The other rank's array, of the same shape and dtype as `mine`."""
        mx, other = self._mx, self._other
        if self._first:
            mx.eval(mx.distributed.send(mine, other))
        theirs = mx.distributed.recv(mine.shape, mine.dtype, other)
        mx.eval(theirs)
        if not self._first:
            mx.eval(mx.distributed.send(mine, other))
        return theirs

    def right(self) -> bool:
        return np.array_equal(np.asarray(self._result), _values(self._other, self._result.size))

    def total(self, number: int) -> int:
        mx = self._mx
        return int(number) + int(self._exchanged(mx.array([number], mx.int32)).item())

    def agreed(self, number: int) -> int:
        return self.total(number if self._first else 0)
