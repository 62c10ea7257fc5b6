"""A timeline as text, with bars made of characters, and as HTML, with the picture above the tables.

An untrusted notebook drops inline SVG, so the tables have all essential figures.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

from allranks.errors import UsageError
from allranks.units import seconds_text
from allranks_backends.plan import rank_label
from allranks_widgets.svg_text import as_file
from allranks_widgets.table import html_table, text_table

from .cell_timeline import CellTimeline
from .rank_timeline import computing, covered, transferring, waiting
from .timeline_svg import MOST_RANKS, svg

COLUMNS = 60
"""Width, in characters, of a bar in text."""
_RANKS = ("rank", "host", "collectives", "transfer", "wait", "waiting", "marks")
_WAITS = ("", "at", "collective", "rank", "waited", "for rank", "which was in")


def _head(timeline: CellTimeline) -> str:
    ranks = rank_label([each.rank for each in timeline.ranks]) if timeline.ranks else "no ranks"
    how = " · lazy" if timeline.lazy else ""
    seconds = seconds_text(timeline.seconds)
    return f"timeline of In[{timeline.count}] · {ranks} · {timeline.backend} · {seconds}{how}"


def _below(timeline: CellTimeline) -> list[str]:
    """Notes for below the picture, one sentence or more each."""
    said = []
    if timeline.lazy:
        said.append("Collectives are shown where they were called; they ran inside an mx.eval.")
    if timeline.missing:
        said.append(f"No data from {rank_label(timeline.missing)}: dead or still busy.")
    hidden = len(timeline.ranks) - MOST_RANKS
    if hidden > 0:
        said.append(f"{hidden} more ranks are in the file but not in the picture.")
    return list(filter(None, [*said, *timeline.notes, str(timeline.clocks)]))


def _rank_rows(timeline: CellTimeline) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for each in timeline.ranks[:MOST_RANKS]:
        known = any(call.wait is not None for call in each.calls)
        lasted = each.ended - each.began
        rows.append(
            (
                str(each.rank),
                each.host,
                str(len(each.calls)),
                seconds_text(each.transferred) if known else "–",
                seconds_text(each.waited) if known else "–",
                f"{each.waited / lasted:.0%}" if known and lasted else "–",
                str(len(each.marks)),
            )
        )
    return rows


def _wait_rows(timeline: CellTimeline) -> list[tuple[str, ...]]:
    return [
        (
            str(number),
            seconds_text(wait.call.began or 0.0),
            str(wait.call),
            str(wait.call.rank),
            seconds_text(wait.call.wait or 0.0),
            str(wait.last),
            wait.doing or "–",
        )
        for number, wait in enumerate(timeline.waits(), 1)
    ]


def text(timeline: CellTimeline) -> str:
    """The timeline as text: bars of characters, a table of ranks, the longest waits, and notes."""
    seconds = timeline.seconds or 1.0
    bars = []
    for each in timeline.ranks[:MOST_RANKS]:
        kinds = {
            kind: covered(spans, seconds, COLUMNS)
            for kind, spans in (("█", transferring(each)), ("░", waiting(each)), ("▒", computing(each)))
        }
        columns = zip(*kinds.values(), strict=True)
        bar = "".join(
            next((kind for kind, share in zip(kinds, shares, strict=True) if share == max(shares) > 0.05), "·")
            for shares in columns
        )
        bars.append(f"rank {each.rank}".ljust(10) + bar)
    axis = " " * 10 + "0".ljust(COLUMNS - len(seconds_text(seconds))) + seconds_text(seconds)
    legend = " " * 10 + "█ transfer   ░ wait   ▒ mx.eval   · other code"
    tables = [text_table(_RANKS, _rank_rows(timeline))]
    if waits := timeline.waits():
        tables.append("\n".join(["Longest waits:", *(f"  {number} {wait}" for number, wait in enumerate(waits, 1))]))
    head = list(filter(None, [_head(timeline), timeline.finding]))
    return "\n\n".join(["\n".join([*head, "", *bars, axis, legend]), *tables, "\n".join(_below(timeline))])


def html(timeline: CellTimeline) -> str:
    """The timeline as HTML: the picture, the tables, and notes; no script and no stylesheet."""
    first, said = (
        "".join(f'<div style="padding:2px 0">{escape(sentence)}</div>' for sentence in sentences)
        for sentences in (filter(None, [timeline.finding]), _below(timeline))
    )
    waits = _wait_rows(timeline)
    longest = (
        f'<div style="padding:6px 0 0;font-weight:bold">Longest waits</div>{html_table(_WAITS, waits)}' if waits else ""
    )
    return (
        f'<div style="padding:2px 6px"><div style="font-weight:bold;padding:2px 0">{escape(_head(timeline))}</div>'
        f"{first}{svg(timeline)}{html_table(_RANKS, _rank_rows(timeline))}{longest}{said}</div>"
    )


def write_picture(timeline: CellTimeline, path: str | Path) -> None:
    """Write the picture as an SVG whose title is the finding. Raises UsageError if the file cannot be written."""
    head = _head(timeline)
    try:
        Path(path).write_text(as_file(svg(timeline), timeline.finding or head, head), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}.") from None
