"""How the cost of something grows with its size: in this thread's processor time, on any machine, busy or not."""

from __future__ import annotations

import time
from collections.abc import Callable

TIMES = 4


def growth(work: Callable[[int], object], size: int) -> float:
    """How many times as long `work(4 * size)` takes as `work(size)`: about 4 if in proportion, 16 if by the square."""
    return _seconds(work, TIMES * size) / _seconds(work, size)


def _seconds(work: Callable[[int], object], size: int) -> float:
    """The best of five: what disturbs only adds."""
    taken = []
    for _ in range(5):
        before = time.thread_time()
        work(size)
        taken.append(time.thread_time() - before)
    return min(taken)
