"""Cells that wait for others: each runs once the one before has ended well, or is named as not run."""

from __future__ import annotations

import contextvars
import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from html import escape
from typing import Any, Literal, TypeAlias

from allranks.errors import AllranksError, Busy, CellInterrupted, CellTimeout, NoCluster, NotRun, UsageError
from allranks_widgets.table import html_table, text_table

from .cell import Cell
from .result import CellResult

QueuedState = Literal["waiting", "running", "ok", "failed", "stopped", "not run"]
KEPT = 50
"""Cells that have ended which are kept: other cells may name them, and they are listed."""
LOOK_EVERY = 0.2
"""Seconds between two looks at whether busy ranks are done."""
LONGEST = 60
"""Characters of code that are listed."""
DROPPED = "it was dropped from the queue"
HEADINGS = ("cell", "state", "after", "code")


Before: TypeAlias = "Cell | QueuedCell"
"""What a cell waits for."""


class QueuedCell:
    """A cell in the queue; `finish` waits for its end, as `Cell.finish` does."""

    def __init__(self, queue: CellQueue, label: str, code: str, after: Before | None) -> None:
        """`after` is the cell that it waits for, None for the one that is before it in the queue."""
        self.label, self.code, self.after = label, code, after
        self.state: QueuedState = "waiting"
        self.why = ""
        """Why it was not run, or how it failed."""
        self.cell: Cell | None = None
        """The running cell, once it has begun."""
        self.over = threading.Event()
        self.dropped = False
        self._queue = queue
        self._error: BaseException | None = None

    def __repr__(self) -> str:
        return f"<{self.label}: {self.state}{f' ({self.why})' if self.why else ''}>"

    @property
    def result(self) -> CellResult | None:
        return self.cell.result if self.cell is not None else None

    @property
    def ok(self) -> bool:
        return self.state == "ok"

    def finish(self, timeout: float | None = None) -> CellResult:
        """Wait for its end.

        Raises NotRun where it was not run, CellTimeout after `timeout` seconds (it stays in the queue, or goes on), and
        what `Cell.finish` raises.
        """
        if not self.over.wait(None if timeout is None else min(timeout, threading.TIMEOUT_MAX)):
            raise CellTimeout(f"{self.label} is {self.state} after {timeout:g} s.")
        if self._error is not None:
            raise self._error
        assert self.result is not None
        return self.result

    def end(self, state: QueuedState, why: str = "", error: BaseException | None = None) -> None:
        """Note how it ended. Only the first call counts."""
        with self._queue.changed:
            if not self.over.is_set():
                self.state, self.why, self._error = state, why, error
                self.over.set()
                self._queue.changed.notify_all()

    def not_run(self, why: str) -> None:
        self.end("not run", why, NotRun(f"{self.label} was not run: {why.rstrip('.')}."))


