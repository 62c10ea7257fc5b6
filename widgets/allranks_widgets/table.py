"""Tables as text, and as HTML that an untrusted notebook shows unchanged: without script, stylesheet or SVG."""

from __future__ import annotations

from collections.abc import Container, Sequence
from html import escape

_CELL = (
    "text-align:left;vertical-align:top;padding:2px 12px 2px 0;border:none;"
    "border-bottom:1px solid rgba(128,128,128,0.3)"
)


def text_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table as text, with columns as wide as their widest cell."""
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in (headings, *rows))


def html_table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], bold: Container[int] = (), pale: Container[int] = ()
) -> str:
    """Return a table as HTML; cells are text, and are escaped. `bold` and `pale` are indices of rows in that style."""
    body = "".join(_row("td", row, number in bold, number in pale) for number, row in enumerate(rows))
    return (
        f'<table style="border-collapse:collapse;border:none;margin:6px"><thead>{_row("th", headings)}</thead>'
        f"<tbody>{body}</tbody></table>"
    )


def _row(tag: str, cells: Sequence[str], bold: bool = False, pale: bool = False) -> str:
    style = f"{_CELL}{';font-weight:bold' if bold else ''}{';opacity:0.6' if pale else ''}"
    return "<tr>" + "".join(f'<{tag} style="{style}">{escape(cell)}</{tag}>' for cell in cells) + "</tr>"
