"""The order in which a rank runs cells: those of the notebook, and those of plain ipyparallel, as they come.

Cells of the notebook come over the lifeline, the others over ipykernel's shell channel, whose messages it handles one
after another. Cells of the notebook take their turns among these.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextvars import copy_context
from typing import Any, NamedTuple, TypeAlias

Run: TypeAlias = Callable[[], Awaitable[None]]

REMEMBERED = 1000
"""Requests of ipyparallel's clients whose ids are kept: more than can be on their way beside a cell."""
LOST_AFTER = 5.0
"""Seconds after which cells no longer wait for a request that was sent before them: the controller may have lost it."""


class _Waiting(NamedTuple):
    after: set[str]
    run: Run
    until: float


class Turns:
    """For the main thread."""

    def __init__(self, kernel: Any) -> None:
        self._take_turn = _by_lock(kernel) if hasattr(kernel, "_main_asyncio_lock") else kernel.schedule_dispatch
        self._had: deque[str] = deque(maxlen=REMEMBERED)
        """The last requests of ipyparallel's clients that had, or have, their turn."""
        self._waiting: deque[_Waiting] = deque()
        self._loop = asyncio.get_running_loop()
        set_parent = kernel.set_parent

        def noted(ident: Any, parent: dict[str, Any], channel: str = "shell") -> None:
            set_parent(ident, parent, channel)
            if channel == "shell":  # each message, also one that is not carried out
                self._has_turn(parent.get("header", {}).get("msg_id"))

        kernel.set_parent = noted

    def put(self, run: Run, after: Iterable[str] = ()) -> None:
        """Run it in its turn, behind what came before it, and behind these requests, which may come later."""
        self._waiting.append(_Waiting({*after}.difference(self._had), run, self._loop.time() + LOST_AFTER))
        if len(self._waiting) == 1:
            self._look()

    def _has_turn(self, message: str | None) -> None:
        if message is not None:
            self._had.append(message)
            for each in self._waiting:
                each.after.discard(message)
        self._look()

    def _look(self) -> None:
        """Give those their turns that wait for nothing any more."""
        while self._waiting:
            first = self._waiting[0]
            if first.after and (left := first.until - self._loop.time()) > 0:
                self._loop.call_later(left, self._look)
                return
            self._had += first.after  # those that were lost
            self._waiting.popleft()
            self._take_turn(first.run)


def _by_lock(kernel: Any) -> Callable[[Run], None]:
    """As ipykernel 7 does it: what holds a lock has its turn, and all share one context.

    A cell finds the variables of `contextvars` as the cell before left them, also one of plain ipyparallel.
    """
    context, turns = copy_context(), set[asyncio.Task[None]]()

    async def in_turn(run: Run) -> None:
        async with kernel._main_asyncio_lock:
            await run()

    def take_turn(run: Run) -> None:
        turn = asyncio.create_task(in_turn(run), context=context)
        turns.add(turn)  # asyncio itself keeps weak references
        turn.add_done_callback(turns.discard)

    def receive(message: Any) -> asyncio.Task[None]:
        return asyncio.create_task(kernel.shell_main(None, message), context=context)

    kernel.shell_stream.on_recv(receive, copy=False)
    return take_turn
