"""The content of the pictures as tables in text and HTML, for display without a front end and in saved notebooks."""

from __future__ import annotations

from html import escape

from allranks_backends.views import LinkView, Snapshot

from .curves import Curves
from .status import UNKNOWN, human_bytes, status_html, status_text
from .table import html_table, text_table

LINKS = ("link", "kind", "interface", "nominal", "rate", "share", "sent")
LOGGED = ("logged", "ranks", "step", "last", "min", "max")
OPERATIONS = ("operation", "ranks", "calls", "bytes", "smallest - largest", "transfer", "wait")
MOST_ROWS = 128
"""Most rows of a table; a sentence counts the rest. 64 ranks that all reach each other have 4032 links."""
NOT_TIMED = "timed with --timing only"

Table = tuple[tuple[str, ...], list[tuple[str, ...]], str]
"""Headings, rows, and a sentence about rows that were left out."""


def snapshot_text(snapshot: Snapshot) -> str:
    """Return the tables of status, links and operations as text."""
    return "\n\n".join([status_text(snapshot), *(_text(table) for table in _tables(snapshot)), *_said(snapshot)])


def snapshot_html(snapshot: Snapshot) -> str:
    """Return the tables of status, links and operations as HTML that an untrusted notebook shows unchanged."""
    said = "".join(f'<div style="padding:4px 6px">{escape(sentence)}</div>' for sentence in _said(snapshot))
    return status_html(snapshot) + "".join(_html(table) for table in _tables(snapshot)) + said


def logged_text(curves: Curves) -> str:
    """Return a table of logged values, preceded by a blank line; empty if nothing was logged."""
    return "\n\n" + _text(_cut(LOGGED, curves.table(), "names")) if curves else ""


def logged_html(curves: Curves) -> str:
    """Return a table of logged values as HTML; empty if nothing was logged."""
    return _html(_cut(LOGGED, curves.table(), "names")) if curves else ""


def human_rate(rate: float | None) -> str:
    """Format bytes a second, such as ``1.5 GB/s``; ``–`` if unknown."""
    return UNKNOWN if rate is None else f"{human_bytes(rate)}/s"


def human_bits(bits: float | None) -> str:
    """Format bits a second in the units used for interfaces, such as ``40 Gbit/s``; ``–`` if unknown."""
    if bits is None:
        return UNKNOWN
    for unit, size in (("Tbit/s", 1e12), ("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3)):
        if bits >= size:
            return f"{bits / size:g} {unit}"
    return f"{bits:g} bit/s"


def human_seconds(seconds: float | None) -> str:
    """Format seconds, such as ``1.5 ms`` or ``2.0 s``; ``–`` if unknown."""
    if seconds is None:
        return UNKNOWN
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _tables(snapshot: Snapshot) -> list[Table]:
    tables: list[Table] = []
    if links := list(snapshot.links):
        left = len(links) - MOST_ROWS
        if left > 0:
            links = sorted(links, key=lambda view: -1.0 if view.rate is None else view.rate, reverse=True)[:MOST_ROWS]
        more = f"{left} more links are not listed: these have the highest rates." if left > 0 else ""
        tables.append((LINKS, [_link_row(link) for link in links], more))
    if operations := _operation_rows(snapshot):
        tables.append(_cut(OPERATIONS, operations, "operations"))
    return tables


def _cut(headings: tuple[str, ...], rows: list[tuple[str, ...]], what: str) -> Table:
    left = len(rows) - MOST_ROWS
    return headings, rows[:MOST_ROWS], f"{left} more {what} are not listed." if left > 0 else ""


def _link_row(view: LinkView) -> tuple[str, ...]:
    link = view.link
    share = UNKNOWN if view.rate is None or not view.nominal else f"{view.rate * 8 / view.nominal:.0%}"
    sent = UNKNOWN if view.sent is None else human_bytes(view.sent)
    ends = f"{link.source} → {link.target}"
    return ends, link.kind, link.interface or UNKNOWN, human_bits(view.nominal), human_rate(view.rate), share, sent


def _operation_rows(snapshot: Snapshot) -> list[tuple[str, ...]]:
    """Return one row for each operation; its times are means over the ranks that timed it."""
    rows: list[tuple[str, ...]] = []
    for name in dict.fromkeys(op.op for rank in snapshot.ranks for op in rank.ops):
        ops = [op for rank in snapshot.ranks for op in rank.ops if op.op == name]
        transfer = [op.transfer for op in ops if op.transfer is not None]
        wait = [op.wait for op in ops if op.wait is not None]
        smallest, largest = min(op.smallest for op in ops), max(op.largest for op in ops)
        rows.append(
            (
                name,
                str(len(ops)),
                str(sum(op.calls for op in ops)),
                human_bytes(sum(op.nbytes for op in ops)),
                human_bytes(smallest) + (f" - {human_bytes(largest)}" if largest != smallest else ""),
                human_seconds(sum(transfer) / len(transfer)) if transfer else NOT_TIMED,
                human_seconds(sum(wait) / len(wait)) if wait else NOT_TIMED,
            )
        )
    return rows


def _said(snapshot: Snapshot) -> list[str]:
    peak = [f"Highest measured bus bandwidth: {human_rate(snapshot.peak)}."] if snapshot.peak is not None else []
    return [*peak, *([snapshot.straggler] if snapshot.straggler else [])]


def _text(table: Table) -> str:
    headings, rows, more = table
    return "\n".join([text_table(headings, rows), *([more] if more else [])])


def _html(table: Table) -> str:
    headings, rows, more = table
    return html_table(headings, rows) + (f'<div style="padding:2px 6px">{escape(more)}</div>' if more else "")
