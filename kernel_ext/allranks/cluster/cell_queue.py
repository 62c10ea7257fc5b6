"""Cells that wait for others: each runs once the cell before it has succeeded, or is named as not run."""

from __future__ import annotations

import contextvars
import itertools
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from html import escape
from typing import Any, Literal, Protocol

from allranks.errors import AllranksError, Busy, CellInterrupted, CellTimeout, NotRun, UsageError
from allranks.head.state.code_changes import Code
from allranks.units import cut_text
from allranks_widgets.table import html_table, text_table

from .cell import Cell
from .options import local_options
from .result import CellResult

QueueState = Literal["waiting", "running", "ok", "failed", "stopped", "not run"]
MOST_ENDED = 50
"""Cells that are listed after their end."""
CHECK_EVERY = 0.1
"""Seconds between two checks of ranks that are busy, and of cells that the queue has not started."""
LONGEST = 60
"""Characters of code that are listed."""
DROPPED = "it was dropped from the queue"
HEADINGS = ("cell", "state", "after", "code")
FAILURES = {"failed": "failed", "stopped": "was stopped", "not run": "was not run"}


class Predecessor(Protocol):
    """A cell that another one waits for: in the queue, or sent to the ranks without it."""

    @property
    def label(self) -> str: ...
    @property
    def status(self) -> str: ...
    @property
    def why(self) -> str: ...
    def is_called(self, text: str) -> bool: ...


@dataclass(frozen=True)
class Entry:
    """A cell as it is listed."""

    label: str
    status: QueueState
    why: str
    after: str
    code: str

    @property
    def row(self) -> list[str]:
        return [self.label, f"{self.status}: {self.why}" if self.why else self.status, self.after, self.code]


