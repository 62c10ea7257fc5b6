"""The result of ``bench``: figures, fits and advice, to show, to save, and to compare with an earlier result."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from allranks.errors import UsageError
from allranks_widgets.svg_text import as_file

from . import bench_table
from .bus_bandwidth import BenchRow, Choice, Fit, fit
from .chart import chart
from .compare_benches import advice, best, changes

if TYPE_CHECKING:
    import pandas

FORMAT = 1
"""Version of the format of saved files."""


@dataclass
class BenchResult:
    """What ``bench`` measured: a table as text and HTML, `frame` for pandas, `fits`, `save` and `against`."""

    name: str
    """Name of the cluster."""
    ranks: int
    choice: Choice
    """The wiring when the bench began, to which the ranks return at its end."""
    rows: list[BenchRow]
    notes: list[str] = field(default_factory=list)
    """What was left out, and why."""
    at: float = 0.0
    """Unix time in seconds when the bench began."""
    mlx: str = field(default_factory=lambda: version("mlx"))

    @property
    def peak(self) -> float:
        """The highest busbw on the wiring in use, in bytes per second; 0 if nothing was measured on it."""
        return max((row.busbw for row in self.rows if row.choice == self.choice), default=0.0)

    @property
    def series(self) -> dict[str, list[BenchRow]]:
        """The rows by name: ``all_sum``, ``link 0-1``, or ``all_sum (mpi)`` if several wirings were measured."""
        found: dict[str, list[BenchRow]] = {}
        for row in self.rows:
            name = row.what if len(self.choices) == 1 else f"{row.what} ({row.choice})"
            found.setdefault(name, []).append(row)
        return found

    @property
    def fits(self) -> dict[str, Fit]:
        """The fit t = latency + S / bandwidth of each series with at least two sizes."""
        return {name: found for name, rows in self.series.items() if (found := fit(rows)) is not None}

    @property
    def choices(self) -> list[Choice]:
        """The wirings that were measured, in the order of measurement."""
        return list(dict.fromkeys(row.choice for row in self.rows))

    def ratios(self) -> dict[Choice, list[float]]:
        """For each wiring that is not in use, the ratios of its busbw to that of the wiring in use.

        There is one ratio for each measurement that both wirings have.
        """
        now = {row.key: row for row in self.rows if row.choice == self.choice}
        return {
            choice: ratios
            for choice in self.choices
            if choice != self.choice
            and (
                ratios := [
                    row.busbw / now[row.key].busbw for row in self.rows if row.choice == choice and row.key in now
                ]
            )
        }

    @property
    def recommended(self) -> Choice | None:
        """The wiring with the highest busbw; None if no other wiring has a measurement in common with the one in use.

        Wirings are compared by the geometric mean of their `ratios`. The wiring in use stays unless another one is
        better by more than 10 %.
        """
        return best(self.ratios(), self.choice)

    @property
    def recommendation(self) -> str | None:
        """The recommended wiring in a sentence, with the command that switches to it; None if `recommended` is None."""
        return advice(self.ratios(), self.choice)

    def frame(self) -> pandas.DataFrame:
        """A pandas DataFrame: times in seconds, algbw and busbw in GB/s. Raises UsageError without pandas."""
        try:
            import pandas
        except ImportError:
            raise UsageError(
                "frame() needs pandas, which is not installed: pip install pandas. `rows` has the same figures."
            ) from None
        return pandas.DataFrame(
            [
                {
                    "backend": row.choice.backend,
                    "connections": row.choice.connections,
                    "op": row.op,
                    "link": f"{row.link[0]}-{row.link[1]}" if row.link else None,
                    "bytes": row.nbytes,
                    "calls": row.calls,
                    "min": row.minimum,
                    "median": row.median,
                    "p99": row.p99,
                    "algbw": row.algbw / 1e9,
                    "busbw": row.busbw / 1e9,
                }
                for row in self.rows
            ]
        )

    def save(self, path: str | Path) -> None:
        """Write everything as JSON, or the chart if `path` ends in ``.svg``.

        Raises UsageError if the file cannot be written, or if too few sizes were measured for a chart.
        """
        if str(path).endswith(".svg"):
            if not (drawn := chart(self.series)):
                raise UsageError(f"--save {path}: a chart needs at least two sizes.")
            content = as_file(drawn, self.recommendation or f"busbw of {self._world_text}", self._head)
        else:
            content = json.dumps({"allranks bench": FORMAT, **asdict(self)}, indent=1) + "\n"
        try:
            Path(path).write_text(content, encoding="utf-8")
        except OSError as error:
            raise UsageError(f"--save {path}: {error.strerror or error}.") from None

    @classmethod
    def load(cls, path: str | Path) -> BenchResult:
        """Load a result that `save` wrote. Raises UsageError for any other file."""
        try:
            content = json.loads(Path(path).read_text())
            if content.pop("allranks bench") != FORMAT:
                raise UsageError(f"{path} was saved by another version of allranks: measure again.")
            rows = [
                BenchRow(
                    **{
                        **row,
                        "choice": Choice(**row["choice"]),
                        "link": tuple(row["link"]) if row["link"] else None,
                        "quartiles": tuple(row["quartiles"]),
                    }
                )
                for row in content.pop("rows")
            ]
            return cls(choice=Choice(**content.pop("choice")), rows=rows, **content)
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror or error}.") from None
        except (KeyError, TypeError, AttributeError, json.JSONDecodeError, UnicodeDecodeError):
            raise UsageError(f"{path} is not a saved bench. Save one with %distributed bench --save {path}.") from None

    def against(self, earlier: BenchResult) -> list[str]:
        """The changes since `earlier`, one sentence each: ``link 1-2 fell from 0.93 to 0.41 Gbit/s at 64 MiB``.

        A busbw counts as changed if it differs by more than 10 % and the middle halves of both runs' times (between
        their quartiles) do not overlap. Neighbouring sizes that changed in the same direction share a sentence.
        """
        said = []
        alone = len(self.choices) == len(earlier.choices) == 1
        if self.ranks != earlier.ranks or (alone and self.choices != earlier.choices):
            said.append(f"The worlds differ: {earlier._world_text} then, {self._world_text} now.")
        before = {(row.key, None if alone else row.choice): row for row in earlier.rows}
        common = 0
        for name, rows in self.series.items():
            pairs = [(before[key], row) for row in rows if (key := (row.key, None if alone else row.choice)) in before]
            common += len(pairs)
            said += changes(name, pairs)
        if not common:
            return [*said, "Nothing was measured in both: use the same operations and sizes."]
        return said or ["No change beyond noise (10 %, with the middle halves of the times apart)."]

    @property
    def _world_text(self) -> str:
        return f"{self.ranks} ranks on {' / '.join(map(str, self.choices))}"

    @property
    def _head(self) -> str:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(self.at))
        return f'bench · world "{self.name}" · {self.ranks} ranks · float32 · mlx {self.mlx} · {when}'

    @property
    def _below(self) -> list[str]:
        """The lines below the table: fits, recommendation and notes."""
        fits = [f"{name}: {line}" for name, line in self.fits.items()]
        return [*fits, *([self.recommendation] if self.recommendation else []), *self.notes]

    def __str__(self) -> str:
        return bench_table.text(self._head, self.rows, self._below)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return bench_table.html(self._head, self.rows, self._below, self.series)
