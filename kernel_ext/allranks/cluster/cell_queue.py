"""Cells that wait for other cells: each runs once its predecessor has succeeded, or is reported as not run."""

from __future__ import annotations

import contextvars
import itertools
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from html import escape
from typing import Any, Literal, Protocol

from allranks.errors import AllranksError, Busy, CellInterrupted, CellTimeout, NotRun, UsageError
from allranks.head.state.code_constants import Code
from allranks.units import cut_text
from allranks_widgets.table import html_table, text_table

from .cell import Cell
from .cell_result import CellResult
from .option_keywords import local_options

QueueState = Literal["waiting", "running", "ok", "failed", "stopped", "not run"]
MOST_ENDED = 50
"""Maximum number of ended cells in the list."""
CHECK_EVERY = 0.1
"""Seconds between two checks of whether ranks are idle, and whether cells that were sent directly have ended."""
LONGEST = 60
"""Maximum number of characters of a cell's code in the list."""
DROPPED = "it was dropped from the queue"
HEADINGS = ("cell", "state", "after", "code")
FAILURES = {"failed": "failed", "stopped": "was stopped", "not run": "was not run"}


class Predecessor(Protocol):
    """A cell that another cell waits for: in the queue, or sent to the ranks directly."""

    @property
    def label(self) -> str: ...
    @property
    def status(self) -> str: ...
    @property
    def why(self) -> str: ...
    def is_called(self, text: str) -> bool: ...


@dataclass(frozen=True)
class QueueRow:
    """A cell in the list of the queue."""

    label: str
    status: QueueState
    why: str
    after: str
    code: str

    @property
    def row(self) -> list[str]:
        return [self.label, f"{self.status}: {self.why}" if self.why else self.status, self.after, self.code]


class QueuedCell:
    """A cell in the queue. It runs in its turn, even if `finish` is not called."""

    def __init__(self, code: str, name: str, count: int | None, after: Predecessor | None, named: bool) -> None:
        """`count` is the cell's number in a notebook (None in a script); `named`: whether the user chose `after`."""
        self.code, self.name, self.count = code, name, count
        self.status: QueueState = "waiting"
        self.why = ""
        """Why the cell was not run, or how it failed."""
        self.after: Predecessor | None = after
        """The cell that this cell waits for."""
        self.is_after_a_named_cell = named
        self.ended = threading.Event()
        self._cell: Cell | None = None
        self._error: Callable[[], BaseException] | None = None

    @property
    def label(self) -> str:
        """``In[5]``, ``eval (In[5])`` or, without a notebook, its name."""
        number = f"In[{self.count}]" if self.count is not None else ""
        return f"{self.name} ({number})" if self.name and number else self.name or number

    def is_called(self, text: str) -> bool:
        """Whether `text` is the cell's name or its number."""
        return text == self.name or (self.count is not None and text in (str(self.count), f"In[{self.count}]"))

    def __repr__(self) -> str:
        return f"<{self.label}: {self.status}{f' ({self.why})' if self.why else ''}>"

    @property
    def result(self) -> CellResult | None:
        """The result of the cell; None until it has ended, and if it was not run."""
        return self._cell.result if self._cell is not None else None

    def finish(self, timeout: float | None = None) -> CellResult:
        """Wait for the end of the cell, and return its result.

        Raises NotRun if the cell was not run, what `Cell.finish` raised while the queue followed the cell, CellTimeout
        after `timeout` seconds of waiting, and CellInterrupted for Ctrl-C. After the last two, the cell stays in the
        queue, or goes on running.
        """
        try:
            in_time = self.ended.wait(None if timeout is None else min(timeout, threading.TIMEOUT_MAX))
        except KeyboardInterrupt:
            raise CellInterrupted(f"{self.label} is still {self.status}") from None
        if not in_time:
            raise CellTimeout(f"{self.label} is still {self.status} after {timeout:g} s.")
        if self._error is not None:
            raise self._error()
        assert self.result is not None
        return self.result

    def entry(self) -> QueueRow:
        after = self.after.label if self.after is not None else ""
        return QueueRow(self.label, self.status, self.why, after, self._first_line)

    @cached_property
    def _first_line(self) -> str:
        lines = [line.strip() for line in Code.of(self.code).text.splitlines()]
        return cut_text(next((line for line in lines if line and not line.startswith("#")), ""), LONGEST)

    # For the queue, which calls `end` and `end_unrun` with its lock held.

    def begun(self, cell: Cell) -> None:
        self._cell = cell

    def end(self, status: QueueState, why: str = "", error: Callable[[], BaseException] | None = None) -> None:
        self.status, self.why, self._error = status, why.rstrip("."), error
        self.ended.set()

    def end_unrun(self, why: str) -> None:
        self.end("not run", why, lambda: NotRun(f"{self.label} was not run: {self.why}."))


