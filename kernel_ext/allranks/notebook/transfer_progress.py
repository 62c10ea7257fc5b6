"""Show progress while waiting for ranks, one line per rank: how much of a large value has moved, or what still runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from allranks_widgets import human_bytes

from .ipython_shell import running_shell

if TYPE_CHECKING:
    from allranks.notebook.live_lines import LiveArea

SHOW_AFTER = 1.0
"""Seconds of waiting before progress is shown."""
SHOW_EVERY = 0.2
"""Seconds between two updates."""


def wait_and_show(
    done: Callable[[], bool], ranks: Collection[int], line: Callable[[int], str], go_on: Callable[[], object]
) -> None:
    """Wait until `done` returns true, and show each rank's `line`.

    `done` itself waits for `SHOW_EVERY` seconds before it returns false. `go_on` is called repeatedly and may raise.
    """
    area: LiveArea | None = None
    began, looked = time.monotonic(), False
    try:
        while not done():
            go_on()
            if not looked and time.monotonic() - began >= SHOW_AFTER:
                area, looked = _area(ranks), True
            if area is not None:
                area.want({rank: line(rank) for rank in ranks})
        go_on()
    finally:
        if area is not None:
            area.want({})


def moved_text(moved: int, total: int) -> str:
    """``1.2 MB of 80 MB``; empty if nothing large is moved."""
    return f"{human_bytes(moved)} of {human_bytes(total)}" if total else ""


def _area(ranks: Collection[int]) -> LiveArea | None:
    """A live area below the notebook cell that runs now; None outside a notebook."""
    if not hasattr(running_shell(), "kernel"):
        return None
    from allranks.notebook.live_lines import LiveArea  # both modules import IPython, which scripts do not need
    from allranks.notebook.output_writer import Writer

    return LiveArea(Writer(list(ranks)).prefix)
