"""What a cell logged, drawn as an SVG without script: it stays in a saved notebook, and needs no kernel to be seen.

One panel for each name. The line is the mean of the ranks, the band reaches from the least to the most of them; where
there are more steps than pixels, both are over the steps of a pixel. Earlier runs are pale lines.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from allranks_backends.plan import rank_label

from .axis import ticks
from .curves import Curves, figure

MOST_PANELS = 6
WIDTH, GAP = 560, 20
"""Pixels of the picture, and between two panels of a row."""
HEIGHT, TITLE, AXIS, MARGIN = 110, 24, 20, 46
"""Pixels of a panel's chart, of the line above it, of the figures below it, and of those to its left."""
LINE, TEXT, GRID = "#2f7fd8", "#767676", "#808080"
"""Colours that can be read on a white page and on a dark one: a picture is not told which it is on."""
NOT_FINITE = "#d0433b"
PALE = f'stroke="{GRID}" stroke-opacity="0.45"'

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Band:
    """The points of one name over all ranks, by step."""

    name: str
    ranks: tuple[int, ...]
    steps: Floats
    """Rising; of each column of pixels the last step."""
    least: Floats
    mean: Floats
    most: Floats
    """NaN where no value is finite."""
    first: float
    last: float
    """The means at the first and at the last step."""

    def said(self) -> str:
        return f"{self.name} {short(self.first)} → {short(self.last)}"


def bands(curves: Curves) -> list[Band]:
    """A band for each name of which there are points."""
    columns = WIDTH // 2 if len(curves.by_name()) == 1 else WIDTH // 4
    return [_band(name, by_rank, columns) for name, by_rank in curves.by_name().items()]


def _band(name: str, by_rank: dict[int, Sequence[tuple[float, float]]], columns: int) -> Band:
    points = np.array([point for of_rank in by_rank.values() for point in of_rank], dtype=np.float64)
    points = points[np.argsort(points[:, 0], kind="stable")]
    steps, values = points[:, 0], points[:, 1]
    finite = np.isfinite(values)
    starts = _starts(steps, columns)
    count = np.add.reduceat(finite.astype(np.float64), starts)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.add.reduceat(np.where(finite, values, 0.0), starts) / count
        least = np.where(count > 0, np.minimum.reduceat(np.where(finite, values, np.inf), starts), np.nan)
        most = np.where(count > 0, np.maximum.reduceat(np.where(finite, values, -np.inf), starts), np.nan)
    ends = np.append(starts[1:], len(steps)) - 1
    first, last = (float(np.mean(values[steps == step])) for step in (steps[0], steps[-1]))
    return Band(name, tuple(sorted(by_rank)), steps[ends], least, mean, most, first, last)


def _starts(steps: Floats, columns: int) -> NDArray[np.intp]:
    """Where the points of each column begin: one for each step, or as many columns as there are."""
    keys = np.unique(steps, return_inverse=True)[1] if len(steps) else np.zeros(0)
    if len(keys) and keys[-1] >= columns:
        span = steps[-1] - steps[0]
        keys = np.minimum((steps - steps[0]) / span * columns, columns - 1).astype(np.intp)
    return np.flatnonzero(np.diff(keys, prepend=-1))


def curve_text(found: Sequence[Band], heading: str) -> str:
    """The same in a line: each name with its first and its last value."""
    said = [band.said() for band in found[:MOST_PANELS]]
    if left := len(found) - len(said):
        said.append(f"{left} more")
    return f"{', '.join(said)} ({heading})"


def curve_picture(found: Sequence[Band], heading: str, before: Mapping[str, Sequence[Band]] | None = None) -> str:
    """An SVG of at most `MOST_PANELS` names, in two columns where there are several.

    `heading` stands above them; `before` has the bands of earlier runs by name.
    """
    drawn = found[:MOST_PANELS]
    across = min(len(drawn), 2)
    width = (WIDTH - GAP * (across - 1)) / across
    tall = TITLE + HEIGHT + AXIS
    ranks = sorted({rank for band in drawn for rank in band.ranks})
    how = f"{rank_label(tuple(ranks))}: mean, and from least to most" if len(ranks) > 1 else rank_label(tuple(ranks))
    if before:
        how += " · pale: runs before"
    parts = [_text(8, 13, heading), _text(WIDTH, 13, how, "end")]
    for number, band in enumerate(drawn):
        x, y = (number % across) * (width + GAP), 20 + (number // across) * tall
        parts += _panel(band, (before or {}).get(band.name, ()), x + MARGIN, y + TITLE, width - MARGIN)
    height = 20 + math.ceil(len(drawn) / across) * tall
    if left := len(found) - len(drawn):
        names = ", ".join(band.name for band in found[MOST_PANELS : MOST_PANELS + 8])
        parts.append(_text(8, height + 13, f"{left} more: {names}{'' if left <= 8 else ' …'} (%distributed watch log)"))
        height += 20
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{_said(curve_text(found, heading), 1000)}" '
        f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" style="max-width:100%" '
        f'font-family="system-ui,sans-serif" font-size="11" fill="{TEXT}">{"".join(parts)}</svg>'
    )


