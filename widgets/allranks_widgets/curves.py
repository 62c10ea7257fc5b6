"""Logged values as curves that a page can draw: one curve of limited length for each name and rank."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from allranks_backends.plan import rank_list

MOST_POINTS = 2_000
"""Most points of a curve; beyond that, every second step is dropped on all ranks (see `Curves._thin`)."""
MOST_CURVES = 256

LoggedRow = Sequence[Any]
"""Rank, name, cell, step, value, Unix time in seconds; a string stands for a value that is not a finite number."""


@dataclass
class Curve:
    points: list[tuple[float, float]] = field(default_factory=list)
    """Step and value of each point. A step lower than the last one restarts the curve."""
    row: LoggedRow = ()
    """The newest row."""

    def add(self, row: LoggedRow) -> int | None:
        """Add the point of `row`.

        If another cell restarts the curve, return the cell of the earlier run; else None.
        """
        step, value = float(row[3]), float(row[4])
        before: int | None = None
        if self.points and step < self.points[-1][0]:
            before = self.row[2] if row[2] != self.row[2] else None
            self.points.clear()
        self.points.append((step, value))
        self.row = row
        return before


class Curves:
    """The curves of all names and ranks, built from rows as they arrive."""

    def __init__(self) -> None:
        self._curves: dict[tuple[str, int], Curve] = {}
        self.refused = set[tuple[str, int]]()
        """Name and rank of curves beyond `MOST_CURVES`."""

    def __bool__(self) -> bool:
        return bool(self._curves)

    def add(self, rows: Iterable[LoggedRow]) -> None:
        for row in rows:
            key = (row[1], row[0])
            if key in self._curves or len(self._curves) < MOST_CURVES:
                curve = self._curves.setdefault(key, Curve())
                before = curve.add(row)
                if before is not None:
                    self._drop_older(row, before)
                if len(curve.points) > MOST_POINTS:
                    self._thin(row[1], curve)
            else:
                self.refused.add(key)

    def _drop_older(self, row: LoggedRow, before: int) -> None:
        """Drop other ranks' curves of the row's name if they end in cell `before` (the earlier run) or earlier."""
        rank, name = row[:2]
        for key, curve in list(self._curves.items()):
            if key[0] == name and key[1] != rank and curve.row[2] <= before:
                del self._curves[key]

    def _thin(self, name: str, long: Curve) -> None:
        """Drop every second step of `long` from all ranks' curves of `name`, so that each mean is over all ranks.

        Curves with other steps stay as they are. If `long` has several points of one step, every second point is
        dropped, from `long` alone.
        """
        if len({step for step, _ in long.points}) < len(long.points):  # several points of one step, such as an epoch
            del long.points[1::2]
            return
        out = {step for step, _ in long.points[1::2]}
        for (other, _), curve in self._curves.items():
            if other == name and len(curve.points) > MOST_POINTS // 2:  # a curve with few points has other steps
                left = [point for point in curve.points if point[0] not in out]
                if 2 * len(left) + 1 >= len(curve.points):  # a curve that would lose more than half has other steps
                    curve.points = left

    def by_name(self) -> dict[str, dict[int, Sequence[tuple[float, float]]]]:
        """Return the points (step and value) of each name, by rank."""
        found: dict[str, dict[int, Sequence[tuple[float, float]]]] = {}
        for (name, rank), curve in self._curves.items():
            found.setdefault(name, {})[rank] = curve.points
        return found

    def everything(self) -> bytes:
        """Return all points as JSON rows, for a page that is opened later."""
        return rows_json(
            [rank, name, curve.row[2], step, value, curve.row[5]]
            for (name, rank), curve in self._curves.items()
            for step, value in curve.points
        )

    def table(self) -> list[tuple[str, ...]]:
        """Return rows of name, ranks, step, last, min and max; ranks with equal figures share a row."""
        rows: list[tuple[str, ...]] = []
        for name in dict.fromkeys(name for name, _ in self._curves):
            alike: dict[tuple[str, str, str, str], list[int]] = {}
            for (other, rank), curve in self._curves.items():
                if other == name:
                    known = [value for _, value in curve.points if math.isfinite(value)]
                    step, last = curve.points[-1]
                    least, most = (figure(min(known)), figure(max(known))) if known else ("–", "–")
                    alike.setdefault((figure(step), figure(last), least, most), []).append(rank)
            rows += [(name, rank_list(ranks), *said) for said, ranks in alike.items()]
        return rows


def figure(value: float) -> str:
    """Format `value` with five significant digits; integers below 1e9 get all digits."""
    if not math.isfinite(value):
        return str(value)
    return f"{value:.0f}" if value == int(value) and abs(value) < 1e9 else f"{value:.5g}"


def rows_json(rows: Iterable[LoggedRow]) -> bytes:
    """Return rows as JSON; values that are not finite become strings, since JSON has no such numbers."""
    return json.dumps([[*row[:4], _sendable(row[4]), row[5]] for row in rows], separators=(",", ":")).encode()


def _sendable(value: float | str) -> float | str:
    return value if isinstance(value, str) or math.isfinite(value) else str(value)