class QueuedCell:
    """A cell in the queue. It runs in its turn, also if `finish` is not called."""

    def __init__(self, code: str, name: str, count: int | None, after: Predecessor | None, named: bool) -> None:
        """`count` is its number in the notebook. `named` says whether the user has named the cell `after`."""
        self.code, self.name, self.count = code, name, count
        self.status: QueueState = "waiting"
        self.why = ""
        """Why it was not run, or how it failed."""
        self.after: Predecessor | None = after
        """The cell that it waits for."""
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
        """Whether this is its name or its number."""
        return text == self.name or (self.count is not None and text in (str(self.count), f"In[{self.count}]"))

    def __repr__(self) -> str:
        return f"<{self.label}: {self.status}{f' ({self.why})' if self.why else ''}>"

    @property
    def result(self) -> CellResult | None:
        """None until it has ended, and where it was not run."""
        return self._cell.result if self._cell is not None else None

    def finish(self, timeout: float | None = None) -> CellResult:
        """Wait for its end, and return its result.

        Raises NotRun where it was not run, what `Cell.finish` raised while the queue followed it, CellTimeout after
        `timeout` seconds, and CellInterrupted for Ctrl-C; after the last two, the cell stays in the queue, or goes on.
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

    def entry(self) -> Entry:
        after = self.after.label if self.after is not None else ""
        return Entry(self.label, self.status, self.why, after, self._first_line)

    @cached_property
    def _first_line(self) -> str:
        lines = [line.strip() for line in Code.of(self.code).text.splitlines()]
        return cut_text(next((line for line in lines if line and not line.startswith("#")), ""), LONGEST)

    # For the queue, which holds its lock.

    def begun(self, cell: Cell) -> None:
        self._cell = cell

    def end(self, status: QueueState, why: str = "", error: Callable[[], BaseException] | None = None) -> None:
        self.status, self.why, self._error = status, why.rstrip("."), error
        self.ended.set()

    def end_unrun(self, why: str) -> None:
        self.end("not run", why, lambda: NotRun(f"{self.label} was not run: {self.why}."))


class CellQueue:
    """The cells of one cluster that wait for others; iterates over entries as they are listed."""

    def __init__(
        self,
        begin: Callable[..., Cell],
        recent: Callable[[], Sequence[Predecessor]],
        underway: Callable[[], Sequence[Cell]],
        is_busy: Callable[[Any], bool],
    ) -> None:
        """`begin` sends a cell to the ranks. `recent` returns those that run and the user's last one, which is the last
        in it, `underway` those that run. `is_busy` returns whether one of these ranks runs a cell.
        """
        self._begin, self._recent, self._underway, self._is_busy = begin, recent, underway, is_busy
        self._changed = threading.Condition()
        self._cells: list[tuple[QueuedCell, dict[str, Any], contextvars.Context]] = []
        """Those that wait or run, the next one first: with the options of `begin`, and where their output is shown."""
        self._ended: deque[Entry] = deque(maxlen=MOST_ENDED)
        self._names = itertools.count(1)
        self._starter: threading.Thread | None = None

    def __iter__(self) -> Iterator[Entry]:
        with self._changed:
            return iter([*self._ended, *(queued.entry() for queued, *_ in self._cells)])

    # Changing.

    def add(self, code: str, *, after: int | str | None = None, name: str = "", **options: Any) -> QueuedCell:
        """Run `code` once the cell `after` has succeeded: by its name or number, by default the last one.

        The last one is the last in the queue, or else the last that was sent to the ranks. The options are those of
        `Cluster.begin`. Raises UsageError for an invalid option, where there is no such cell, and where it has ended
        and has not succeeded.
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
        """Take cells out of the queue. Raises UsageError for one that does not wait."""
        with self._changed:
            for queued in [self._waiting(each) for each in which]:
                self._unlink(queued)
                queued.end_unrun(DROPPED)
            self._settle()

    def move(self, which: int | str, before: int | str) -> None:
        """Run a cell directly before another one, which then waits for it. Raises UsageError where that cannot be."""
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
        """End all cells that wait: they are not run."""
        with self._changed:
            for queued, *_ in self._cells:
                if queued.status == "waiting":
                    queued.end_unrun(why)
            self._settle()

    def _unlink(self, queued: QueuedCell) -> None:
        """Have those that wait for a cell, and whose user has not named it, wait for the one before it."""
        for other, *_ in self._cells:
            if other.after is queued and not other.is_after_a_named_cell:
                other.after, other.is_after_a_named_cell = queued.after, queued.is_after_a_named_cell

    def _settle(self) -> None:
        """Note which cells can no longer run, and which have ended; the starter looks again."""
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
                queued.after = None  # the result of that cell may be large
        self._cells = [each for each in self._cells if not each[0].ended.is_set()]
        self._changed.notify_all()

    # Running.

    def _start_all(self) -> None:
        """Start each cell in its turn. After an error, the cells that wait are named as not run."""
        try:
            self._start_cells()
        except BaseException as error:
            with self._changed:
                self._starter = None
            self.close(f"the queue failed: {type(error).__name__}: {error}")
            raise

    def _start_cells(self) -> None:
        """Start each cell in its turn, until none waits."""
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
                due[0].status = "running"  # from now on it is not dropped
            self._start(*due)

    def _is_due(self, queued: QueuedCell, options: dict[str, Any]) -> bool:
        before = queued.after
        if before is not None and before.status == "running" and not isinstance(before, QueuedCell):
            self._follow_unfollowed(before)
        if before is not None and before.status != "ok":
            return False
        with suppress(AllranksError):  # `begin` raises it
            return not self._is_busy(options.get("ranks"))
        return True

    def _follow_unfollowed(self, sent: Predecessor) -> None:
        """A cell comes to its end only if it is followed."""
        for cell in self._underway():
            if cell.sent is sent and not cell.followed:
                threading.Thread(target=cell.follow_for_others, name="allranks-cell", daemon=True).start()

    def _start(self, queued: QueuedCell, options: dict[str, Any], context: contextvars.Context) -> None:
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
            except RuntimeError:  # no more threads: the other cells wait
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
        """A cell of the queue, or one that runs, or was the last. Raises UsageError."""
        cells: list[Predecessor] = [*self._recent(), *(queued for queued, *_ in self._cells)]
        found = next((each for each in reversed(cells) if each.is_called(text)), None)
        if found is None:
            there = ", ".join(each.label for each in cells)
            raise UsageError(f"no cell {text!r} waits or runs{f'; these do: {there}' if there else ''}.")
        return found

    def _waiting(self, which: int | str) -> QueuedCell:
        """A cell that waits. Raises UsageError."""
        waiting = [queued for queued, *_ in self._cells if queued.status == "waiting"]
        found = next((each for each in waiting if each.is_called(str(which))), None)
        if found is None:
            there = ", ".join(each.label for each in waiting) or "none"
            raise UsageError(f"no cell {str(which)!r} waits. Waiting: {there}.")
        return found

    def after_text(self, queued: QueuedCell) -> str:
        """What to say of a cell that was added."""
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
    """Why no other cell is to run after it; empty while it has not ended, and where it has succeeded."""
    if cell.status not in FAILURES:
        return ""
    return f"{cell.label} {FAILURES[cell.status]}{f' ({cell.why})' if cell.why else ''}"
