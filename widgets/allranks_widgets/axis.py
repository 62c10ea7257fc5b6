"""Where the figures of an axis stand."""

from __future__ import annotations

import math


def ticks(low: float, high: float, most: int) -> list[float]:
    """At most so many round numbers from `low` to `high`, at distances of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / most
    if not 1e-300 < rough < 1e300:
        return []
    power = 10.0 ** math.floor(math.log10(rough))
    every = next(times * power for times in (1, 2, 5, 10) if times * power >= rough * (1 - 1e-9))
    return [number * every for number in range(math.ceil(low / every - 1e-9), math.floor(high / every + 1e-9) + 1)]
