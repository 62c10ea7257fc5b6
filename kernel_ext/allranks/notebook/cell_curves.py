"""Draws the values that a cell logs as a picture in the cell's output. A saved notebook keeps the picture."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from allranks.head.state.cell_run import CellRun
from allranks.head.state.logged import Row
from allranks.units import duration_text
from allranks_widgets.axis import short
from allranks_widgets.curves import Curves

if TYPE_CHECKING:
    from allranks_widgets.curve_picture import Band

FEWEST_STEPS = 3
"""Minimum number of steps for which curves are drawn."""
PERIOD = 0.5
"""Minimum time, in seconds, between two pictures of a running cell."""
SHARE = 0.05
"""Maximum share of the time that is spent on drawing."""
CHANGES = 200
"""A long run is drawn again after 1/`CHANGES` of its duration so far, since less would hardly change the picture."""
RATE_OVER = 10.0
"""Seconds over which the step rate of a running cell is measured."""
RUNS_DRAWN = 3
"""Number of earlier runs that are drawn with the curves of a cell."""
RUNS_KEPT = 10
"""Number of runs kept for each set of logged names: more than are drawn, since some may be hidden."""
KINDS_KEPT = 20
"""Number of different sets of logged names for which runs are kept."""


class PastRun(NamedTuple):
    """A run that has ended."""

    bands: dict[str, Band]
    """The curves, by name."""
    run: CellRun | None


class CellCurves:
    """The curves of one cell. Not thread-safe."""

    _ended: ClassVar[dict[tuple[str, ...], deque[PastRun]]] = {}
    """The last runs, by the names that they logged, since a cell that is run again logs the same names."""
    _changing: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self) -> None:
        self._curves = Curves()
        self._run: CellRun | None = None
        self._steps = set[float]()
        """The first `FEWEST_STEPS` steps."""
        self._counted: int | None = None
        """The rank whose steps are counted; only one, since hosts' clocks differ."""
        self._reached = deque[tuple[float, float]]()
        """Time and number of the recent new largest steps on the rank `_counted`, oldest first; see `RATE_OVER`."""
        self._last = dict[str, float]()
        """The last step of each name on the rank `_counted`: names may count different steps, such as epochs."""
        self._began: tuple[float, float] | None = None
        self._started, self._next = time.monotonic(), 0.0
        self._changed = False

    def add(self, rows: Sequence[Row], run: CellRun | None = None) -> None:
        """Add values that were logged in ``run`` since the last call."""
        if not self._steps:  # the cell may have waited for its turn until now
            self._started = time.monotonic()
        self._run = run
        self._curves.add(rows)
        for row in rows:
            self._changed = True
            if len(self._steps) < FEWEST_STEPS:
                self._steps.add(row.step)
            if self._counted is None:
                self._counted = row.rank
            if row.rank == self._counted:
                self._reach(row)

    def _reach(self, row: Row) -> None:
        if row.step < self._last.get(row.name, row.step):  # the user's loop has started again, and so do the curves
            self._reached.clear()
            self._last.clear()
            self._began = None
        self._last[row.name] = row.step
        if not self._reached or row.step > self._reached[-1][1]:
            self._reached.append((row.at, row.step))
        self._began = self._began or self._reached[0]
        while len(self._reached) > 2 and abs(self._reached[-1][0] - self._reached[1][0]) > RATE_OVER:
            self._reached.popleft()

    def due(self, *, ended: bool = False) -> dict[str, object] | None:
        """Return a bundle with the picture and a line of text; None if there is nothing to draw now."""
        began = time.monotonic()
        if len(self._steps) < FEWEST_STEPS or not (ended or (self._changed and began >= self._next)):
            return None
        from allranks_widgets.curve_picture import Drawn  # imports numpy, which is slow

        found = Drawn.of(self._curves)
        runs, continued = self._runs_before(found.bands), self._continued(found.bands)
        heading = self._heading(ended, continued.run if continued is not None else None)
        if continued is not None:
            found = found.after(continued.bands)
        before = {band.name: [past.bands[band.name] for past in runs] for band in found.bands}
        text, labels = found.text(heading), self._labels(runs)
        picture = str(found.picture(heading, before, labels, ended=ended))
        if ended:
            self._keep(PastRun({band.name: band for band in found.bands}, self._run))
        now = time.monotonic()
        self._changed = False
        self._next = now + max(PERIOD, (now - began) / SHARE, (now - self._started) / CHANGES)
        return {
            "data": {"image/svg+xml": picture, "text/plain": text},
            "metadata": {"image/svg+xml": {"alt": found.alternative(heading, labels)}},
        }

    def _shown_runs(self, bands: Sequence[Band]) -> list[PastRun]:
        """The earlier runs that logged the names of `bands` and are not hidden, newest last."""
        with self._changing:
            runs = list(self._ended.get(_names(bands), ()))
        return [past for past in runs if past.run is None or not past.run.hidden]

    def _runs_before(self, bands: Sequence[Band]) -> list[PastRun]:
        """The last `RUNS_DRAWN` of the `_shown_runs` that went beyond this run's first steps, newest last."""
        runs = self._shown_runs(bands)
        return [past for past in runs if all(past.bands[each.name].steps[-1] > each.steps[0] for each in bands)][
            -RUNS_DRAWN:
        ]

    def _continued(self, bands: Sequence[Band]) -> PastRun | None:
        """The last run that this run continues, as after a stop or a restart from a saved state; None if none."""
        runs = reversed(self._shown_runs(bands))
        return next((past for past in runs if all(_go_on(past.bands[each.name], each) for each in bands)), None)

    @classmethod
    def remember(cls, run: CellRun) -> None:
        """Make `run`, whose variables were loaded, the latest run, so that a run of the same names can continue it."""
        from allranks_widgets.curve_picture import Drawn

        with cls._changing:
            for past in cls._ended.values():
                for place, each in enumerate(past):
                    if each.run is run:
                        del past[place]
                        past.append(each)
                        return
        curves, rows = Curves(), run.rows()
        curves.add(rows)
        if len({row.step for row in rows}) >= FEWEST_STEPS:
            cls._keep(PastRun({band.name: band for band in Drawn.of(curves).bands}, run))

    def _labels(self, runs: Sequence[PastRun]) -> list[str]:
        """Labels of earlier runs, which say how each differs from this run."""
        run = self._run
        return ["" if past.run is None or run is None else past.run.beside(run) for past in runs]

    @classmethod
    def _keep(cls, run: PastRun) -> None:
        with cls._changing:
            names = _names(list(run.bands.values()))
            runs = cls._ended.pop(names, None) or deque(maxlen=RUNS_KEPT)
            runs.append(run)
            cls._ended[names] = runs  # inserted last, so that the oldest entry is first
            while len(cls._ended) > KINDS_KEPT:
                del cls._ended[next(iter(cls._ended))]

    def _heading(self, ended: bool, continued: CellRun | None) -> str:
        """The run's name, its step, the step rate, and the time left or, once the cell has ended, its collectives.

        The rate is the recent one, or that of the whole run once the cell has ended.
        """
        first = self._began if ended and self._began else self._reached[0]
        last = self._reached[-1]
        continues = f" (continues {continued.name})" if continued is not None else ""
        named = f"{self._run.name}{continues} · " if self._run is not None else ""
        total = self._run.total if self._run is not None else None
        step = f"{named}step {last[1]:,.10g}{f' of {total:,.10g}' if total is not None else ''}"
        seconds, steps = last[0] - first[0], last[1] - first[1]
        if seconds <= 0:
            return step
        rate = f"{step} · {short(steps / seconds, 3)} steps a second"
        if ended:
            collectives = self._run.collectives if self._run is not None else None
            return f"{rate} · {collectives}" if collectives is not None else rate
        left = (total - last[1] - 1) * seconds / steps if total is not None and steps > 0 else 0.0
        return f"{rate} · {duration_text(left)} left" if left >= 1 else rate


def _go_on(before: Band, band: Band) -> bool:
    """Whether the steps of a run follow an earlier run's, at most two step intervals later."""
    last = float(before.steps[-1])
    return len(before.steps) > 1 and last < band.begins <= last + 2 * (last - float(before.steps[-2]))


def _names(bands: Sequence[Band]) -> tuple[str, ...]:
    return tuple(sorted(band.name for band in bands))