class CellQueue:
    """The cells of one cluster that wait for others, in their order; iterates over those that are listed."""

    def __init__(self, begin: Callable[..., Cell], recent: Callable[[], list[Cell]]) -> None:
        """`begin` sends a cell to the ranks, `recent` returns the last cells that were sent, the newest last."""
        self.changed = threading.Condition(threading.RLock())
        self._begin, self._recent = begin, recent
        self._entries: list[QueuedCell] = []
        """Those that have waited since the queue was empty last, in their order."""
        self._before_all: Before | None = None
        """The cell that the first of these waits for."""
        self._ended: deque[QueuedCell] = deque(maxlen=KEPT)
        self._numbers = itertools.count(1)

    def __iter__(self) -> Iterator[QueuedCell]:
        with self.changed:
            return iter([*self._ended, *self._entries])

    def __len__(self) -> int:
        return len(self._ended) + len(self._entries)

    def __getitem__(self, which: int | str) -> QueuedCell:
        """By name, or by the number of its cell. Raises UsageError."""
        if (found := self._named(str(which))) is None:
            listed = ", ".join(each.label for each in self) or "nothing"
            raise UsageError(f"no cell {str(which)!r} in the queue. It has {listed}.")
        return found

    # Changing.

    def add(self, code: str, *, after: int | str | None = None, name: str = "", **options: Any) -> QueuedCell:
        """Run `code` once the cell `after` has ended well: by name or number, by default the last one.

        The last one is the last in the queue, or else the last that was sent to the ranks. The options are those of
        `Cluster.begin`. Raises UsageError where there is no such cell, or it has ended and was not ok.
        """
        with self.changed:
            if name and (name.isdecimal() or self._named(name) is not None):
                raise UsageError(
                    f"{name!r} cannot name a cell: {'it is a number' if name.isdecimal() else 'it is taken'}."
                )
            number = options.get("count") or next(self._numbers)
            if all(each.over.is_set() for each in self._entries):
                self._ended += self._entries
                self._entries = []
                recent = self._recent()
                self._before_all = recent[-1] if recent else None
            queued = QueuedCell(self, name or f"In[{number}]", code, None if after is None else self._any(str(after)))
            self._entries.append(queued)
            if (waits_for := self.before(queued)) is not None and (why := _ended_badly(waits_for)):
                self._entries.remove(queued)
                raise UsageError(f"not queued: {why}.")
        context = contextvars.copy_context()  # in a notebook, output belongs below the cell that was queued
        arguments = (self._work, queued, options)
        threading.Thread(target=context.run, args=arguments, name=f"allranks-queue-{number}", daemon=True).start()
        return queued

    def drop(self, *which: int | str) -> None:
        """Take cells out of the queue. Raises UsageError for one that does not wait."""
        for queued in self._waiting(which):
            queued.dropped = True
            queued.not_run(DROPPED)

    def move(self, which: int | str, before: int | str) -> None:
        """Have a cell run before another one. Raises UsageError where one of them does not wait, or waits for it."""
        with self.changed:
            queued, other = self._waiting((which, before))
            entries = self._entries
            self._entries = [each for each in entries if each is not queued]
            self._entries.insert(self._entries.index(other), queued)
            if self._waits_for_itself(other):
                self._entries = entries
                raise UsageError(f"{queued.label} waits for {other.label}, or for one that waits for it.")
            self.changed.notify_all()

    def close(self, why: str) -> None:
        """None of those that wait will run."""
        for queued in self:
            if queued.state == "waiting":
                queued.not_run(why)

    # Running.

    def _work(self, queued: QueuedCell, options: dict[str, Any]) -> None:
        """Wait for the turn of a cell, and follow it to its end, in a thread of its own."""
        try:
            self._await_turn(queued)
            queued.cell = cell = self._begin_once_idle(queued, options)
        except (AllranksError, CellInterrupted) as error:
            queued.not_run(str(error) or "it was stopped")
            return
        with self.changed:
            queued.state = "running"
            self.changed.notify_all()
        try:
            result = cell.finish()
        except (CellInterrupted, CellTimeout, NoCluster) as error:
            queued.end("stopped", str(error), error)
        except BaseException as error:
            queued.end("failed", str(error), error)
            raise
        else:
            queued.end("ok" if result.ok else "failed", "" if result.ok else result.failure())

    def _await_turn(self, queued: QueuedCell) -> None:
        """Return once the cell is to begin. Raises NotRun where it never is."""
        while True:
            with self.changed:
                if queued.over.is_set():
                    raise NotRun(queued.why)
                waits_for = self.before(queued)
                if isinstance(waits_for, QueuedCell) and not waits_for.over.is_set():
                    self.changed.wait()
                    continue
            if isinstance(waits_for, Cell):
                _await_end(waits_for, queued.over)
            with self.changed:
                if waits_for is self.before(queued) and not queued.over.is_set():
                    if waits_for is not None and (why := _ended_badly(waits_for)):
                        raise NotRun(why)
                    return

    def _begin_once_idle(self, queued: QueuedCell, options: dict[str, Any]) -> Cell:
        """Begin the cell as soon as its ranks have nothing else to do. Raises what `begin` raises, and NotRun."""
        while True:
            if queued.over.is_set():
                raise NotRun(queued.why)
            try:
                return self._begin(queued.code, **options)
            except Busy:
                queued.over.wait(LOOK_EVERY)

    # Looking.

    def before(self, queued: QueuedCell) -> Before | None:
        """The cell that this one waits for, or has waited for."""
        if queued.after is not None:
            return queued.after
        with self.changed:
            entries = [each for each in self._entries if not each.dropped or each is queued]
            place = entries.index(queued) if queued in entries else 0
            return entries[place - 1] if place else self._before_all

    def _waits_for_itself(self, queued: QueuedCell) -> bool:
        each: Before | None = queued
        for _ in self._entries:
            if not isinstance(each, QueuedCell) or (each := self.before(each)) is queued:
                break
        return each is queued

    def _named(self, text: str) -> QueuedCell | None:
        return next((each for each in reversed([*self]) if text in _names(each)), None)

    def _any(self, text: str) -> Before:
        """A cell in the queue, or one that was sent to the ranks. Raises UsageError."""
        found = self._named(text) or next((each for each in reversed(self._recent()) if text in _names(each)), None)
        if found is None:
            raise UsageError(
                f"no cell {text!r} is in the queue or was run lately: use its number, as in In[7], or its name."
            )
        return found

    def _waiting(self, which: Sequence[int | str]) -> list[QueuedCell]:
        """Those of the queue that wait, by name or number. Raises UsageError."""
        found = [self[each] for each in which]
        for each in found:
            if each.state != "waiting":
                raise UsageError(f"{each.label} does not wait: {each.state}.")
        return found

    def __str__(self) -> str:
        rows = self._rows()
        return text_table(HEADINGS, rows) if rows else "No cells in the queue: %%distributed --after puts one there."

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = self._rows()
        return html_table(HEADINGS, rows) if rows else f"<div>{escape(str(self))}</div>"

    def _rows(self) -> list[list[str]]:
        return [
            [
                each.label,
                f"{each.state}: {each.why}" if each.why else each.state,
                label_of(before) if (before := self.before(each)) is not None else "",
                _first_line(each.code),
            ]
            for each in self
        ]


