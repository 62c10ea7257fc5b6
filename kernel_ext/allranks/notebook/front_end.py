"""Options with which a cell is shown in the user's front end: a notebook page, another client, or a terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from .comm_proxies import page_has_widgets
from .keyboard import can_ask
from .show_blocks import Show

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell


def shown_in(
    shell: InteractiveShell, ranks: Sequence[int], has_widget: Callable[[str], bool], *, wait: bool = True
) -> dict[str, object]:
    """Return the options (see `LocalOptions`) with which a cell is shown below the running cell of `shell`.

    `wait`: whether the running cell waits for that cell, so that the user can be asked for debugger commands.
    """
    widgets, typing = page_has_widgets(shell), can_ask(shell)
    return {
        "screen": Show(ranks, live=hasattr(shell, "kernel"), has_widget=has_widget if widgets else None),
        # The number in the notebook's margin; IPython 9.18 increments execution_count before it runs the cell.
        "count": len(shell.user_ns["In"]) - 1,
        "widgets": widgets,
        "breakpoints": typing,
        "read": input if typing and wait else None,
    }
