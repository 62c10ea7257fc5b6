"""How a cell is shown where the user is: in a notebook, in IPython, or in neither."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .comms import page_has_widgets
from .keyboard import can_ask
from .show import Show


def shown_in(
    shell: Any, ranks: Sequence[int], has_widget: Callable[[str], bool], *, wait: bool = True
) -> dict[str, Any]:
    """Options of a cell (see `LocalOptions`) that is shown below the cell of `shell` that runs now.

    `wait` says that this one waits for it, so that the user can be asked for commands of the debugger.
    """
    widgets, typing = page_has_widgets(shell), can_ask(shell)
    return {
        "screen": Show(ranks, live=hasattr(shell, "kernel"), has_widget=has_widget if widgets else None),
        # The number in the notebook's margin; IPython 9.18 counts execution_count up before it runs the cell.
        "count": len(shell.user_ns["In"]) - 1,
        "widgets": widgets,
        "breakpoints": typing,
        "read": input if typing and wait else None,
    }