def label_of(cell: Before) -> str:
    """What it is called: ``In[7]``, or its name."""
    return cell.label if isinstance(cell, QueuedCell) else f"In[{cell.count}]"


def _names(cell: Before) -> tuple[str, str]:
    label = label_of(cell)
    return label, label.removeprefix("In[").removesuffix("]")


def _ended_badly(cell: Before) -> str:
    """Why no other cell is to run after it; empty while it has not ended, and where it was ok."""
    state: QueuedState = cell.state if isinstance(cell, QueuedCell) else cell.status
    if isinstance(cell, QueuedCell):
        why = cell.why.rstrip(".")
    else:
        why = cell.result.failure() if cell.status == "failed" and cell.result is not None else ""
    was = {"failed": "failed", "stopped": "was stopped", "not run": "was not run"}.get(state)
    return f"{label_of(cell)} {was}{f' ({why})' if why else ''}" if was is not None else ""


def _await_end(cell: Cell, or_until: threading.Event) -> None:
    """Wait until a cell has ended; where nobody follows it, follow it."""
    while not cell.shown.is_set() and not or_until.is_set():
        if cell.followed:
            cell.shown.wait(LOOK_EVERY)
        else:
            with suppress(AllranksError, CellInterrupted):
                cell.finish()


def _first_line(code: str) -> str:
    lines = [line.strip() for line in code.splitlines() if line.strip() and not line.startswith("#")]
    first = lines[0] if lines else ""
    return first if len(first) <= LONGEST else f"{first[: LONGEST - 1]}…"
