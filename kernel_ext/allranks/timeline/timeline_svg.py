"""A timeline as an SVG: a row for each rank, with bars for how its time was spent, and its marks below."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import groupby

from allranks.units import seconds_text
from allranks_widgets.axis import ticks

from .cell_timeline import CellTimeline
from .rank_timeline import Mark, RankTimeline, computing, covered, transferring, waiting

MOST_RANKS = 32
"""Maximum number of ranks drawn; ranks beyond that are only counted."""
LEFT, WIDTH, BAR, LANE, GAP = 86, 860, 20, 15, 9
"""Sizes in the picture, in its own units."""
ABOVE = 10
"""Space above a bar for the names of moments."""
MOST_LANES = 4
"""Maximum nesting of marks; marks nested deeper are not drawn."""
STEPS = 8
"""Number of heights that a bar can have; its height is a share of the column's time."""
TRANSFER, WAIT, COMPUTE = "#0072b2", "#e69f00", "#009e73"
"""Colours that everyone can tell apart (Okabe and Ito), on light and dark backgrounds."""


def svg(timeline: CellTimeline) -> str:
    """One row per rank: wait, transfer and computation as bars, marks below them, and a time axis.

    The title, which browsers show and read out, says which rank the others waited for.
    """
    seconds = timeline.seconds or 1.0
    parts, top, host = [], 8, ""
    several = len({each.host for each in timeline.ranks}) > 1
    numbered = {(wait.call.rank, wait.call.number): place for place, wait in enumerate(timeline.waits(), 1)}
    for each in timeline.ranks[:MOST_RANKS]:
        if several and each.host != host:
            host = each.host
            parts.append(f'<text x="0" y="{top + 9}" font-weight="bold">{escape(host)}</text>')
            top += 15
        if moments := _moments(each.marks, seconds):
            top += ABOVE
        parts.append(f'<text x="0" y="{top + BAR - 6}">rank {each.rank}</text>')
        parts += _bars(each, seconds, top)
        parts += _numbers(each, seconds, top, numbered)
        queues = _queues(each.marks, seconds)
        parts += [_mark(mark, queue, seconds, top + BAR + 2 + queue * LANE) for mark, queue in queues]
        parts += [_moment(mark, following, seconds, top) for mark, following in moments]
        top += BAR + GAP + LANE * max((queue + 1 for _, queue in queues), default=0)
    parts += _axis(seconds, top)
    parts += _legend(top + 34)
    said = " ".join(filter(None, ["Timeline of a cell on each rank.", timeline.finding]))
    title = f"<title>{escape(timeline.finding)}</title>" if timeline.finding else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escape(said)}" '
        f'viewBox="0 0 {LEFT + WIDTH + 24} {top + 44}" style="max-width:{LEFT + WIDTH + 24}px;display:block" '
        f'font-size="11" fill="currentColor" font-family="sans-serif">{title}{"".join(parts)}</svg>'
    )


def _bars(each: RankTimeline, seconds: float, top: int) -> list[str]:
    """Bars whose height is the share of time: transfer at the bottom, then wait, then computation."""
    floor = [0.0] * WIDTH
    parts = [
        f'<rect x="{LEFT + each.began / seconds * WIDTH:.1f}" y="{top}" height="{BAR}" '
        f'width="{(each.ended - each.began) / seconds * WIDTH:.1f}" opacity="0.07"/>'
    ]
    for colour, opacity, what, spans in (
        (TRANSFER, 1.0, "transfer", transferring(each)),
        (WAIT, 0.75, "wait", waiting(each)),
        (COMPUTE, 0.45, "mx.eval", computing(each)),
    ):
        shares = covered(spans, seconds, WIDTH)
        # Any share above zero is visible: at least one step.
        heights = [min(max(share, 1 / STEPS) if share else 0.0, 1 - under) for share, under in zip(shares, floor)]
        steps = [(round(under * STEPS), round(height * STEPS)) for under, height in zip(floor, heights)]
        path, column = [], 0
        for (under, height), run in groupby(steps):
            length = len(list(run))
            if height:
                y = top + BAR * (1 - (under + height) / STEPS)
                path.append(f"M{LEFT + column} {y:g}h{length}v{BAR * height / STEPS:g}h-{length}z")
            column += length
        floor = [min(1.0, under + height) for under, height in zip(floor, heights)]
        if path:
            parts.append(f'<path fill="{colour}" opacity="{opacity}" d="{"".join(path)}"><title>{what}</title></path>')
    return parts


def _numbers(each: RankTimeline, seconds: float, top: int, numbered: dict[tuple[int, int], int]) -> list[str]:
    """The numbers under which the longest waits are listed, drawn on their bars."""
    parts = []
    for call in each.calls:
        place = numbered.get((call.rank, call.number)) if call.shared else None
        if place is not None and (call.wait or 0.0) / seconds * WIDTH >= 9:
            x = LEFT + ((call.began or 0.0) + (call.wait or 0.0) / 2) / seconds * WIDTH
            look = 'text-anchor="middle" font-weight="bold" fill="#000"'
            parts.append(f'<text x="{x:.1f}" y="{top + BAR - 6}" {look}>{place}</text>')
    return parts


