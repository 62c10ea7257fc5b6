"""What is shown while ranks are waited for, in a line for each: how far a large value has come, or what still runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any

from allranks_widgets import human_bytes

from .shell import running_shell

if TYPE_CHECKING:
    from allranks.notebook.live import LiveArea

SHOW_AFTER = 1.0
"""Seconds that a wait may take without a word."""
SHOW_EVERY = 0.2
"""Seconds between two looks."""


def wait_for_values(
    answers: Mapping[int, Future[Any]], moved: Callable[[int], tuple[int, int]], go_on: Callable[[], object]
) -> None:
    """Wait until the answers of all ranks are there, and show in a notebook how far they are.

    `moved` says of a rank how many bytes have moved, and of how many; `go_on` is called often, and may raise.
    """
    wait_and_show(
        lambda: not wait(answers.values(), SHOW_EVERY).not_done, answers, lambda rank: _line(*moved(rank)), go_on
    )


def wait_and_show(
    done: Callable[[], bool], ranks: Collection[int], line: Callable[[int], str], go_on: Callable[[], object]
) -> None:
    """Wait until `done`, which takes `SHOW_EVERY` seconds where it is false, and show the `line` of each rank."""
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


def _line(moved: int, total: int) -> str:
    return f"{human_bytes(moved)} of {human_bytes(total)}" if total else ""


def _area(ranks: Collection[int]) -> LiveArea | None:
    """Below the cell of the notebook that runs now; None where there is none."""
    if not hasattr(running_shell(), "kernel"):
        return None
    from allranks.notebook.live import LiveArea  # they import IPython, which scripts do without
    from allranks.notebook.writer import Writer

    return LiveArea(Writer(list(ranks)).prefix)
