"""The cell that the main thread runs, or ran last, and where the main thread is in it."""

from __future__ import annotations

import linecache
import os
import time
from types import FrameType
from weakref import WeakSet

from allranks.messages.events import LedgerEntry
from allranks.messages.value_types import Namespace
from allranks.rank.collectives.ledger import Ledger
from allranks.rank.collectives.record import Record

from .background_tasks import Task, Tasks
from .interrupt import MainThreadInterrupt
from .main_thread_calls import MainThread


class RunningCell:
    """The main thread updates this object as cells begin and end (`cell.recorder`); the agent's thread reads it."""

    def __init__(self, main: MainThread, ledger: Ledger, user_ns: Namespace, tasks: Tasks) -> None:
        self._main, self._ledger, self._user_ns, self._tasks = main, ledger, user_ns, tasks
        self.number = 0
        self.running = False
        self.began_at = 0.0
        """The `time.monotonic` at which the code of this cell began."""
        self.waits_since = 0
        """Number of the newest collective in which this cell cannot be waiting."""
        self.interrupt = MainThreadInterrupt(ledger.aborted)
        self.file: str | None = None
        """The file to which the cell's line numbers refer: the cell's own, or the file of a function that it calls.

        The notebook sends such a function with the cell (`cell.called_functions`). `place` names the function's file in
        messages, and is empty for the cell's own file.
        """
        self.place = ""
        self._namespace = user_ns
        """The globals by which frames of the user's code are recognised."""
        self._earlier_tasks = WeakSet[Task]()
        """The asyncio tasks of earlier cells that were pending when this cell began."""

    def enter(self, file: str | None, place: str = "", namespace: Namespace | None = None) -> None:
        """Set which code runs from here on: the cell's own, or a called function, whose globals are `namespace`."""
        self.file, self.place = file, place
        self._namespace = self._ledger.user_ns = self._user_ns if namespace is None else namespace

    def run(self) -> None:
        """Mark the cell as running: everything is prepared, and its code runs next."""
        self._earlier_tasks = WeakSet(self._tasks.pending())
        self.began_at = time.monotonic()
        self.running = True

    def runs(self, number: int) -> bool:
        return self.running and self.number == number

    def user_frame(self) -> FrameType | None:
        """The main thread's innermost frame that runs the user's code; None if there is none."""
        frame, namespace = self._main.frame(), self._namespace
        while frame is not None and frame.f_globals is not namespace:
            frame = frame.f_back
        return frame

    def suspended_frame(self) -> FrameType | None:
        """The frame of the cell's own code that awaits something, as `await asyncio.sleep(1)`; None if none does."""
        for task in self._tasks.all():
            coroutine: object = task.get_coro()
            while coroutine is not None:
                frame: FrameType | None = getattr(coroutine, "cr_frame", None)
                if frame is not None and frame.f_code.co_filename == self.file:
                    return frame
                coroutine = getattr(coroutine, "cr_await", None)
        return None

    def location(self, frame: FrameType | None) -> tuple[int | None, str | None]:
        """The line of the cell that runs in `frame` (see `user_frame`), or that awaits something, and its text.

        If there is neither, the text is the function that the main thread runs instead, without a line.
        """
        frame = frame or self.suspended_frame()
        if frame is not None:
            return self.line_of(frame)
        other = self._main.frame()
        if other is None:
            return None, None
        code, file = other.f_code, os.path.basename(other.f_code.co_filename)
        return None, f"outside the cell's code, in {code.co_name} ({file}:{other.f_lineno})"

    def line(self) -> int | None:
        """The line of the cell where the main thread is now; None if it runs no code of the user."""
        frame = self.user_frame() if self.running else None
        return self.line_of(frame)[0] if frame is not None else None

    def line_of(self, frame: FrameType) -> tuple[int, str]:
        """The line of the cell that runs in `frame`, and its text.

        For a function that the user defined in an earlier cell, it is the line of this cell that called the function.
        """
        found = frame
        at: FrameType | None = frame
        while at is not None:
            if at.f_globals is frame.f_globals:
                found = at
                if at.f_code.co_filename == self.file:
                    break
            at = at.f_back
        return found.f_lineno, linecache.getline(found.f_code.co_filename, found.f_lineno).strip()[:80]

    def collective(self, record: Record) -> LedgerEntry:
        """Return the record as a ledger entry to send, with its line only if that is a line of `file`."""
        return record.entry(record.line if record.file == self.file else None)

    def current_collective(self) -> LedgerEntry | None:
        """The newest collective, if the running cell or an asyncio task of an earlier cell can be waiting in it."""
        record = self._ledger.last()
        return self.collective(record) if record is not None and self.may_wait_in(record) else None

    def may_wait_in(self, record: Record) -> bool:
        """Whether the running cell, or an asyncio task of an earlier cell, can be waiting in this collective."""
        return record.seq > max(self.waits_since, self._ledger.order.settled)

    def in_task(self) -> bool:
        """Whether the main thread runs an asyncio task of an earlier cell, if it runs any code of the user."""
        return not self.running or self._tasks.runs_one_of(self._earlier_tasks)

    def left_tasks(self) -> bool:
        """Whether the cell is over, and asyncio tasks of the user's code are still pending."""
        return not self.running and bool(self._tasks.pending())
