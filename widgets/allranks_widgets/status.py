"""The status table: the ranks of the world and what each of them is doing, as text and as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from allranks_backends.views import RankView, Snapshot

from .table import html_table, text_table

HEADINGS = ("rank", "host", "pid", "state", "memory", "MLX active / peak")
UNKNOWN = "–"
WAITS_AFTER = 2.0
"""Seconds in a collective after which a rank is shown as blocked in it: every collective takes some time."""
STATE_WIDTH = 60
"""Most characters of a cell in the text table: a state may contain a long line of source."""


def human_bytes(n: float) -> str:
    """Format a number of bytes with decimal units: 1 kB = 1e3, 1 MB = 1e6, 1 GB = 1e9, 1 TB = 1e12 bytes."""
    if abs(n) < 1000:
        return f"{n:.0f} B"
    for unit in ("kB", "MB", "GB", "TB"):
        n /= 1000
        if abs(n) < 999.95 or unit == "TB":
            break
    return f"{n:.1f} {unit}"


def status_text(snapshot: Snapshot) -> str:
    """Return a heading, a table with a line for each rank, and the notes."""
    table = text_table(HEADINGS, [_shortened(_row(view)) for view in _in_order(snapshot)])
    notes = [printable(note) for note in snapshot.notes]
    return "\n".join([_head(snapshot), *([table] if snapshot.ranks else []), *notes])


def status_html(snapshot: Snapshot) -> str:
    """Return a heading, a table and the notes as HTML. Untrusted notebooks show it: it has no script or stylesheet."""
    parts = [f'<div style="font-weight:bold;padding:2px 0">{escape(_head(snapshot))}</div>']
    if snapshot.ranks:
        views = list(_in_order(snapshot))
        gone = {number for number, view in enumerate(views) if view.state in ("dead", "failed")}
        parts.append(html_table(HEADINGS, [_row(view) for view in views], bold=gone))
    parts += [f'<div style="padding:2px 0">{escape(printable(note))}</div>' for note in snapshot.notes]
    return f'<div style="padding:2px 6px">{"".join(parts)}</div>'  # in line with text output in JupyterLab


def _head(snapshot: Snapshot) -> str:
    size = len(snapshot.ranks)
    ranks = f"{size} {'rank' if size == 1 else 'ranks'}"
    state = "ready" if snapshot.state == "whole" else snapshot.state
    parts = (f'world "{snapshot.name}"', ranks, snapshot.backend, state)
    return " · ".join(map(printable, parts))


def _in_order(snapshot: Snapshot) -> list[RankView]:
    return sorted(snapshot.ranks, key=lambda view: view.rank)


def _row(view: RankView) -> tuple[str, ...]:
    pid = UNKNOWN if view.pid is None else str(view.pid)
    mlx = f"{_memory(view.mlx_active)} / {_memory(view.mlx_peak)}"
    if view.mlx_active is None and view.mlx_peak is None:
        mlx = UNKNOWN
    return str(view.rank), printable(view.host), pid, printable(state_text(view)), _memory(view.rss), mlx


def state_text(view: RankView) -> str:
    """Return what a rank does, in words: ``blocked in all_sum #17 f32[1000] (line 5)``."""
    return view.doing.replace("blocked in ", "exchanging in ", 1) if _exchanges(view) else view.doing


def state_word(view: RankView) -> str:
    """Return the state of a rank in one word; ``exchanging`` for the first `WAITS_AFTER` seconds in a collective."""
    return "exchanging" if _exchanges(view) else view.state


def _exchanges(view: RankView) -> bool:
    since = WAITS_AFTER if view.since is None else view.since
    return view.state == "waiting" and not view.in_task and since < WAITS_AFTER


def _shortened(row: Sequence[str]) -> tuple[str, ...]:
    return tuple(text if len(text) <= STATE_WIDTH else text[: STATE_WIDTH - 1] + "…" for text in row)


def _memory(n: int | None) -> str:
    return UNKNOWN if n is None else human_bytes(n)


def printable(text: str) -> str:
    """Replace line breaks and control characters with spaces, since causes and source lines come from the ranks."""
    return "".join(char if char.isprintable() else " " for char in text)
