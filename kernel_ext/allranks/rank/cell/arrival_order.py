"""Runs the notebook's cells and those of plain ipyparallel in the order in which they arrive.

The notebook's cells arrive over the lifeline, the others over ipykernel's shell channel, whose messages ipykernel
handles one after another. The notebook's cells take their turns among these messages. A cell also waits up to
`LOST_AFTER` seconds for requests that were sent before the cell but arrive later.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextvars import copy_context
from typing import Any, NamedTuple, TypeAlias

Run: TypeAlias = Callable[[], Awaitable[None]]

REMEMBERED = 1000
"""Maximum number of remembered requests of ipyparallel's clients: more than can be under way together with a cell."""
LOST_AFTER = 5.0
"""Seconds that a cell waits for a request that was sent before it; the controller may have lost the request."""


class _WaitingRun(NamedTuple):
    after: set[str]
    run: Run
    until: float


class Turns:
    """Gives the notebook's cells their turns among ipykernel's messages. Used in the main thread."""

    def __init__(self, kernel: Any) -> None:
        self._take_turn = _by_lock(kernel) if hasattr(kernel, "_main_asyncio_lock") else kernel.schedule_dispatch
        self._had: deque[str] = deque(maxlen=REMEMBERED)
        """Ids of the last requests of ipyparallel's clients whose turn has come, or that count as lost."""
        self._waiting: deque[_WaitingRun] = deque()
        self._loop = asyncio.get_running_loop()
        set_parent = kernel.set_parent

        def noted(ident: object, parent: Mapping[str, Any], channel: str = "shell") -> None:
            set_parent(ident, parent, channel)
            if channel == "shell":  # ipykernel calls this for every message, even one that it then does not carry out
                self._has_turn(parent.get("header", {}).get("msg_id"))

        kernel.set_parent = noted

    def put(self, run: Run, after: Iterable[str] = ()) -> None:
        """Run a cell after earlier cells, and after the requests with ids in `after`, which may arrive later."""
        self._waiting.append(_WaitingRun({*after}.difference(self._had), run, self._loop.time() + LOST_AFTER))
        if len(self._waiting) == 1:
            self._look()

    def _has_turn(self, message: str | None) -> None:
        if message is not None:
            self._had.append(message)
            for each in self._waiting:
                each.after.discard(message)
        self._look()

    def _look(self) -> None:
        """Give turns to cells from the front of the queue, up to the first one that still waits for a request."""
        while self._waiting:
            first = self._waiting[0]
            if first.after and (left := first.until - self._loop.time()) > 0:
                self._loop.call_later(left, self._look)
                return
            self._had += first.after  # the requests that were lost
            self._waiting.popleft()
            self._take_turn(first.run)


def _by_lock(kernel: Any) -> Callable[[Run], None]:
    """Return a function that gives turns as ipykernel 7 does: the task with the lock runs; all tasks share one context.

    So a cell finds the variables of `contextvars` as the previous cell left them, also if one of the two cells is plain
    ipyparallel's.
    """
    context, turns = copy_context(), set[asyncio.Task[None]]()

    async def in_turn(run: Run) -> None:
        async with kernel._main_asyncio_lock:
            await run()

    def take_turn(run: Run) -> None:
        turn = asyncio.create_task(in_turn(run), context=context)
        turns.add(turn)  # asyncio itself keeps only weak references to tasks
        turn.add_done_callback(turns.discard)

    def receive(message: object) -> asyncio.Task[None]:
        return asyncio.create_task(kernel.shell_main(None, message), context=context)

    kernel.shell_stream.on_recv(receive, copy=False)
    return take_turn