class CellQueue:
    """The cells of one cluster that wait for other cells; iterates over the listed entries, ended cells first."""

    def __init__(
        self,
        begin: Callable[..., Cell],
        recent: Callable[[], Sequence[Predecessor]],
        underway: Callable[[], Sequence[Cell]],
        is_busy: Callable[[Sequence[int] | int | None], bool],
    ) -> None:
        """`begin` sends a cell to the ranks; `is_busy` returns whether one of the ranks that it is given runs a cell.

        `recent` returns the running cells followed by the user's last cell; `underway` returns the running cells.
        """
        self._begin, self._recent, self._underway, self._is_busy = begin, recent, underway, is_busy
        self._changed = threading.Condition()
        self._cells: list[tuple[QueuedCell, dict[str, object], contextvars.Context]] = []
        """Waiting and running cells, next first, with their options for `begin` and the context of their output."""
        self._ended: deque[QueueRow] = deque(maxlen=MOST_ENDED)
        self._names = itertools.count(1)
        self._starter: threading.Thread | None = None

    def __iter__(self) -> Iterator[QueueRow]:
        with self._changed:
            return iter([*self._ended, *(queued.entry() for queued, *_ in self._cells)])

    # Changing.

    def add(self, code: str, *, after: int | str | None = None, name: str = "", **options: object) -> QueuedCell:
        """Run `code` once the cell `after`, given by name or number, has succeeded.

        By default, that is the last cell in the queue or, if the queue is empty, the last one sent to the ranks. `name`
        is the new cell's name. The options are those of `Cluster.begin`. Raises UsageError for an invalid option or
        name, if there is no cell `after`, and if that cell has ended without success.
        """
        checked = local_options(**options)
        with self._changed:
            number_like = re.fullmatch(r"(In\[)?\d+\]?", name) is not None
            if number_like or (name and self._has(name)):
                why = "it is a number" if number_like else "a cell in the queue has this name"
                raise UsageError(f"{name!r} cannot name a cell: {why}.")
            before = self._find(str(after)) if after is not None else self._last()
            if before is not None and (failure := _failure(before)):
                raise UsageError(f"not queued: {failure}.")
            if not name and checked.count is None:
                names = (f"queued {number}" for number in self._names)
                name = next(each for each in names if not self._has(each))
            if self._starter is None:
                starter = threading.Thread(target=self._start_all, name="allranks-queue", daemon=True)
                starter.start()  # it waits for the lock
                self._starter = starter
            queued = QueuedCell(code, name, checked.count, before, after is not None)
            # In a notebook, output is shown below the cell whose context this is.
            self._cells.append((queued, options, contextvars.copy_context()))
            self._changed.notify_all()
        return queued

    def drop(self, *which: int | str) -> None:
        """Remove cells, given by name or number, from the queue. Raises UsageError for a cell that is not waiting."""
        with self._changed:
            for queued in [self._waiting(each) for each in which]:
                self._unlink(queued)
                queued.end_unrun(DROPPED)
            self._settle()

    def move(self, which: int | str, before: int | str) -> None:
        """Run cell `which` directly before cell `before`, which then waits for it. Raises UsageError if impossible."""
        with self._changed:
            queued, other = self._waiting(which), self._waiting(before)
            if queued is other:
                raise UsageError(f"{queued.label} cannot run before itself.")
            each = other.after
            while isinstance(each, QueuedCell):
                if each.after is queued and each.is_after_a_named_cell:
                    raise UsageError(f"{other.label} waits for {each.label}, which waits for {queued.label}.")
                each = each.after
            if not (other.after is queued and other.is_after_a_named_cell):
                self._unlink(queued)
                queued.after, queued.is_after_a_named_cell = other.after, other.is_after_a_named_cell
                other.after, other.is_after_a_named_cell = queued, True
            moved = next(each for each in self._cells if each[0] is queued)
            self._cells.remove(moved)
            self._cells.insert(next(n for n, each in enumerate(self._cells) if each[0] is other), moved)
            self._settle()

    def close(self, why: str) -> None:
        """End all waiting cells as not run, for the reason `why`."""
        with self._changed:
            for queued, *_ in self._cells:
                if queued.status == "waiting":
                    queued.end_unrun(why)
            self._settle()

    def _unlink(self, queued: QueuedCell) -> None:
        """Make cells that wait for `queued` only by default, without naming it, wait for its predecessor instead."""
        for other, *_ in self._cells:
            if other.after is queued and not other.is_after_a_named_cell:
                other.after, other.is_after_a_named_cell = queued.after, queued.is_after_a_named_cell

    def _settle(self) -> None:
        """Note which cells can no longer run and which have ended, and wake the starter."""
        unrun = True
        while unrun:
            unrun = False
            for queued, *_ in self._cells:
                if queued.status == "waiting" and queued.after is not None and (why := _failure(queued.after)):
                    queued.end_unrun(why)
                    unrun = True
        for queued, *_ in self._cells:
            if queued.ended.is_set():
                self._ended.append(queued.entry())
                queued.after = None  # it may hold a large result
        self._cells = [each for each in self._cells if not each[0].ended.is_set()]
        self._changed.notify_all()

    # Running.

    def _start_all(self) -> None:
        """Start each cell in its turn. After an error, report the waiting cells as not run."""
        try:
            self._start_cells()
        except BaseException as error:
            with self._changed:
                self._starter = None
            self.close(f"the queue failed: {type(error).__name__}: {error}")
            raise

    def _start_cells(self) -> None:
        """Start each cell in its turn, until no cell waits."""
        while True:
            with self._changed:
                self._settle()
                waiting = [each for each in self._cells if each[0].status == "waiting"]
                if not waiting:
                    self._starter = None
                    return
                due = next((each for each in waiting if self._is_due(*each[:2])), None)
                if due is None:
                    self._changed.wait(CHECK_EVERY)
                    continue
                due[0].status = "running"  # from now on it cannot be dropped
            self._start(*due)

    def _is_due(self, queued: QueuedCell, options: Mapping[str, Any]) -> bool:
        before = queued.after
        if before is not None and before.status == "running" and not isinstance(before, QueuedCell):
            self._follow_unfollowed(before)
        if before is not None and before.status != "ok":
            return False
        with suppress(AllranksError):  # `begin` raises the same error
            return not self._is_busy(options.get("ranks"))
        return True

    def _follow_unfollowed(self, sent: Predecessor) -> None:
        """Follow a cell if no thread does: without that, its end would not be noticed."""
        for cell in self._underway():
            if cell.sent is sent and not cell.followed:
                threading.Thread(target=cell.follow_for_others, name="allranks-cell", daemon=True).start()

    def _start(self, queued: QueuedCell, options: dict[str, object], context: contextvars.Context) -> None:
        try:
            cell = context.run(self._begin, queued.code, **options)
        except Busy:  # another cell came first
            with self._changed:
                queued.status = "waiting"
                self._changed.wait(CHECK_EVERY)
        except BaseException as error:
            with self._changed:
                queued.end_unrun(str(error) or type(error).__name__)
        else:
            queued.begun(cell)
            follow = partial(context.run, self._follow, queued, cell)
            try:
                threading.Thread(target=follow, name="allranks-cell", daemon=True).start()
            except RuntimeError:  # no more threads: the queue waits here
                follow()

    def _follow(self, queued: QueuedCell, cell: Cell) -> None:
        """Show the output of a cell, and note how it ended."""
        error: BaseException | None = None
        try:
            cell.finish()
        except BaseException as raised:
            error = raised
        with self._changed:
            status: QueueState = cell.sent.status if cell.sent.status != "running" else "failed"
            why = cell.sent.why or (str(error) if error is not None else "")
            queued.end(status, why, None if error is None else lambda: error)
            self._settle()

    # Finding.

    def _has(self, name: str) -> bool:
        return any(queued.name == name for queued, *_ in self._cells)

    def _last(self) -> Predecessor | None:
        if self._cells:
            return self._cells[-1][0]
        recent = self._recent()
        return recent[-1] if recent else None

    def _find(self, text: str) -> Predecessor:
        """Find a queued or running cell, or the user's last, by name or number. Raises UsageError if none matches."""
        cells: list[Predecessor] = [*self._recent(), *(queued for queued, *_ in self._cells)]
        found = next((each for each in reversed(cells) if each.is_called(text)), None)
        if found is None:
            there = ", ".join(each.label for each in cells)
            raise UsageError(f"no cell {text!r} waits or runs{f'; these do: {there}' if there else ''}.")
        return found

    def _waiting(self, which: int | str) -> QueuedCell:
        """Find a waiting cell by its name or number. Raises UsageError."""
        waiting = [queued for queued, *_ in self._cells if queued.status == "waiting"]
        found = next((each for each in waiting if each.is_called(str(which))), None)
        if found is None:
            there = ", ".join(each.label for each in waiting) or "none"
            raise UsageError(f"no cell {str(which)!r} waits. Waiting: {there}.")
        return found

    def after_text(self, queued: QueuedCell) -> str:
        """The message on a cell that was added."""
        before = queued.after
        when = f"once {before.label} has succeeded" if before is not None else "next"
        return f"{queued.label} runs {when}. %distributed queue lists the cells that wait."

    # Listing.

    def __str__(self) -> str:
        rows = [entry.row for entry in self]
        return text_table(HEADINGS, rows) if rows else "No cells in the queue: %%distributed --after puts one there."

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = [entry.row for entry in self]
        return html_table(HEADINGS, rows) if rows else f"<div>{escape(str(self))}</div>"


def _failure(cell: Predecessor) -> str:
    """Why no cell may run after this one; empty if it has succeeded or has not ended yet."""
    if cell.status not in FAILURES:
        return ""
    return f"{cell.label} {FAILURES[cell.status]}{f' ({cell.why})' if cell.why else ''}"
