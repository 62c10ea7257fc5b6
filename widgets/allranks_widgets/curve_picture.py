"""Values that a cell logged, drawn as an SVG without script: it stays in a saved notebook and needs no kernel.

There is one panel for each name, up to `MOST_PANELS`. The line is the mean over ranks, and the band reaches from their
minimum to their maximum. If there are more steps than columns of about two pixels, line and band are over all steps of
a column. A noisy line is drawn thin, under a thicker, smoothed line. Earlier runs are pale lines. If they have names,
these lines are solid, dashed or dotted (the newest is solid), and a legend below the panels names the runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise

import numpy as np
from numpy.typing import NDArray

from allranks_backends.plan import rank_label

from .axis import labels, short, ticks
from .curves import Curves
from .status import printable
from .svg_text import BAD, GRID, LINE, WIDTH, Picture, cut, escaped, svg_text

MOST_PANELS = 6
GAP = 24
"""Width in pixels of the gap between two panels of a row."""
HEIGHT, TITLE, AXIS, MARGIN = 130, 24, 20, 46
"""Pixels of a panel: heights of the chart, the title above and the labels below; width of the labels to the left."""
ABOVE = 20
"""Height in pixels of the heading, and of each line of text below the panels."""
HUGE, TINY = 1e299, 1e-290
"""Values beyond `HUGE` are drawn as if they were not finite, and steps beyond `HUGE` as `HUGE`, so that differences and
sums stay finite. A curve is drawn as 0 if the magnitudes of all its values are below `TINY`."""
ROUNDING = 1e-14
"""Values that differ by less than this share of their magnitude are drawn as equal."""
PALE = f'stroke="{GRID}" stroke-opacity="0.7"'
DASHES = ("", ' stroke-dasharray="6 4"', ' stroke-dasharray="1.5 4"')
"""Dashes of the lines of earlier runs, used in turn, beginning with the newest run."""
NOISY_FROM, NOISE = 40, 0.04
"""A curve is smoothed if it has at least `NOISY_FROM` points, and the median difference between one point and the next
is more than `NOISE` times its range."""
WINDOWS = 20
"""The window of the smoothing is the number of points divided by this."""
SAMPLE = 28
"""Width in pixels of a line in the legend, including the space after it."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Band:
    """The points of one name over all ranks, by step, or by column of pixels if there are more steps than columns."""

    name: str
    ranks: tuple[int, ...]
    steps: Floats
    """The last step of each column, in rising order."""
    least: Floats
    mean: Floats
    most: Floats
    """`mean` is NaN where a value is not finite; `least` and `most` are over finite values, and NaN where none is."""
    first: float
    last: float
    """The means at the first and at the last step."""
    begins: float
    """The first step."""

    def then(self, other: Band) -> Band:
        """Return this band, continued by `other`."""
        steps, least, mean, most = (
            np.concatenate([one, two])
            for one, two in (
                (self.steps, other.steps),
                (self.least, other.least),
                (self.mean, other.mean),
                (self.most, other.most),
            )
        )
        ranks = tuple(sorted({*self.ranks, *other.ranks}))
        return Band(self.name, ranks, steps, least, mean, most, self.first, other.last, self.begins)

    def __str__(self) -> str:
        return f"{printable(self.name)} {short(self.first)} → {short(self.last)}"


