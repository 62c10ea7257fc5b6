"""A run, which is a cell that logs values: its code, world and values, and how it differs from another run."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, NamedTuple

from allranks.messages.state_manifest import StoredRun, StoredSeries
from allranks.units import count_text, cut_text

from .code_constants import Code, Constant, lines_changed
from .collective_times import CollectiveShare
from .hide_secrets import SECRET
from .logged import MOST_SERIES, Row, Series, spread

RunStatus = Literal["running", "ok", "failed", "stopped"]
MOST_SAID = 3
"""Maximum number of differing values that are named; the others are counted."""
LONGEST = 24
"""Maximum characters of a value in a table or beside a curve."""


MOST_STORED, FEWEST_STORED = 20_000, 100
"""Limits on a run's values that are saved with the ranks' variables: each name on each rank gets an equal share of
`MOST_STORED`, or `FEWEST_STORED` if that is more."""


@dataclass
class Metric:
    """The values that a run logged under one name, summarised over its ranks."""

    last: dict[int, float] = field(default_factory=dict)
    """The newest value of each rank."""
    step: float = 0.0
    """The step of the newest value."""
    count: int = 0
    """Number of values so far."""
    min: float = float("inf")
    max: float = float("-inf")
    """`min` and `max` of the values that are not NaN; infinite if there were none."""

    def add(self, row: Row) -> None:
        self.last[row.rank] = row.value
        self.step, self.count = row.step, self.count + 1
        self.min, self.max = min(self.min, row.value), max(self.max, row.value)  # NaN changes neither

    @property
    def mean(self) -> float:
        """Mean of the ranks' last values. A chart's line shows the mean over ranks at each step instead."""
        values = list(self.last.values())
        return sum(values) / len(values)


class Change(NamedTuple):
    """A value that differs between two runs; for a function, such as ``train()``, a checksum of its code.

    `before` or `now` is None if, in that run, the value is not a number, string or boolean.
    """

    name: str
    before: Constant | None
    now: Constant | None


class CellRun:
    """A cell that logs: its code, its world, its values, and how it ended.

    Known to `RunHistory` from the first logged value on. Fed in the lifeline's thread, read from any thread.
    """

    def __init__(
        self,
        cell: int,
        code: str,
        ranks: Sequence[int],
        backend: str,
        *,
        arguments: Mapping[str, Constant] | None = None,
        on_first: Callable[[CellRun], None] = lambda _run: None,
    ) -> None:
        """`arguments`: the arguments of the function that the cell calls. `on_first` is called at the first value."""
        self.number = 0
        """Number of the run among the runs of this process, counted from 1; 0 until its first value is logged."""
        self.name = ""
        """``run 3``, or the name that `RunHistory.rename` gave the run; empty until its first value is logged."""
        self.hidden = False
        """Whether the run is left out of charts, and listed last."""
        self.cell, self.ranks, self.backend = cell, tuple(ranks), backend
        self.status: RunStatus = "running"
        self.at = time.time()
        """Unix time in seconds when the cell began."""
        self.total: float | None = None
        """Total number of steps, if the code states it (``log(..., of=1000)``); otherwise None."""
        self.collectives: CollectiveShare | None = None
        """The share of the cell's time that collectives took; known once a cell with ``--timing`` has ended."""
        self.variables: dict[str, Constant] | None = None
        """Numbers, strings and booleans that the code reads from earlier cells, and checksums of their functions. None
        if no rank has reported them."""
        self._code, self._arguments, self._on_first = code, dict(arguments or {}), on_first
        self._began, self._seconds = time.monotonic(), None
        self._lock = threading.Lock()
        self._metrics: dict[str, Metric] = {}
        self._series: dict[tuple[int, str], Series] = {}

    _seconds: float | None

    def __repr__(self) -> str:
        return f"<{self.name}: {self.status}, {', '.join(self.metrics) or 'nothing logged'}>"

    @property
    def label(self) -> str:
        """``run 3``, or ``3 baseline`` for a renamed run: unique among all runs."""
        return self.name if self.name == f"run {self.number}" else f"{self.number} {self.name}"

    def add(self, row: Row) -> None:
        """Take a value that was logged."""
        with self._lock:
            first = not self._metrics
            self._metrics.setdefault(row.name, Metric()).add(row)
            key = row.rank, row.name
            if key in self._series or len(self._series) < MOST_SERIES:
                self._series.setdefault(key, Series()).put(row)
        if first:
            self._on_first(self)

    def end(self, status: RunStatus) -> None:
        """Note that the cell is over; only the first call counts."""
        if self.status == "running":
            self._seconds, self.status = time.monotonic() - self._began, status

    @property
    def seconds(self) -> float:
        """Seconds that the cell took, or has been running so far."""
        return time.monotonic() - self._began if self._seconds is None else self._seconds

    @property
    def metrics(self) -> dict[str, Metric]:
        """The metrics that the run logged, by name, in the order of their first values."""
        with self._lock:
            return {name: replace(metric, last=dict(metric.last)) for name, metric in self._metrics.items()}

    @property
    def code(self) -> str:
        """The cell's code, or the source of the function called on the ranks, without text that may be secret.

        Empty for a cell that an earlier notebook began.
        """
        return self.read.text

    @cached_property
    def read(self) -> Code:
        """The code as parsed: its text, constants and variables."""
        return Code.of(self._code)

    @property
    def values(self) -> dict[str, Constant]:
        """The code's constants, the arguments, and the variables that the code reads.

        Strings that may be secret are left out.
        """
        found = {**(self.variables or {}), **self.read.constants, **self._arguments}
        return {name: value for name, value in found.items() if not (isinstance(value, str) and SECRET.search(name))}

    def rows(self) -> list[Row]:
        """Return the values that the run logged, oldest first.

        Beyond 100,000 values of a name on a rank, every second value is dropped. When a new run begins, the same
        happens to the largest earlier runs while all earlier runs together have more than 5 million values. Only the
        first `MOST_SERIES` series are kept; there is one for each name on each rank.
        """
        with self._lock:
            rows = [
                Row(rank, name, *each)
                for (rank, name), series in self._series.items()
                for each in zip(*series.columns(), strict=True)
            ]
        return sorted(rows, key=lambda row: (row.at, row.rank))

    @property
    def points(self) -> int:
        """Number of values that are kept."""
        with self._lock:
            return sum(len(series.steps) for series in self._series.values())

    def thin(self) -> None:
        """Drop every second kept value."""
        with self._lock:
            for series in self._series.values():
                series.thin()

    def stored(self) -> StoredRun:
        """Return the run as it is saved with the ranks' variables: enough values for charts, not all."""
        values = {name: value for name, value in self.values.items() if _fits(value)}
        with self._lock:
            kept = max(FEWEST_STORED, MOST_STORED // max(len(self._series), 1))
            series = [
                StoredSeries(
                    rank=rank,
                    name=name,
                    steps=list(each.steps[drawn]),
                    values=[_plain(value) for value in each.values[drawn]],
                    times=list(each.times[drawn]),
                )
                for (rank, name), each in self._series.items()
                for drawn in [spread(len(each.steps), kept)]
            ]
        return StoredRun(
            name=self.name,
            code=self.code,
            values=values,
            ranks=list(self.ranks),
            backend=self.backend,
            status="stopped" if self.status == "running" else self.status,
            at=self.at,
            seconds=self.seconds,
            series=series,
        )

    @classmethod
    def restored(cls, stored: StoredRun) -> CellRun:
        """Return a run that was saved, perhaps by another notebook. Raises ValueError if its values are damaged."""
        run = cls(0, stored.code, stored.ranks, stored.backend)
        run.name, run.at, run.variables = stored.name, stored.at, dict(stored.values)
        rows = [
            Row(each.rank, each.name, 0, step, float(value), at)
            for each in stored.series
            for step, value, at in zip(each.steps, each.values, each.times, strict=True)
        ]
        for row in sorted(rows, key=lambda row: row.at):
            run.add(row)
        run.end(stored.status)
        run._seconds = stored.seconds
        return run

    # How it differs from an earlier run.

    def changes(self, before: CellRun) -> tuple[list[Change], int]:
        """Return the values that differ from the run `before`, and how many lines of code differ apart from them."""
        old, new = {**before.values, **before._world}, {**self.values, **self._world}
        changed = [Change(name, old[name], value) for name, value in new.items() if name in old and old[name] != value]
        constants = [each.name for each in changed]
        changed += [
            Change(name, old.get(name), new.get(name)) for name in self._in_one(before) if name not in constants
        ]
        lines = lines_changed(before.read, self.read, constants) if self.code and before.code else 0
        return changed, lines

    def _in_one(self, before: CellRun) -> list[str]:
        """Return the variables that both cells read from earlier cells and that have a known value in only one run."""
        if self.variables is None or before.variables is None:
            return []
        both = self.read.reads & before.read.reads
        return sorted(name for name in self.variables.keys() ^ before.variables.keys() if name in both)

    @property
    def _world(self) -> dict[str, Constant]:
        return {"ranks": len(self.ranks), "backend": self.backend}

    def changes_text(self, before: CellRun) -> str:
        """``lr 0.1 → 0.01, 2 more lines changed``; ``same code`` if nothing differs and both runs' code is known."""
        changed, lines = self.changes(before)
        said = [_said(each, f"{value_text(each.before)} → {value_text(each.now)}") for each in changed]
        return self._joined(said, lines, before)

    def beside(self, other: CellRun) -> str:
        """Return the label of this run's curves beside the curves of another run: ``run 2: lr 0.1``."""
        changed, lines = other.changes(self)
        said = [_said(each, value_text(each.before)) for each in changed]
        return f"{self.name}: {self._joined(said, lines, other)}"

    def _joined(self, values: Sequence[str], lines: int, other: CellRun) -> str:
        said = list(values[:MOST_SAID])
        if more := len(values[MOST_SAID:]):
            said.append(count_text(more, "more value"))
        if lines:
            said.append(f"{count_text(lines, 'more line' if values else 'line')} changed")
        if not (self.code and other.code):
            said.append("code not known")
        return ", ".join(said) or "same code"


def _said(change: Change, values: str) -> str:
    unknown = change.name.endswith("()") or None in (change.before, change.now)
    return f"{change.name} changed" if unknown else f"{change.name} {values}"


def _fits(value: Constant) -> bool:
    """Whether JSON can hold the value."""
    return abs(value) < 1 << 63 and math.isfinite(value) if isinstance(value, (int, float)) else True


def _plain(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def value_text(value: Constant | None) -> str:
    """Return the value as it is shown: ``0.0003``, ``True``, ``adam``."""
    text = f"{value:.10g}" if isinstance(value, float) else str(value)
    return cut_text(text, LONGEST)
