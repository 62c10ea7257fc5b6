"""What the user's code leaves running between cells: asyncio tasks, in the main thread, and threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection
from typing import TypeAlias

Task: TypeAlias = "asyncio.Task[object]"

_JUPYTER = frozenset({"IPython", "allranks", "ipykernel", "ipyparallel", "jupyter_client", "tornado", "zmq"})
"""Packages whose tasks are not the user's."""


class Tasks:
    """The asyncio tasks of the main thread's event loop. A task may block the thread in a collective.

    Used in any thread.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def all(self) -> Collection[Task]:
        """All tasks that are not done, those of Jupyter's packages included."""
        return asyncio.all_tasks(self._loop)

    def pending(self) -> list[Task]:
        """The tasks that the user's code has started and that are not done."""
        return [task for task in self.all() if _is_users(task)]

    def runs_one_of(self, tasks: Collection[Task]) -> bool:
        """Whether the main thread runs one of these tasks now."""
        return asyncio.current_task(self._loop) in tasks


def _is_users(task: Task) -> bool:
    frame = getattr(task.get_coro(), "cr_frame", None)
    return frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] not in _JUPYTER


class UserThreads:
    """The threads that the user's code has started."""

    def __init__(self) -> None:
        self._others: set[int | None] = set()

    def begin(self) -> None:
        """Count threads that start from here on as the user's, unless their names begin with ``allranks``."""
        self._others = {each.ident for each in threading.enumerate()}

    def exist(self) -> bool:
        ours = (each.ident in self._others or each.name.startswith("allranks") for each in threading.enumerate())
        return not all(ours)
