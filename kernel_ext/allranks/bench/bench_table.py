"""The result of a bench as a table with the fits and the advice below it: as text, and as HTML without script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from allranks.units import rate_text, seconds_text, size_text

from .bus_bandwidth import BenchRow
from .chart import chart

_HEADINGS = ("wiring", "what", "size", "calls", "min", "median", "p99", "algbw GB/s", "busbw GB/s")
_WORDS = (0, 1)
"""Columns of words; the other columns are figures."""


def text(head: str, rows: Sequence[BenchRow], below: Sequence[str]) -> str:
    """The result as text: the `head`, the table, and the lines `below` it."""
    lines = [list(_HEADINGS), *map(_cells, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    table = ["  ".join(_padded(row, widths)).rstrip() for row in lines]
    return "\n".join([head, "", *table, "", *below])


def html(head: str, rows: Sequence[BenchRow], below: Sequence[str], series: Mapping[str, Sequence[BenchRow]]) -> str:
    """The table as HTML, with the lines `below` and the chart of `series` below it."""
    cell = "padding:2px 12px 2px 0;border:none;border-bottom:1px solid rgba(128,128,128,0.3);text-align:"
    align = ["left" if column in _WORDS else "right" for column in range(len(_HEADINGS))]

    def line(tag: str, texts: Sequence[str]) -> str:
        cells = (f'<{tag} style="{cell}{side}">{escape(text)}</{tag}>' for side, text in zip(align, texts))
        return f"<tr>{''.join(cells)}</tr>"

    body = "".join(line("td", _cells(row)) for row in rows)
    lines = "".join(f'<div style="padding:2px 0">{escape(text)}</div>' for text in below)
    return (
        f'<div style="padding:2px 6px"><div style="font-weight:bold;padding:2px 0">{escape(head)}</div>'
        '<table style="border-collapse:collapse;border:none;margin:0">'
        f"<thead>{line('th', _HEADINGS)}</thead><tbody>{body}</tbody></table>{lines}{chart(series)}</div>"
    )


def _cells(row: BenchRow) -> list[str]:
    times = map(seconds_text, (row.minimum, row.median, row.p99))
    bandwidths = map(rate_text, (row.algbw, row.busbw))
    return [str(row.choice), row.what, size_text(row.nbytes), str(row.calls), *times, *bandwidths]


def _padded(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [
        text.ljust(width) if column in _WORDS else text.rjust(width)
        for column, (text, width) in enumerate(zip(row, widths, strict=True))
    ]
