"""The rates of the last ten minutes, drawn as an SVG without script, which stays in a saved notebook."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ._history import Columns
from ._snapshot_tables import human_rate
from .axis import labels, ticks
from .svg_text import GRID, LINE, WIDTH, Picture, svg_text

HEIGHT, TOP, BELOW, MARGIN = 130, 30, 40, 70
"""Pixels: height of the chart, heights of the title above and of the labels below, width of the labels to the left."""
WIDE = WIDTH - MARGIN - 12
"""Width in pixels of the chart."""
EFFECTIVE = "#b4571e"
"""Colour of the rate of the arrays; readable on a white and on a dark page."""
SHORTEST = 10.0
"""Least seconds of the axis of time."""

Rates = Sequence[float | None]


def throughput_picture(columns: Columns) -> Picture:
    """Draw the rates in `columns`: bytes that a rank sent, and of arrays that it passed to collectives."""
    at, wire = columns["at"], columns["wire"]
    effective = [_mean(row) for row in zip(*columns["ranks"], strict=True)] if columns["ranks"] else [None] * len(at)
    title = _finding(wire, effective)
    parts = [svg_text(8, 17, title, weight="bold")]
    named = [(name, rates, colour) for name, rates, colour in _series(wire, effective) if any(map(_known, rates))]
    x = float(MARGIN)
    if named:
        parts += _chart(at, named, columns["peak"])
    for name, _, colour in named:
        y = TOP + HEIGHT + BELOW - 8
        parts.append(f'<path d="M{x:.0f} {y - 4}h18" stroke="{colour}" stroke-width="2"/>')
        parts.append(svg_text(x + 24, y, name))
        x += 340
    return Picture(tuple(parts), TOP + (HEIGHT + BELOW if named else 0), f"{title}.")


def _series(wire: Rates, effective: Rates) -> list[tuple[str, Rates, str]]:
    return [
        ("wire: bytes that a rank sent, mean", wire, LINE),
        ("effective: bytes of a rank's arrays, mean", effective, EFFECTIVE),
    ]


def _known(rate: float | None) -> bool:
    return rate is not None


def _mean(rates: Rates) -> float | None:
    known = [rate for rate in rates if rate is not None]
    return sum(known) / len(known) if known else None


def _finding(wire: Rates, effective: Rates) -> str:
    what, rates = ("sent", wire) if any(map(_known, wire)) else ("passed to collectives", effective)
    known = [rate for rate in rates if rate is not None]
    if not known:
        return "No rate is known"
    if not max(known):
        return "Nothing was sent in the last ten minutes"
    most, last = human_rate(max(known)), human_rate(known[-1])
    return f"A rank {what} {most} at most" + (f", {last} at the end" if last != most else "")


def _chart(at: Sequence[float], named: Sequence[tuple[str, Rates, str]], peaks: Rates) -> Iterator[str]:
    span = max(at[-1] - at[0], SHORTEST)
    high = max(rate for _, rates, _ in named for rate in rates if rate is not None) or 1.0
    bottom = TOP + HEIGHT
    for tick in ticks(0, high, 4):
        y = bottom - HEIGHT * tick / high
        yield f'<path d="M{MARGIN} {y:.1f}h{WIDE}" stroke="{GRID}" stroke-opacity="0.25"/>'
        yield svg_text(MARGIN - 6, y + 4, human_rate(tick) if tick else "0", "end")
    before = ticks(-span, 0, 5)
    for tick, label in zip(before, labels(before), strict=True):
        x = _across(tick, span)
        anchor = "start" if tick + span < span / 50 else "middle" if tick else "end"
        yield svg_text(x, bottom + 14, f"{label} s" if tick else "end", anchor)
    for _, rates, colour in named:
        points = [
            None if rate is None else f"{_across(when - at[-1], span):.1f} {bottom - HEIGHT * rate / high:.1f}"
            for when, rate in zip(at, rates, strict=True)
        ]
        for run in _runs(points):
            path = "L".join(run) + ("h0" if len(run) == 1 else "")
            yield (
                f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="1.6" '
                'stroke-linejoin="round" stroke-linecap="round"/>'
            )
    if peaks and (peak := peaks[-1]) is not None:
        yield svg_text(WIDTH - 12, TOP - 13, f"peak of bench: {human_rate(peak)}", "end")


def _across(before: float, span: float) -> float:
    """Return where a time stands that is `before` seconds from the end (negative), of an axis of `span` seconds."""
    return MARGIN + WIDE * (1 + before / span)


def _runs(points: Sequence[str | None]) -> Iterator[list[str]]:
    """Yield the unbroken runs of known points."""
    run: list[str] = []
    for point in [*points, None]:
        if point is not None:
            run.append(point)
        elif run:
            yield run
            run = []
