"""The ticks of an axis: their positions and labels."""

from __future__ import annotations

import math
from collections.abc import Sequence

MOST_DIGITS = 5
"""Significant digits for which there is room beside an axis."""


def ticks(low: float, high: float, most: int) -> list[float]:
    """Return about `most` round numbers from `low` to `high`, at distances of 1, 2 or 5 times a power of ten.

    Empty if the range is empty or not finite, or so small that rounding would make several numbers equal.
    """
    rough = (high - low) / most
    if not max(1e-300, 1e-15 * max(abs(low), abs(high))) < rough < 1e300:
        return []
    power = 10.0 ** math.floor(math.log10(rough))
    every = next(times * power for times in (1, 2, 5, 10) if times * power >= rough * (1 - 1e-9))
    return [number * every for number in range(math.ceil(low / every - 1e-9), math.floor(high / every + 1e-9) + 1)]


def labels(at: Sequence[float]) -> list[str]:
    """Return a label for each tick, with enough digits to tell ticks apart.

    If that takes more than `MOST_DIGITS`, all labels but the first are differences from the first.
    """
    digits = 4
    if len(at) > 1:
        digits = max(digits, _power(max(map(abs, at))) - _power(at[1] - at[0]) + 1)
    if digits > MOST_DIGITS:
        return [short(at[0]), *(f"+{short(each - at[0])}" for each in at[1:])]
    return [short(each, digits) for each in at]


def _power(value: float) -> int:
    return math.floor(math.log10(value) + 1e-9)


def short(value: float, digits: int = 4) -> str:
    """Format `value` with at most `digits` significant digits, thousands with four: 0.1234, 1234, 12k, 3.5M, 1e-05."""
    if not math.isfinite(value):
        return str(value)
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if 10_000 <= abs(value) < 1e16 and size <= abs(value):
            return f"{value / size:.{digits}g}{unit}"
    return f"{value:.{max(digits, 4) if 1000 <= abs(value) < 10_000 else digits}g}"
