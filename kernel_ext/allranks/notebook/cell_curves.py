"""What a cell logs, as a picture in its output: drawn while it runs, and kept in the saved notebook."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from allranks.head.state.logged import Row
from allranks.units import three_digits
from allranks_widgets.curves import Curves

if TYPE_CHECKING:
    from allranks_widgets.curve_picture import Band

FEWEST_STEPS = 3
"""Steps from which on a curve is drawn."""
PERIOD = 0.5
"""Seconds between two pictures of a running cell."""
RATE_OVER = 10.0
"""Seconds over which the steps of a running cell are counted for their rate."""


RUNS_KEPT = 3
"""Earlier runs that are drawn beside the curves of a cell."""
KINDS_KEPT = 20
"""Cells that log different names, of which runs are kept."""

Run = dict[str, "Band"]


class CellCurves:
    """The curves of one cell. For one thread."""

    _ended: ClassVar[dict[tuple[str, ...], deque[Run]]] = {}
    """The last runs by the names that they logged: a cell that is run again logs the same."""

    def __init__(self) -> None:
        self._curves = Curves()
        self._steps = set[float]()
        """The first ones."""
        self._reached = deque[tuple[float, float]]()
        """When a step was logged first that was later than all before, and the step."""
        self._began: tuple[float, float] | None = None
        self._drawn_at = float("-inf")
        self._changed = False

    def add(self, rows: Sequence[Row]) -> None:
        """What was logged since the last call."""
        self._curves.add(rows)
        for row in rows:
            self._changed = True
            if len(self._steps) < FEWEST_STEPS:
                self._steps.add(row.step)
            if not self._reached or row.step > self._reached[-1][1]:
                self._reached.append((row.at, row.step))
            self._began = self._began or self._reached[0]
        while len(self._reached) > 2 and self._reached[1][0] < self._reached[-1][0] - RATE_OVER:
            self._reached.popleft()

    def due(self, *, ended: bool = False) -> dict[str, Any] | None:
        """What to show now: a bundle with the picture, and a line of text; None where there is nothing new."""
        now = time.monotonic()
        if len(self._steps) < FEWEST_STEPS or not (ended or (self._changed and now - self._drawn_at >= PERIOD)):
            return None
        from allranks_widgets.curve_picture import bands, curve_picture, curve_text  # numpy, which takes its time

        self._changed, self._drawn_at = False, now
        found, heading = bands(self._curves), self._heading(ended)
        names = tuple(sorted(band.name for band in found))
        runs = self._ended.pop(names, deque(maxlen=RUNS_KEPT))
        self._ended[names] = runs  # the last that was used comes last
        picture = curve_picture(found, heading, {name: [run[name] for run in runs] for name in names if runs})
        if ended:
            runs.append({band.name: band for band in found})
            while len(self._ended) > KINDS_KEPT:
                del self._ended[next(iter(self._ended))]
        return {"data": {"image/svg+xml": picture, "text/plain": curve_text(found, heading)}, "metadata": {}}

    def _heading(self, ended: bool) -> str:
        """Which step it is at, and how many there are a second: of a cell that has ended over all of its time."""
        first = self._began if ended and self._began else self._reached[0]
        last = self._reached[-1]
        step = f"step {last[1]:,.10g}"
        seconds, steps = last[0] - first[0], last[1] - first[1]
        return f"{step} · {three_digits(steps / seconds)} steps a second" if seconds > 0 else step
