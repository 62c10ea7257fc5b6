"""Values that ranks logged with ``log(...)``: kept up to limits, returned as a table, and sent on to dashboards."""

from __future__ import annotations

import threading
from array import array
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from allranks.dataframes import imported_pandas, utc
from allranks.errors import UsageError
from allranks.messages.events import LogCall

if TYPE_CHECKING:
    import pandas

MOST_POINTS = 100_000
"""Maximum number of points kept for one name on one rank (3 MB). Beyond it, every second point is dropped, so that the
remaining points still span the run."""
MOST_SERIES = 1_000
"""Maximum number of series. There is one series for each name on each rank."""
RECENT = 20_000
"""Maximum number of recent rows kept for dashboards."""
DRAWN = 1_000
"""Maximum number of points of each series that a dashboard gets when it starts, or after it has fallen behind."""
FOLLOWED = 100
"""Maximum number of cells whose values are passed on (see `Logged.follow`), including cells that no thread tracked to
their end."""


class Row(NamedTuple):
    """One logged value."""

    rank: int
    name: str
    cell: int
    step: float
    value: float
    at: float
    """Unix time in seconds."""


@dataclass
class Series:
    """The values of one name on one rank."""

    cells: array[int] = field(default_factory=lambda: array("q"))
    steps: array[float] = field(default_factory=lambda: array("d"))
    values: array[float] = field(default_factory=lambda: array("d"))
    times: array[float] = field(default_factory=lambda: array("d"))

    def columns(self) -> tuple[array[Any], ...]:
        return self.cells, self.steps, self.values, self.times

    def put(self, row: Row) -> None:
        for column, value in zip(self.columns(), (row.cell, row.step, row.value, row.at)):
            column.append(value)
        if len(self.steps) > MOST_POINTS:
            self.thin()

    def thin(self) -> None:
        """Drop every second point."""
        for column in self.columns():
            del column[1::2]


class Logged:
    """The values that all cells logged. Fed by the monitor, in the lifeline's thread; read from any thread."""

    def __init__(self) -> None:
        self.lost = 0
        """Number of ``log`` calls that came faster than a rank could send them, and of values of series beyond
        `MOST_SERIES`."""
        self._lock = threading.Lock()
        self._series: dict[tuple[int, str], Series] = {}
        self._recent: deque[Row] = deque(maxlen=RECENT)
        self._count = 0
        self._seen: dict[str, int] = {}
        """By uuid of a process: how many of its ``log`` calls have arrived or were lost."""
        self._totals: dict[int, float] = {}
        """By cell: its total number of steps, if its code states it."""
        self._followers: dict[int, Callable[[Row], None]] = {}
        """By cell, the function that gets its values; the newest cell is the last."""

    @property
    def count(self) -> int:
        """Number of values that have arrived, apart from values counted in `lost`; `clear` does not reset it."""
        return self._count

    def take(self, rank: int, uuid: str, first: int, calls: Sequence[LogCall]) -> None:
        """Take ``log`` calls of a process, numbered from `first` on; calls that have arrived before are ignored."""
        seen = self._seen.get(uuid, 0)
        with self._lock:
            self.lost += max(0, first - seen)
            for call in calls[max(0, seen - first) :]:
                if call.of is not None:
                    self._totals[call.cell] = call.of
                for name, value in call.values.items():
                    self._put(Row(rank, name, call.cell, call.step, value, call.at))
        self._seen[uuid] = max(seen, first + len(calls))

    def _put(self, row: Row) -> None:
        key = row.rank, row.name
        series = self._series.get(key)
        if series is None:
            if len(self._series) >= MOST_SERIES:
                self.lost += 1
                return
            series = Series()
        series.put(row)
        self._series[key] = series
        self._recent.append(row)
        self._count += 1
        if follower := self._followers.get(row.cell):
            follower(row)

    def total(self, cell: int) -> float | None:
        """Total number of steps of this cell; None unless its code states it."""
        return self._totals.get(cell)

    def follow(self, cell: int, follower: Callable[[Row], None], *, late: bool = False) -> None:
        """Call `follower` with each value of this cell as it arrives; with `late`, first with the earlier values.

        `follower` is called while the lock is held.
        """
        with self._lock:
            for (rank, name), series in self._series.items() if late else ():
                for number, step, value, at in zip(*series.columns()):
                    if number == cell:
                        follower(Row(rank, name, cell, step, value, at))
            self._followers[cell] = follower
            while len(self._followers) > FOLLOWED:
                del self._followers[next(iter(self._followers))]

    def unfollow(self, cell: int) -> None:
        """Stop passing on the values of this cell, since its ranks are done with it."""
        with self._lock:
            self._followers.pop(cell, None)

    def clear(self) -> None:
        """Forget the values that were logged so far."""
        with self._lock:
            self._series.clear()
            self._recent.clear()
            self._totals.clear()
            self.lost = 0

    def since(self, seen: int) -> tuple[int, list[Row]]:
        """Return the number of rows so far, and the rows after the first `seen`.

        If `seen` is 0, or if more than `RECENT` rows have come since, all series are returned, each thinned to `DRAWN`.
        """
        with self._lock:
            new = self._count - seen
            if seen and new <= len(self._recent):
                return self._count, [self._recent[n] for n in range(-new, 0)]
            rows = [
                Row(rank, name, series.cells[n], series.steps[n], series.values[n], series.times[n])
                for (rank, name), series in self._series.items()
                for n in range(len(series.steps))[spread(len(series.steps), DRAWN)]
            ]
            return self._count, sorted(rows, key=lambda row: row.at)

    def last(self) -> dict[str, dict[int, float]]:
        """The newest value of each name, by rank."""
        newest: dict[str, dict[int, float]] = {}
        with self._lock:
            for (rank, name), series in self._series.items():
                newest.setdefault(name, {})[rank] = series.values[-1]
        return newest

    def frame(self, names: Collection[str] = ()) -> pandas.DataFrame:
        """Return a table with a row for each value of `names`, or of all; ``attrs["lost"]`` is the `lost` count.

        Raises UsageError without pandas, or if nothing was logged under one of `names`.
        """
        pandas = imported_pandas("logged()")
        with self._lock:
            known = {name for _, name in self._series}
            if absent := set(names) - known:
                there = ", ".join(sorted(known)) or "nothing"
                raise UsageError(f"nothing was logged as {', '.join(sorted(absent))}. Logged: {there}.")
            parts = [
                pandas.DataFrame(
                    {
                        "rank": rank,
                        "step": series.steps,
                        "name": name,
                        "value": series.values,
                        "time": series.times,
                        "cell": series.cells,
                    }
                )
                for (rank, name), series in self._series.items()
                if not names or name in names
            ]
        empty: dict[str, list[object]] = {name: [] for name in ("rank", "step", "name", "value", "time", "cell")}
        frame = pandas.concat(parts, ignore_index=True) if parts else pandas.DataFrame(empty)
        frame["time"] = utc(frame["time"])
        if len(frame) and (frame["step"] % 1 == 0).all():
            frame["step"] = frame["step"].astype("int64")
        frame = frame.sort_values(["time", "rank"], kind="stable", ignore_index=True)
        frame.attrs["lost"] = self.lost
        return frame


def spread(count: int, most: int) -> slice:
    """Return which of `count` points to take: at most `most`, at equal distances, including the last one."""
    every = max(1, -(-count // most))
    return slice((count - 1) % every, count, every)