@dataclass(frozen=True)
class Drawn:
    """The bands that are drawn for given curves, and which of the curves are not drawn."""

    bands: tuple[Band, ...]
    more: tuple[str, ...]
    """Names for which there is no panel."""
    refused: int
    """Number of curves beyond `curves.MOST_CURVES`, whose values were not stored."""

    @classmethod
    def of(cls, curves: Curves) -> Drawn:
        by_name = curves.by_name()
        columns = WIDTH // 2 if len(by_name) == 1 else WIDTH // 4
        with np.errstate(all="ignore"):
            found = tuple(_band(*each, columns) for each in islice(by_name.items(), MOST_PANELS))
        return cls(found, tuple(by_name)[MOST_PANELS:], len(curves.refused))

    def after(self, before: Mapping[str, Band]) -> Drawn:
        """Return a copy in which each band continues the band of the same name in `before`."""
        return replace(self, bands=tuple(before[band.name].then(band) for band in self.bands))

    def text(self, heading: str) -> str:
        """Return one line of text: each drawn name with its first and its last value, the number of other names, and
        `heading`."""
        said = [*map(str, self.bands), *([f"{len(self.more)} more"] if self.more else [])]
        return f"{', '.join(said)} ({heading})"

    def alternative(self, heading: str, run_names: Sequence[str]) -> str:
        """Return the text alternative of the picture: `text`, and the names of the earlier runs."""
        named = [label for label in reversed(run_names) if label]
        return f"{self.text(heading)}{'; pale: ' if named else ''}{'; '.join(named)}"

    def picture(
        self, heading: str, before: Mapping[str, Sequence[Band]], run_names: Sequence[str] = (), *, ended: bool
    ) -> Picture:
        """Draw the panels, in two columns if there are several names.

        `heading` is above the panels. `before` has the bands of earlier runs by name, the newest last, and `run_names`
        has the names of these runs. Until this run has `ended`, there is room for all steps of the earlier runs.
        """
        named = any(run_names)
        across = min(len(self.bands), 2)
        width = (WIDTH - GAP * (across - 1)) / across
        tall = TITLE + HEIGHT + AXIS
        parts = [svg_text(8, 13, heading), svg_text(WIDTH, 13, self._caption(before, named), "end")]
        with np.errstate(all="ignore"):
            for number, band in enumerate(self.bands):
                x, y = (number % across) * (width + GAP), ABOVE + (number // across) * tall
                others = before.get(band.name, ())
                parts += _panel(band, others, run_names, x + MARGIN, y + TITLE, width - MARGIN, ended)
        height = ABOVE + math.ceil(len(self.bands) / across) * tall
        if self.more:
            names = ", ".join(self.more[:8]) + (" …" if len(self.more) > 8 else "")
            parts.append(svg_text(8, height + 13, f"{len(self.more)} more: {names} (%distributed watch log)"))
            height += ABOVE
        if named:
            parts += _legend(run_names, height + 13)
            height += ABOVE
        return Picture(tuple(parts), height, self.alternative(heading, run_names))

    def _caption(self, before: Mapping[str, Sequence[Band]], named: bool) -> str:
        ranks = sorted({rank for band in self.bands for rank in band.ranks})
        said = [rank_label(tuple(ranks)) + (": mean, and from least to most" if len(ranks) > 1 else "")]
        if any(map(_is_noisy, self.bands)):
            said.append("thick: smoothed")
        if self.refused:
            said.append(f"{self.refused} curves not drawn")
        if any(before.values()) and not named:
            said.append("pale: runs before")
        return " · ".join(said)


def _band(name: str, by_rank: Mapping[int, Sequence[tuple[float, float]]], columns: int) -> Band:
    points = np.array([point for of_rank in by_rank.values() for point in of_rank], dtype=np.float64)
    points = points[np.argsort(points[:, 0], kind="stable")]
    steps, values = points[:, 0].clip(-HUGE, HUGE), points[:, 1]
    finite = np.abs(values) < HUGE
    starts = _starts(steps, columns)
    least, total, most = (
        of.reduceat(np.where(finite, values, otherwise), starts)
        for of, otherwise in ((np.minimum, np.inf), (np.add, 0.0), (np.maximum, -np.inf))
    )
    sizes = np.diff(starts, append=len(steps))
    known = np.add.reduceat(finite.astype(np.intp), starts)
    mean = np.where(known == sizes, total / sizes, np.nan)  # NaN if one rank diverges
    first, last = (float(np.mean(values[steps == step])) for step in (steps[0], steps[-1]))
    ranks = tuple(sorted(by_rank))
    ends, begins = steps[starts + sizes - 1], float(steps[0])
    return Band(name, ranks, ends, _where(known, least), mean, _where(known, most), first, last, begins)


def _where(known: NDArray[np.intp], values: Floats) -> Floats:
    return np.where(known > 0, values, np.nan)


def _starts(steps: Floats, columns: int) -> NDArray[np.intp]:
    """Return the indices at which columns begin: one column for each step, or at most `columns`."""
    keys = np.unique(steps, return_inverse=True)[1]
    if keys[-1] >= columns:
        span = steps[-1] - steps[0]
        keys = np.minimum((steps - steps[0]) / span * columns, columns - 1).astype(np.intp)
    return np.flatnonzero(np.diff(keys, prepend=-1))


def _legend(run_names: Sequence[str], y: float) -> Iterator[str]:
    """Yield the legend of the pale lines: the names of the runs side by side, the newest run first."""
    room = WIDTH / len(run_names)
    for number, label in enumerate(reversed(run_names)):
        x = room * number + 8
        yield _line([f"{x:.0f} {y - 4:.0f}", f"{x + SAMPLE - 6:.0f} {y - 4:.0f}"], PALE + DASHES[number % 3], 1.2)
        yield svg_text(x + SAMPLE, y, cut(label, room - SAMPLE - 12))


def _panel(
    band: Band, before: Sequence[Band], run_names: Sequence[str], left: float, top: float, width: float, ended: bool
) -> Iterator[str]:
    """Yield one panel; the area of its chart begins at `left`, `top`."""
    low, high = _range(band, before, ended)
    scale = HEIGHT / (high - low)
    steps = [band.steps, *(other.steps for other in before if not ended)]
    first, last = float(min(each[0] for each in steps)), float(max(each[-1] for each in steps))

    def points(of: Band, values: Floats, run: slice) -> list[str]:
        x = left + width * (of.steps[run] - first) / ((last - first) or 1.0)
        return [f"{a:.1f} {b:.1f}" for a, b in zip(x, top + HEIGHT - (values[run] - low) * scale)]

    yield svg_text(left, top - 7, cut(band.name, width - 60), weight="bold")
    yield svg_text(left + width, top - 7, short(band.last), "end", LINE if math.isfinite(band.last) else BAD)
    rows = ticks(low, high, 4) if np.isfinite(band.most).any() else []
    for tick, label in zip(rows, labels(rows)):
        at = top + HEIGHT - (tick - low) * scale
        yield f'<path d="M{left:.0f} {at:.1f}h{width:.0f}" stroke="{GRID}" stroke-opacity="0.25"/>'
        yield svg_text(left - 6, at + 4, label, "end")
    whole = all(float(step).is_integer() for step in band.steps)
    at_steps = [tick for tick in ticks(first, last, 5) if tick == int(tick) or not whole] or [first]
    for tick, label in zip(at_steps, labels(at_steps)):
        share = (tick - first) / (last - first) if last > first else 0.0
        anchor = "start" if share < 0.02 else "end" if share > 0.94 else "middle"
        yield svg_text(left + width * share, top + HEIGHT + 14, label, anchor)
    for number, other in enumerate(before):
        age = len(before) - 1 - number
        label = run_names[number] if number < len(run_names) else ""
        dashes = DASHES[age % 3] if any(run_names) else ""
        seen = (other.mean >= low) & (other.mean <= high) & (other.steps >= first) & (other.steps <= last)
        for run in _runs(seen):
            yield _line(points(other, other.mean, run), PALE + dashes, 1.2, label)
    for run in _runs(np.isfinite(band.most)):
        if (band.most[run] > band.least[run]).any():
            around = [*points(band, band.most, run), *reversed(points(band, band.least, run))]
            yield f'<path d="M{"L".join(around)}z" fill="{LINE}" fill-opacity="0.22"/>'
    noisy = _is_noisy(band)
    mean = smoothed(band.mean) if noisy else band.mean
    for run in _runs(np.isfinite(band.mean)):
        if noisy:
            yield _line(points(band, band.mean, run), f'stroke="{LINE}" stroke-opacity="0.45"', 1.0)
        yield _line(points(band, mean, run), f'stroke="{LINE}"', 1.6)
    for run in _runs(np.isnan(band.mean)):  # a vertical line where the mean becomes NaN
        place = points(band, np.zeros(len(band.mean)), slice(run.start, run.start + 1))[0].split()[0]
        dashes = 'stroke-opacity="0.6" stroke-dasharray="3 3"'
        yield f'<path d="M{place} {top:.0f}v{HEIGHT}" stroke="{BAD}" {dashes}/>'


def _is_noisy(band: Band) -> bool:
    known = band.mean[np.isfinite(band.mean)]
    if len(known) < NOISY_FROM:
        return False
    return bool(np.median(np.abs(np.diff(known))) > NOISE * (known.max() - known.min()))


def smoothed(values: Floats) -> Floats:
    """Return the exponentially weighted mean up to each value, with a window of `len(values) / WINDOWS`, at least 2.

    The mean begins again after a value that is not finite. It is divided by the sum of its weights, so the first means
    are not biased towards zero.
    """
    keep = 1 - 2 / (max(len(values) / WINDOWS, 2) + 1)
    made = np.empty_like(values)
    total = weights = 0.0
    for number, value in enumerate(values):
        if math.isfinite(value):
            total, weights = keep * total + (1 - keep) * value, keep * weights + 1 - keep
            made[number] = total / weights
        else:
            total, weights, made[number] = 0.0, 0.0, np.nan
    return made


def _range(band: Band, before: Sequence[Band], ended: bool) -> tuple[float, float]:
    """Return the lowest and the highest value to draw: of all values of `band`, and of nearby values of earlier runs.

    A value is nearby if its distance from the band's range is at most the size of that range. Until the run has
    `ended`, or if all values of `band` are equal, the distance may also be up to the magnitude of the band's values,
    since a new run has hardly any range yet.
    """
    known = np.isfinite(band.most)
    low, high = (float(band.least[known].min()), float(band.most[known].max())) if known.any() else (0.0, 1.0)
    magnitude = max(abs(low), abs(high))
    if magnitude < TINY:
        magnitude = 1.0
    span = high - low if high - low > ROUNDING * magnitude else magnitude
    if not ended:
        span = max(span, magnitude)
    near = [other.mean[(other.mean >= low - span) & (other.mean <= high + span)] for other in before]
    low, high = (float(of([end, *np.concatenate([[end], *near])])) for of, end in ((min, low), (max, high)))
    return (low, high) if high - low > ROUNDING * magnitude else (low - span / 2, high + span / 2)


def _line(points: Sequence[str], how: str, width: float, title: str = "") -> str:
    """Return a line through these points, or a dot if there is only one. Its tooltip is `title`."""
    path = "L".join(points) + ("h0" if len(points) == 1 else "")
    ends = 'stroke-linejoin="round" stroke-linecap="round"'
    line = f'<path d="M{path}" fill="none" {how} stroke-width="{width}" {ends}'
    return f"{line}><title>{escaped(title)}</title></path>" if title else f"{line}/>"


def _runs(known: NDArray[np.bool_]) -> list[slice]:
    """Return a slice for each unbroken run of known values."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], known, [False]]).astype(np.int8)))
    return [slice(int(begin), int(end)) for begin, end in list(pairwise(edges))[::2]]
