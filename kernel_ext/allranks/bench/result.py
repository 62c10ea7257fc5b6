"""What ``bench`` measured: figures, fits and advice, to look at, to keep, and to set against another time's."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from allranks.errors import UsageError

from . import table
from .compare import advice, best, changes
from .figures import BenchRow, Choice, Fit, fit

FORMAT = 1
"""Of a saved file."""


@dataclass
class BenchResult:
    """What ``bench`` measured: a table as text and HTML, `frame` for pandas, `fits`, `save` and `against`."""

    name: str
    """Of the cluster."""
    ranks: int
    choice: Choice
    """How the ranks were wired when it began, and are again."""
    rows: list[BenchRow]
    notes: list[str] = field(default_factory=list)
    """What was left out, and why."""
    at: float = 0.0
    """Unix time in seconds."""
    mlx: str = field(default_factory=lambda: version("mlx"))

    @property
    def peak(self) -> float:
        """The highest busbw on the wiring in use, in bytes a second."""
        return max((row.busbw for row in self.rows if row.choice == self.choice), default=0.0)

    @property
    def series(self) -> dict[str, list[BenchRow]]:
        """The rows by what was measured, such as ``all_sum``, ``link 0-1``, or ``all_sum (mpi)`` among several."""
        found: dict[str, list[BenchRow]] = {}
        for row in self.rows:
            name = row.what if len(self.choices) == 1 else f"{row.what} ({row.choice})"
            found.setdefault(name, []).append(row)
        return found

    @property
    def fits(self) -> dict[str, Fit]:
        """t = a + S / B of each series with two sizes or more."""
        return {name: found for name, rows in self.series.items() if (found := fit(rows)) is not None}

    @property
    def choices(self) -> list[Choice]:
        """The wirings that were measured."""
        return list(dict.fromkeys(row.choice for row in self.rows))

    def ratios(self) -> dict[Choice, list[float]]:
        """busbw of every other choice over that of the wiring in use, wherever both were measured."""
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
        """The wiring with the highest busbw, as the geometric mean over all that was measured on both; None without
        another one. The one in use stays unless another is better by more than 10 %."""
        return best(self.ratios(), self.choice)

    @property
    def recommendation(self) -> str | None:
        """The same as a sentence, with the command that applies it."""
        return advice(self.ratios(), self.choice)

    def frame(self) -> Any:
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
        """Write everything as JSON. Raises UsageError where the file cannot be written."""
        content = {"allranks bench": FORMAT, **asdict(self)}
        try:
            Path(path).write_text(json.dumps(content, indent=1) + "\n")
        except OSError as error:
            raise UsageError(f"--save {path}: {error.strerror or error}.") from None

    @classmethod
    def load(cls, path: str | Path) -> BenchResult:
        """What `save` wrote. Raises UsageError for any other file."""
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
        """What changed since, a sentence each: ``link 1-2 fell from 0.93 to 0.41 Gbit/s at 64 MiB``.

        Counted as changed: a busbw that differs by more than 10 %, where moreover the middle halves of the times of
        both runs (between their quartiles) do not touch. Neighbouring sizes that changed alike share a sentence.
        """
        return changes(self, earlier)

    def __str__(self) -> str:
        return table.text(self)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return table.html(self)
