"""The figures of an axis: where they stand, and what they say."""

from __future__ import annotations

import math
from collections.abc import Sequence

MOST_DIGITS = 5
"""For which there is room beside an axis."""


def ticks(low: float, high: float, most: int) -> list[float]:
    """Round numbers from `low` to `high`, about `most` of them, at distances of 1, 2 or 5 times a power of ten.

    None where the range is empty or not finite, or where rounding would make one of several.
    """
    rough = (high - low) / most
    if not max(1e-300, 1e-15 * max(abs(low), abs(high))) < rough < 1e300:
        return []
    power = 10.0 ** math.floor(math.log10(rough))
    every = next(times * power for times in (1, 2, 5, 10) if times * power >= rough * (1 - 1e-9))
    return [number * every for number in range(math.ceil(low / every - 1e-9), math.floor(high / every + 1e-9) + 1)]


def labels(at: Sequence[float]) -> list[str]:
    """What to write at these ticks: as many digits as tell them apart, or how much each is more than the first."""
    digits = 4
    if len(at) > 1:
        digits = max(digits, _power(max(map(abs, at))) - _power(at[1] - at[0]) + 1)
    if digits > MOST_DIGITS:
        return [short(at[0]), *(f"+{short(each - at[0])}" for each in at[1:])]
    return [short(each, digits) for each in at]


def _power(value: float) -> int:
    return math.floor(math.log10(value) + 1e-9)


def short(value: float, digits: int = 4) -> str:
    """At most so many significant digits: 0.1234, 1234, 12k, 3.5M, 1e-05."""
    if not math.isfinite(value):
        return str(value)
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if 10_000 <= abs(value) < 1e16 and size <= abs(value):
            return f"{value / size:.{digits}g}{unit}"
    return f"{value:.{digits}g}"