def _queues(marks: Sequence[Mark], seconds: float) -> list[tuple[Mark, int]]:
    """Each span to draw, with its depth in other spans. Of spans too narrow to be told apart, only one is drawn."""
    queues, open_until, drawn = [], list[float](), dict[int, float]()
    spans = [each for each in marks if each.ended is not None]
    for mark in sorted(spans, key=lambda each: (each.began, -(each.ended or 0.0))):
        ended = mark.ended or mark.began
        while open_until and open_until[-1] <= mark.began:
            open_until.pop()
        queue = len(open_until)
        if queue < MOST_LANES and (ended - drawn.get(queue, -seconds)) / seconds * WIDTH >= 1:
            queues.append((mark, queue))
            drawn[queue] = ended
        open_until.append(ended)
    return queues


def _mark(mark: Mark, queue: int, seconds: float, top: int) -> str:
    x, right = (LEFT + at / seconds * WIDTH for at in (mark.began, mark.ended or mark.began))
    width = max(right - x, 0.5)
    label = _fitting(mark.name, width - 4)
    shown = f'<text x="{x + 3:.1f}" y="{top + 10}" font-size="10">{escape(label)}</text>' if label else ""
    told = escape(f"{mark.name}: {seconds_text((mark.ended or mark.began) - mark.began)}")
    return (
        f'<g><title>{told}</title><rect x="{x:.1f}" y="{top}" width="{width:.1f}" height="{LANE - 2}" rx="2" '
        f'fill-opacity="0.08" stroke="currentColor" stroke-opacity="0.45"/>{shown}</g>'
    )


def _moments(marks: Sequence[Mark], seconds: float) -> list[tuple[Mark, float]]:
    """Each moment that is far enough from the last one drawn, with the time of the next such moment (or infinity)."""
    apart: list[Mark] = []
    for mark in sorted((each for each in marks if each.ended is None), key=lambda each: each.began):
        if not apart or (mark.began - apart[-1].began) / seconds * WIDTH >= 3:
            apart.append(mark)
    return list(zip(apart, [*(mark.began for mark in apart[1:]), float("inf")], strict=False))  # `apart` may be empty


def _moment(mark: Mark, following: float, seconds: float, top: int) -> str:
    x = LEFT + mark.began / seconds * WIDTH
    room = min(LEFT + WIDTH, LEFT + following / seconds * WIDTH) - x - 6
    label = _fitting(mark.name, room)
    shown = f'<text x="{x + 3:.1f}" y="{top - 3}" font-size="9">{escape(label)}</text>' if label else ""
    ends = f'x1="{x:.1f}" x2="{x:.1f}" y1="{top - ABOVE}" y2="{top + BAR}"'
    line = f'<line {ends} stroke="currentColor" stroke-dasharray="2 2"/>'
    return f"<g><title>{escape(mark.name)}</title>{line}{shown}</g>"


def _fitting(name: str, width: float) -> str:
    """The name, shortened to `width`; empty if too little of it would fit to recognise it."""
    room = int(width / 5.6)
    return name if len(name) <= room else f"{name[: room - 1]}…" if room >= 4 else ""


def _axis(seconds: float, top: int) -> list[str]:
    parts = [f'<line x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{top}" y2="{top}" stroke="currentColor" opacity="0.4"/>']
    scales = (("s", 1.0), ("ms", 1e3), ("µs", 1e6))
    unit, scale = next((each for each in scales if seconds * each[1] >= 2), scales[-1])
    for tick in ticks(0.0, seconds * scale, 5):
        x = f"{LEFT + WIDTH * tick / (seconds * scale):.1f}"
        parts += [
            f'<line x1="{x}" x2="{x}" y1="{top}" y2="{top + 4}" stroke="currentColor" opacity="0.4"/>',
            f'<text x="{x}" y="{top + 16}" text-anchor="middle">{f"{tick:g} {unit}" if tick else "0"}</text>',
        ]
    return parts


def _legend(top: int) -> list[str]:
    parts, x = [], LEFT
    for colour, opacity, what in (
        (TRANSFER, 1.0, "transfer"),
        (WAIT, 0.75, "wait for the last rank"),
        (COMPUTE, 0.45, "mx.eval, and what collectives work on"),
    ):
        parts += [
            f'<rect x="{x}" y="{top - 9}" width="10" height="10" fill="{colour}" opacity="{opacity}"/>',
            f'<text x="{x + 14}" y="{top}">{what}</text>',
        ]
        x += 34 + 6 * len(what)
    return parts
