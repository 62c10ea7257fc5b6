"""The trace of a cell on this rank: its collectives, evaluations and the user's marks, with their times.

Times are seconds of `time.perf_counter`, which Python documents as system-wide: the monotonic clock of the machine, the
same in all its processes (CLOCK_MONOTONIC on Linux, mach_absolute_time on macOS). So the times of ranks on one host
need no alignment.
"""

from __future__ import annotations

import linecache
import os
import threading
import time
from collections.abc import Sized
from types import TracebackType
from typing import Any, TypeAlias

from msgspec.structs import astuple

from allranks.messages.requests import CellTrace, TracedCall, TracedMark

from .record import NOWHERE, LedgerCall, Record, record_of

LIMIT = 20_000
"""Maximum number of collectives, of evaluations and of marks that each rank keeps of a cell: the first ones.

Each kind has its own limit, so that all ranks keep the same collectives, even if some mark or evaluate more.
"""
LONGEST_NAME = 200
"""Maximum number of characters kept of a mark's name."""

now = time.perf_counter


Event: TypeAlias = list[Any]
"""What happened, and its times. A list, since its end is set later."""


class Trace:
    """The events of the last traced cell; each process has one `Trace`, which adds events only while `active`."""

    def __init__(self) -> None:
        self.active = False
        self.cell = 0
        self.dropped = 0
        """Number of events beyond the first `LIMIT` of their kind."""
        self.began = self.ended = 0.0
        self.collectives: list[Event] = []
        """By collective: the ledger's call, and the times at which it was called, began (its input was computed) and
        ended. Start and end are None if it was not evaluated at once; only the end is None if it never completed."""
        self.evaluations: list[tuple[float, float]] = []
        self.marks: list[Event] = []
        """Name, thread, start, end. The end is None if the mark is a moment, 0.0 if it is a span still open."""

    def begin(self, cell: int) -> None:
        """Start tracing `cell`, and drop the events of the cell that was traced before."""
        self.cell, self.dropped = cell, 0
        self.collectives, self.evaluations, self.marks = [], [], []
        self.began, self.ended, self.active = now(), 0.0, True

    def end(self) -> None:
        """Stop tracing, since the cell is over."""
        if self.active:
            self.active, self.ended = False, now()

    def collective(self, call: LedgerCall, asked: float, began: float | None = None) -> Event | None:
        """Add and return a collective that this rank's code called; None if there is no room, or no trace is active.

        If the collective has begun, the caller sets the end in the returned event.
        """
        if not self._has_room(self.collectives):
            return None
        event = [call, asked, began, None]
        self.collectives.append(event)
        return event

    def evaluation(self, began: float) -> None:
        """Add an ``mx.eval`` or ``mx.async_eval`` that began at `began` and has just returned."""
        if self._has_room(self.evaluations):
            self.evaluations.append((began, now()))

    def mark(self, name: str) -> Event | None:
        """Add and return a mark for this moment; None if it is not recorded."""
        if not self._has_room(self.marks):
            return None
        event = [name[:LONGEST_NAME], threading.current_thread(), now(), None]
        self.marks.append(event)
        return event

    def _has_room(self, events: Sized) -> bool:
        if not self.active:
            return False
        if len(events) >= LIMIT:
            self.dropped += 1
            return False
        return True

    def of_cell(self, cell: int, file: str | None) -> CellTrace | None:
        """The trace of `cell` to send; None if another cell was traced last.

        Collectives have line numbers only in `file`: the file to which the cell's line numbers refer.
        """
        if cell != self.cell:
            return None
        sources: list[tuple[str, str]] = []
        known: dict[tuple[int, int], tuple[int | None, int]] = {}
        collectives = []
        for raw, asked, began, end in list(self.collectives):
            code, instruction = raw.kind.where
            if (id(code), instruction) not in known:  # finding a line takes as long as all the rest
                line, source = _place(record_of(raw), file)
                known[id(code), instruction] = line, len(sources)
                sources.append(source)
            line, where = known[id(code), instruction]
            entry = record_of(raw._replace(kind=raw.kind._replace(where=NOWHERE))).entry(line)
            collectives.append(TracedCall(*astuple(entry), source=where, asked=asked, began=began, ended=end))
        main = threading.main_thread()
        marks = [TracedMark(name, "" if at is main else at.name, *times) for name, at, *times in list(self.marks)]
        ended = self.ended or now()
        return CellTrace(self.began, ended, self.dropped, collectives, sources, list(self.evaluations), marks)


def _place(record: Record, file: str | None) -> tuple[int | None, tuple[str, str]]:
    """The number of the record's line, and the text of that line with its location, as in ``In[3], line 2``.

    The number is None outside `file`; the location is empty inside `file`. Text and location are empty if the record
    has no line.
    """
    if not record.file or not record.line:
        return None, ("", "")
    text = linecache.getline(record.file, record.line).strip()[:120]
    if record.file == file:
        return record.line, (text, "")
    file = record.file.strip("<>")  # <In[3]> is a cell
    return None, (text, f"{os.path.basename(file)}, line {record.line}")


TRACE = Trace()
"""The trace of this process."""


class mark:
    """Mark a moment or a span of a traced cell; costs one or two microseconds.

    ``mark("batch 3")`` is a moment; ``with mark("forward"):`` is a span, and spans nest. Marks show in the timeline of
    a cell that runs with ``--timeline``. Raises TypeError for a name that is not a string: converting an array to a
    string would evaluate the array on this rank.
    """

    __slots__ = ("_name", "_open")

    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            raise TypeError(f'the name of a mark must be a string, as in mark("forward"), not {type(name).__name__}')
        self._name = name
        event = TRACE.mark(name)
        self._open: list[Event | None] = [] if event is None else [event]

    def __enter__(self) -> mark:
        # The moment that the constructor noted is the start of a span; the same mark may be entered again later.
        event = self._open[-1] if self._open else None
        if event is None or event[3] is not None:
            event = TRACE.mark(self._name)
            self._open.append(event)
        if event is not None:
            event[3] = 0.0
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        event = self._open.pop() if self._open else None
        if event is not None:
            event[3] = now()
