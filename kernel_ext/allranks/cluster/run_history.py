"""The runs of this process: cells that logged, to be listed, compared, named, hidden and exported.

All clusters of a process share one history, so that runs of yesterday's cluster can be compared with today's.
"""

from __future__ import annotations

import csv
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from allranks.dataframes import imported_pandas, utc
from allranks.errors import UsageError
from allranks.head.state.cell_run import CellRun, Change, value_text
from allranks.head.state.code_constants import diff
from allranks.messages.state_manifest import StoredRun
from allranks.units import count_text, seconds_text
from allranks_backends.plan import alike, rank_list
from allranks_widgets.curves import figure
from allranks_widgets.table import html_table, text_table

from .run_loggers import LOGGERS

if TYPE_CHECKING:
    import pandas

MOST_RUNS = 100
"""Maximum number of runs that are kept; beyond that, the oldest is dropped."""
MOST_POINTS = 5_000_000
"""Maximum number of values (160 MB) that all runs but the newest keep together.

Beyond that, the largest of these runs drops every second value.
"""
MOST_METRICS = 4
"""Maximum number of metrics that get a column of their own in the table."""
MOST_LINES = 60
"""Maximum number of lines of a diff that are shown."""
COLUMNS = ("run", "name", "rank", "step", "metric", "value", "time")
SUFFIXES = (".csv", ".parquet")