def _panel(band: Band, before: Sequence[Band], left: float, top: float, width: float) -> Iterator[str]:
    """One chart, whose area begins at `left`, `top`."""
    yield _text(left, top - 7, _cut(band.name, width - 60), weight="bold")
    yield _text(left + width, top - 7, short(band.last), "end", NOT_FINITE if not math.isfinite(band.last) else LINE)
    low, high, first, last = _range([band, *before])

    def x(steps: Floats) -> Floats:
        return left + width * ((steps - first) / (last - first) if last > first else np.zeros(len(steps)))

    scale = HEIGHT / (high - low)

    def y(values: Floats) -> Floats:
        return top + HEIGHT - (values - low) * scale

    for tick in ticks(low, high, 4):
        at = top + HEIGHT - (tick - low) * scale
        yield f'<path d="M{left:.0f} {at:.1f}h{width:.0f}" stroke="{GRID}" stroke-opacity="0.25"/>'
        yield _text(left - 6, at + 4, short(tick), "end")
    for tick in ticks(first, last, 5) if last > first else [first]:
        share = (tick - first) / (last - first) if last > first else 0.0
        anchor = "start" if share < 0.02 else "end" if share > 0.94 else "middle"
        yield _text(left + width * share, top + HEIGHT + 14, short(tick), anchor)
    for other in before:
        for run in _runs(np.isfinite(other.mean)):
            yield _line(_points(x(other.steps[run]), y(other.mean[run])), PALE, 1.2)
    for run in _runs(np.isfinite(band.mean)):
        mean, least, most = (_points(x(band.steps[run]), y(of[run])) for of in (band.mean, band.least, band.most))
        if len(band.ranks) > 1 or len(band.steps) > width / 2 - 60:
            yield f'<path d="M{"L".join([*most, *reversed(least)])}z" fill="{LINE}" fill-opacity="0.22"/>'
        yield _line(mean, f'stroke="{LINE}"', 1.6)


def _range(found: Sequence[Band]) -> tuple[float, float, float, float]:
    """The least and the greatest value, and the first and the last step, of all of these."""
    steps, values = (
        np.concatenate(each) for each in zip(*[(each.steps, of) for each in found for of in (each.least, each.most)])
    )
    known = values[np.isfinite(values)]
    low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)
    if high - low < 1e-300:
        low, high = low - (abs(low) or 1.0) * 0.5, high + (abs(high) or 1.0) * 0.5
    return low, high, float(steps.min()), float(steps.max())


def _line(points: Sequence[str], how: str, width: float) -> str:
    """Through these points; where there is only one, a dot."""
    path = "L".join(points) + ("h0" if len(points) == 1 else "")
    ends = 'stroke-linejoin="round" stroke-linecap="round"'
    return f'<path d="M{path}" fill="none" {how} stroke-width="{width}" {ends}/>'


def _runs(known: NDArray[np.bool_]) -> list[slice]:
    """Where values are finite without a break."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], known, [False]]).astype(np.int8)))
    return [slice(int(begin), int(end)) for begin, end in list(pairwise(edges))[::2]]


def _points(x: Floats, y: Floats) -> list[str]:
    return [f"{a:.1f} {b:.1f}" for a, b in zip(x, y)]


def _text(x: float, y: float, text: str, anchor: str = "start", colour: str = "", weight: str = "") -> str:
    how = "".join(
        f' {name}="{value}"'
        for name, value in (("text-anchor", anchor), ("fill", colour), ("font-weight", weight))
        if value and value != "start"
    )
    return f'<text x="{x:.0f}" y="{y:.0f}"{how}>{_said(text)}</text>'


def _cut(name: str, width: float) -> str:
    """As much of a name as has room."""
    room = int(width / 6.5)
    return name if len(name) <= room else f"{name[: room - 1]}…"


def _said(text: str, most: int = 100) -> str:
    """Text for an SVG, in which most control characters may not stand; a very long one is cut."""
    text = "".join(char if char.isprintable() else " " for char in text)
    return escape(text if len(text) <= most else f"{text[: most - 1]}…")


def short(value: float) -> str:
    """Four significant digits at most: 0.1234, 1,234, 12k, 3.5M, 1e-05."""
    if not math.isfinite(value):
        return str(value)
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= 10 * 1e3 and size <= abs(value) < 1e15:
            return f"{value / size:.4g}{unit}"
    return figure(float(f"{value:.4g}"))
