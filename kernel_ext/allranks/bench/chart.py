"""The chart of a bench: busbw over size, as an SVG without script."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from allranks.units import size_text
from allranks_widgets.axis import ticks

from .bus_bandwidth import BenchRow

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_DASHES = ("", "6 3", "2 3", "8 3 2 3")
"""Dash patterns, so that lines differ not only by colour."""


def chart(series: Mapping[str, Sequence[BenchRow]]) -> str:
    """busbw over size as an SVG, with size on a logarithmic axis; empty if fewer than two sizes were measured."""
    rows = [row for each in series.values() for row in each]
    powers = sorted({round(math.log2(row.nbytes)) for row in rows})
    if len(powers) < 2:
        return ""
    left, top, width, height = 54, 12, 420, 180
    ceiling = max(row.busbw for row in rows) / 1e9

    def x(nbytes: int) -> float:
        return left + width * (math.log2(nbytes) - powers[0]) / (powers[-1] - powers[0])

    def y(gigabytes: float) -> float:
        return top + height * (1 - gigabytes / ceiling)

    parts = [
        f'<line x1="{left}" x2="{left + width}" y1="{y(at):.1f}" y2="{y(at):.1f}" stroke="currentColor" opacity="0.2"/>'
        f'<text x="{left - 6}" y="{y(at) + 4:.1f}" text-anchor="end">{at:g}</text>'
        for at in ticks(0.0, ceiling, 4)
    ]
    step = math.ceil(len(powers) / 6)
    parts += [
        f'<text x="{x(1 << power):.1f}" y="{top + height + 16}" text-anchor="middle">{size_text(1 << power)}</text>'
        for power in powers[::step]
    ]
    for number, (name, line) in enumerate(series.items()):
        points = " ".join(f"{x(row.nbytes):.1f},{y(row.busbw / 1e9):.1f}" for row in line)
        look = f'stroke="{_COLOURS[number % len(_COLOURS)]}" stroke-dasharray="{_DASHES[number % len(_DASHES)]}"'
        legend = left + width + 16, top + 8 + 18 * number
        parts += [
            f'<polyline points="{points}" fill="none" stroke-width="2" {look}/>',
            f'<line x1="{legend[0]}" x2="{legend[0] + 26}" y1="{legend[1]}" y2="{legend[1]}" stroke-width="2" {look}/>',
            f'<text x="{legend[0] + 32}" y="{legend[1] + 4}">{escape(name)}</text>',
        ]
    tall = max(top + height + 40, top + 18 * len(series) + 8)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="busbw over size" viewBox="0 0 700 {tall}" '
        f'style="max-width:700px;display:block" font-size="11" fill="currentColor" font-family="sans-serif">'
        f'{"".join(parts)}<text x="{left}" y="{top + height + 34}">busbw in GB/s over bytes of the array</text></svg>'
    )