class RunHistory:
    """The runs of this process; ``history[3]`` and ``history["baseline"]`` return a run by number or name.

    Iterates over `CellRun` objects, oldest first; a notebook shows it as a table. The last 100 runs are kept, also
    after `Cluster.down`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: list[CellRun] = []
        self._count = 0

    def join(self, run: CellRun) -> None:
        """Add the run of a cell that has logged its first value, and number it."""
        with self._lock:
            self._count += 1
            run.number, run.name = self._count, f"run {self._count}"
            earlier = list(self._runs)
            self._runs.append(run)
            del self._runs[:-MOST_RUNS]
        while sum(each.points for each in earlier) > MOST_POINTS:
            max(earlier, key=lambda each: each.points).thin()

    def restore(self, stored: Sequence[StoredRun]) -> tuple[list[CellRun], int]:
        """Add `stored` runs that are new here; returns the `CellRun` of each stored run, and how many were new.

        Raises ValueError if a stored run is invalid.
        """
        known = {(run.at, run.code): run for run in self}
        saved = [CellRun.restored(each) for each in stored]
        added = [run for run in saved if (run.at, run.code) not in known]
        for run in added:
            name = run.name
            self.join(run)
            with suppress(UsageError):  # the name is a number, or another run has it
                self.rename(run.number, name)
        return [known.get((run.at, run.code), run) for run in saved], len(added)

    def __iter__(self) -> Iterator[CellRun]:
        with self._lock:
            return iter(list(self._runs))

    def __len__(self) -> int:
        return len(self._runs)

    def __getitem__(self, which: int | str) -> CellRun:
        """Return a run by number or name. Raises UsageError if there is none."""
        runs = list(self)
        text = str(which)
        found = [run for run in runs if run.name == text] or [run for run in runs if _numbered(run, text)]
        if not found:
            last = ", ".join(_label(run) for run in runs[-8:])
            raise UsageError(f"no run {text!r}. {f'Runs: {last}' if runs else 'No cell has logged anything yet'}.")
        return found[0]

    def before(self, run: CellRun) -> CellRun | None:
        """The last earlier run that logged the same metrics; None if there is none."""
        earlier = [each for each in self if each.number < run.number and each.metrics.keys() == run.metrics.keys()]
        return earlier[-1] if earlier else None

    # Changing.

    def rename(self, which: int | str, name: str) -> None:
        """Give a run a new name, which must be one line.

        Raises UsageError if another run has the name, or if it is empty, ``run``, or a number other than the run's own.
        """
        run = self[which]
        if not name.strip() or len(name.split("\n")) > 1 or name == "run":
            raise UsageError("a run needs a name in one line, other than 'run'.")
        numbered = name.removeprefix("run ").isdecimal() and not _numbered(run, name)
        if numbered or any(each.name == name and each is not run for each in self):
            why = "it is a number" if numbered else "another run has it"
            raise UsageError(f"a run cannot be called {name!r}: {why}.")
        run.name = name

    def hide(self, *which: int | str) -> None:
        """Leave runs out of the charts of later cells, and list them last. Raises UsageError for an unknown run."""
        for run in [self[each] for each in which]:
            run.hidden = True

    def show(self, *which: int | str) -> None:
        """Undo `hide`. Raises UsageError for an unknown run."""
        for run in [self[each] for each in which]:
            run.hidden = False

    # Showing.

    def __str__(self) -> str:
        runs, left_out = self._listed()
        if not runs:
            return "No runs yet: a cell that calls log(loss=...) is one."
        table = text_table(*self._table(runs))
        return f"{table}\n{left_out}" if left_out else table

    __repr__ = __str__

    def _repr_html_(self) -> str:
        runs, left_out = self._listed()
        if not runs:
            return f"<div>{escape(str(self))}</div>"
        headings, rows = self._table(runs)
        pale = [number for number, run in enumerate(runs) if run.hidden]
        return html_table(headings, rows, pale=pale) + (f"<div>{escape(left_out)}</div>" if left_out else "")

    def _listed(self) -> tuple[list[CellRun], str]:
        """The runs in the order of the list, and a sentence on metrics without a column."""
        runs = sorted(self, key=lambda run: run.hidden)
        names = _metric_names(runs)[MOST_METRICS:]
        shown = f"{', '.join(names[:8])}{' …' if len(names) > 8 else ''}"
        return runs, f"Also logged: {shown}. %distributed runs NAME shows all values of a run." if names else ""

    def _table(self, runs: Sequence[CellRun]) -> tuple[list[str], list[list[str]]]:
        names = _metric_names(runs)[:MOST_METRICS]
        headings = ["run", "began", "time", "status", "ranks", *names, "what changed"]
        return headings, [self._row(run, names) for run in runs]

    def _row(self, run: CellRun, names: Sequence[str]) -> list[str]:
        metrics, before = run.metrics, self.before(run)
        last = [figure(metrics[name].mean) if name in metrics else "" for name in names]
        ranks, took = f"{len(run.ranks)} {run.backend}", seconds_text(run.seconds).replace(" ", "\N{NO-BREAK SPACE}")
        changed = run.changes_text(before) if before is not None else ""
        return [_label(run), _clock(run.at), took, run.status, ranks, *last, changed]

    def compare(self, which: int | str, other: int | str | None = None) -> RunComparison:
        """Compare a run with `other`, by default the last earlier run with the same metrics. Raises UsageError."""
        run = self[which]
        return RunComparison(run, self.before(run) if other is None else self[other])

    # Exporting.

    def frame(self, *which: int | str) -> pandas.DataFrame:
        """All logged values of these runs, or of all runs, with one value per row.

        Columns: ``run`` (the number), ``name``, ``rank``, ``step``, ``metric``, ``value``, ``time`` (UTC). Raises
        UsageError for an unknown run, or if pandas is missing.
        """
        pandas = imported_pandas("runs.frame()")
        frame = pandas.DataFrame(self._values(self._chosen(which)), columns=list(COLUMNS))
        frame["time"] = utc(frame["time"])
        return frame

    def export(self, path: str | Path, *which: int | str, logger: str | None = None, force: bool = False) -> str:
        """Write the values of these runs, or of all, to a new ``.csv`` or ``.parquet`` file; returns a message.

        In CSV, infinite values and NaN are ``inf``, ``-inf`` and ``nan``, and times are Unix seconds.

        With a `logger` (``tensorboard``, ``mlflow`` or ``wandb``), its library writes to the folder `path`, or MLflow
        to the tracking server at this URL: each run's parameters, and for each step the mean over the ranks, with
        minimum and maximum if the ranks differ. `force` replaces an existing file, or TensorBoard runs of the same
        names. Raises UsageError.
        """
        file, runs = Path(path).expanduser(), self._chosen(which)
        if not runs:
            raise UsageError("no runs to export: no cell has logged anything yet.")
        if logger is not None:
            if logger not in LOGGERS:
                raise UsageError(f"unknown logger {logger!r}: choose from {', '.join(LOGGERS)}.")
            if running := [_label(run) for run in runs if run.status == "running"]:
                raise UsageError(f"{', '.join(running)} is still running: export it to a file, or wait for its end.")
            try:
                LOGGERS[logger](runs, str(path), force)
            except UsageError:
                raise
            except Exception as error:  # of the library, or of the file system
                why = (str(error).strip().splitlines() or [type(error).__name__])[0]
                raise UsageError(f"{logger} could not write {path}: {why}") from error
            return f"{path}: {count_text(len(runs), 'run')} for {logger}."
        if file.suffix not in SUFFIXES:
            raise UsageError(
                f"cannot export to {path}: use a name that ends in .csv or .parquet, or a folder and "
                f"--as {', '.join(LOGGERS)}."
            )
        if file.exists() and not force:
            raise UsageError(f"{path} exists: --force replaces it.")
        if file.suffix == ".csv":
            rows = list(self._values(runs))
            _written(path, file, lambda draft: _write_csv(draft, rows))
        else:
            if find_spec("pyarrow") is None or find_spec("pandas") is None:
                raise UsageError(f"{path}: Parquet needs pandas and pyarrow: pip install pandas pyarrow.")
            frame = self.frame(*(run.number for run in runs))
            rows = list(frame.itertuples())
            _written(path, file, lambda draft: frame.to_parquet(draft, index=False))
        return f"{path}: {count_text(len(rows), 'value')} of {count_text(len(runs), 'run')}."

    def _chosen(self, which: Sequence[int | str]) -> list[CellRun]:
        return [self[each] for each in which] or list(self)

    @staticmethod
    def _values(runs: Sequence[CellRun]) -> Iterator[tuple[int, str, int, float, str, float, float]]:
        for run in runs:
            for row in run.rows():
                yield run.number, run.name, row.rank, row.step, row.name, row.value, row.at


class RunComparison:
    """A run compared with another, `before`: metrics, and the values and lines of code that differ.

    Without a run to compare with, `before` is None.
    """

    def __init__(self, run: CellRun, before: CellRun | None) -> None:
        self.run, self.before = run, before

    @property
    def changes(self) -> list[Change]:
        """The values that differ, each with ``name``, ``before`` and ``now``; empty without a run to compare with."""
        return self.run.changes(self.before)[0] if self.before is not None else []

    @property
    def diff(self) -> list[str]:
        """The lines of a unified diff of the code; empty if there is no run to compare with."""
        return diff(self.before.read, self.run.read) if self.before is not None else []

    def __str__(self) -> str:
        parts = [self._heading, text_table(*self._table()), *self._changed]
        lines = self.diff
        parts += lines[:MOST_LINES]
        if len(lines) > MOST_LINES:
            parts.append(f"… {len(lines) - MOST_LINES} more lines")
        return "\n".join(parts)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        text = "\n".join(self.diff[:MOST_LINES])
        more = f"\n… {len(self.diff) - MOST_LINES} more lines" if len(self.diff) > MOST_LINES else ""
        code = f'<pre style="margin:6px;font-family:monospace">{escape(text + more)}</pre>' if text else ""
        heading, *changed = (
            f'<div style="margin:0 6px">{escape(line)}</div>' for line in (self._heading, *self._changed)
        )
        return f"{heading}{html_table(*self._table())}{''.join(changed)}{code}"

    @property
    def _heading(self) -> str:
        run = self.run
        took = f"{seconds_text(run.seconds)}{' so far' if run.status == 'running' else ''}"
        heading = (
            f"{_label(run)}: {run.status}, {took}, began {_clock(run.at)}, ranks {rank_list(run.ranks)}, {run.backend}"
        )
        return f"{heading}, {run.collectives}" if run.collectives is not None else heading

    def _table(self) -> tuple[list[str], list[list[str]]]:
        """The headings and rows: one row per metric, or several if the last values differ between ranks."""
        headings, rows = ["metric", "ranks", "step", "last", "min", "max"], []
        earlier = self.before.metrics if self.before is not None else {}
        if self.before is not None:
            headings.append(f"last of {self.before.name}")
        for name, metric in self.run.metrics.items():
            extremes = [figure(metric.min), figure(metric.max)] if metric.min <= metric.max else ["–", "–"]
            before = earlier[name].last if name in earlier else {}
            lasts = {
                rank: (figure(value), figure(before[rank]) if rank in before else "–")
                for rank, value in metric.last.items()
            }
            for (last, last_before), ranks in alike(lasts).items():
                row = [name, rank_list(ranks), figure(metric.step), last, *extremes]
                rows.append(row if self.before is None else [*row, last_before])
        return headings, rows

    @property
    def _changed(self) -> list[str]:
        values = ", ".join(f"{name} {value_text(value)}" for name, value in self.run.values.items() if "()" not in name)
        parts = [f"values: {values}"] if values else []
        if self.before is not None:
            parts.append(f"compared with {self.before.name}: {self.run.changes_text(self.before)}")
        return parts


RUNS = RunHistory()
"""The runs of this process."""


def _numbered(run: CellRun, text: str) -> bool:
    return text.removeprefix("run ") == str(run.number)


def _label(run: CellRun) -> str:
    return f"{run.label} (hidden)" if run.hidden else run.label


def _metric_names(runs: Sequence[CellRun]) -> list[str]:
    """The names of all metrics, beginning with the metrics of the newest run."""
    return list(dict.fromkeys(name for run in sorted(runs, key=lambda run: -run.number) for name in run.metrics))


def _clock(at: float) -> str:
    """The local time of day, or the date and time if that was not today."""
    moment, today = time.localtime(at), time.localtime()
    return time.strftime("%H:%M:%S" if moment[:3] == today[:3] else "%b %d %H:%M", moment)


def _write_csv(path: Path, rows: Sequence[Sequence[object]]) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows(rows)


def _written(path: str | Path, file: Path, write: Callable[[Path], object]) -> None:
    """Have `write` make a temporary file, which then replaces `file` atomically. Raises UsageError if that fails."""
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        write(draft)
        os.replace(draft, file)
    except OSError as error:
        with suppress(OSError):
            draft.unlink()
        raise UsageError(f"cannot write {path}: {error.strerror or error}.") from None
