"""Rows of figures, and the plain text they are printed as."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, Literal

WIDTH = 120


@dataclass(frozen=True)
class Bar:
    """What a row must keep to. ``of`` says whether the limit is for the ratio or for our own figure."""

    rule: Literal["at most", "at least"]
    limit: float
    of: Literal["ratio", "ours"] = "ratio"


@dataclass(frozen=True)
class Row:
    """One thing measured on both sides. ``ours`` and ``theirs`` are one sample a round, in ``unit``."""

    what: str
    unit: str
    ours: Sequence[float]
    theirs: Sequence[float] = ()
    against: str = ""
    bar: Bar | None = None

    @property
    def ratio(self) -> float | None:
        """Median of ours over median of theirs; None where there is nothing to compare with."""
        return median(self.ours) / median(self.theirs) if self.theirs and median(self.theirs) else None

    @property
    def spread(self) -> tuple[float, float] | None:
        """Lowest and highest ratio of a single round."""
        rounds = [ours / theirs for ours, theirs in zip(self.ours, self.theirs) if theirs and self.ratio is not None]
        return (min(rounds), max(rounds)) if rounds else None

    @property
    def more_is_better(self) -> bool:
        """Whether the figure is a rate."""
        return "/s" in self.unit

    @property
    def met(self) -> bool | None:
        """Whether the bar is met; None without one."""
        if self.bar is None:
            return None
        figure = self.ratio if self.bar.of == "ratio" else median(self.ours)
        if figure is None:
            return None
        return figure <= self.bar.limit if self.bar.rule == "at most" else figure >= self.bar.limit

    def as_json(self) -> dict[str, Any]:
        medians = {"ours_median": median(self.ours), "theirs_median": median(self.theirs) if self.theirs else None}
        figures = {**asdict(self), **medians, "ratio": self.ratio, "spread": self.spread, "met": self.met}
        return {name: _without_nan(value) for name, value in figures.items()}


@dataclass
class Table:
    name: str
    title: str
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "rows": [row.as_json() for row in self.rows]}


def _without_nan(value: Any) -> Any:
    """Replace NaN, which JSON lacks, by null."""
    if isinstance(value, (list, tuple)):
        return [_without_nan(each) for each in value]
    return None if isinstance(value, float) and math.isnan(value) else value


HEAD = ("", "allranks", "compared with", "", "ratio", "of rounds", "bar", "")


def as_text(table: Table) -> str:
    """The table in aligned columns, its title above and its notes below."""
    lines = [HEAD, *(_cells(row) for row in table.rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]
    text = ["  ".join(_aligned(cell, column, widths[column]) for column, cell in enumerate(line)) for line in lines]
    notes = [textwrap.fill(note, WIDTH, initial_indent="  ", subsequent_indent="  ") for note in table.notes]
    return "\n".join([f"{table.name}: {table.title}", "", *(line.rstrip() for line in text), *notes])


def _cells(row: Row) -> tuple[str, ...]:
    ratio, spread = row.ratio, row.spread
    return (
        row.what,
        human(median(row.ours), row.unit),
        row.against,
        human(median(row.theirs), row.unit) if row.theirs else "",
        "" if ratio is None else f"{ratio:.3f}",
        "" if spread is None else f"{spread[0]:.2f}-{spread[1]:.2f}",
        "" if row.bar is None else f"{row.bar.rule} {_limit(row.bar, row.unit)}",
        {None: "", True: "met", False: "MISSED"}[row.met],
    )


def _limit(bar: Bar, unit: str) -> str:
    return f"{bar.limit:g}" if bar.of == "ratio" else human(bar.limit, unit)


def human(value: float, unit: str) -> str:
    """``value`` with a unit a person reads: seconds as ms or microseconds, bytes as MB."""
    if math.isnan(value):
        return "unknown"
    match unit:
        case "s" if value < 1e-3:
            return f"{value * 1e6:.1f} us"
        case "s" if value < 1:
            return f"{value * 1e3:.2f} ms"
        case "s":
            return f"{value:.2f} s"
        case "bytes":
            return f"{value / 1e6:.1f} MB"
        case "calls/s":
            return f"{value:,.0f}/s" if value >= 100 else f"{value:.1f}/s"
        case "% of a core":
            return f"{value:.2f} %"
        case _:
            return f"{value:g} {unit}".rstrip()


def _aligned(cell: str, column: int, width: int) -> str:
    return cell.rjust(width) if column in (1, 3, 4, 5) else cell.ljust(width)
