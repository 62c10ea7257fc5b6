"""The user's asyncio tasks: they go on between cells, in the main thread, and may block it in a collective."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any, TypeAlias

Task: TypeAlias = "asyncio.Task[Any]"

_JUPYTER = frozenset({"IPython", "allranks", "ipykernel", "ipyparallel", "jupyter_client", "tornado", "zmq"})
"""Packages whose tasks are not the user's."""


class Tasks:
    """Of the main thread's event loop, from any thread."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        """Set by the engine."""

    def pending(self) -> list[Task]:
        """Those that the user's code has started and that are not done."""
        return [task for task in asyncio.all_tasks(self.loop) if _is_users(task)] if self.loop is not None else []

    def runs_one_of(self, tasks: Collection[Task]) -> bool:
        """Whether the main thread runs one of these."""
        return self.loop is not None and asyncio.current_task(self.loop) in tasks


def _is_users(task: Task) -> bool:
    frame = getattr(task.get_coro(), "cr_frame", None)
    return frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] not in _JUPYTER
