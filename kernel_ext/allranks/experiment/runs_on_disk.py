"""The saved runs of an experiment: a folder with one folder for each run, and the table made of them.

``run.json`` in a run's folder is written atomically when the run is over, and marks it as finished: such runs are
not repeated when the experiment is resumed. To repeat a single run, remove its folder; for `again` see
`Experiment.run`.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from allranks.errors import Busy

from .grid import TAKEN, Run

if TYPE_CHECKING:
    import pandas

TABLE = "results.parquet"

Entry = dict[str, Any]
"""One run: ``parameters``, ``results``, ``world``, and the columns that `TAKEN` names."""


class RunRecord:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextmanager
    def held(self) -> Iterator[None]:
        """Lock the experiment within the context, or until the process ends. Raises Busy if another process runs it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / ".lock", "a+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                lock.seek(0)
                raise Busy(f"process {lock.read().strip()} already runs the experiment in {self.folder}.") from None
            lock.truncate(0)
            lock.write(str(os.getpid()))
            lock.flush()
            yield

    def place(self, run: Run) -> Path:
        """Return the run's folder."""
        return self.folder / run.folder

    def begin(self, run: Run) -> int:
        """Note that the run starts, and remove its earlier entry; returns how often it has started, including now."""
        place = self.place(run)
        place.mkdir(exist_ok=True)
        (place / "run.json").unlink(missing_ok=True)
        with open(place / "attempts", "a") as attempts:
            attempts.write(time.strftime("%Y-%m-%dT%H:%M:%SZ\n", time.gmtime()))
        return len((place / "attempts").read_text().splitlines())

    def finish(self, run: Run, entry: Entry) -> None:
        """Save the entry of a finished run: from now on it is not run again."""
        entry = {"run": run.label, "parameters": dict(run.parameters), "repeat": run.repeat, **entry}
        text = json.dumps(entry, indent=1, default=str)
        written(self.place(run) / "run.json", lambda path: path.write_text(text + "\n", encoding="utf-8"))

    def done(self, run: Run) -> Entry | None:
        """Return the entry of a finished run; None for other runs."""
        return _entry(self.place(run) / "run.json")

    def entries(self, order: Sequence[Run]) -> list[Entry]:
        """Return the entries of finished runs: runs in `order` first, then runs of earlier grids by their start."""
        first = [run.folder for run in order]
        there = {path.parent.name: entry for path in sorted(self.folder.glob("*/run.json")) if (entry := _entry(path))}
        others = sorted((name for name in there if name not in first), key=lambda name: str(there[name].get("at", "")))
        return [{**there[name], "folder": name} for name in [*first, *others] if name in there]

    def save_table(self, table: pandas.DataFrame) -> None:
        """Save the table as Parquet, completely or not at all."""
        written(self.folder / TABLE, lambda path: plain_columns(table).to_parquet(path, index=False))


def written(path: Path, write: Callable[[Path], object]) -> None:
    """Have `write` make a file, which then replaces `path` atomically, even if the power fails."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    write(draft)
    with open(draft, "rb") as file:
        os.fsync(file.fileno())
    os.replace(draft, path)


def _entry(path: Path) -> Entry | None:
    try:
        entry: Entry = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return entry


def table_of(entries: Sequence[Entry]) -> pandas.DataFrame:
    """Return one row per run: its name and how it ended, parameters, results, and ``world.`` figures."""
    import pandas

    rows = [_row(entry) for entry in entries]
    names = dict.fromkeys(name for row in rows for name in row)
    ahead = ["run", "status", *dict.fromkeys(name for entry in entries for name in entry["parameters"])]
    if any(entry["repeat"] for entry in entries):
        ahead.append("repeat")
    behind = [name for name in names if name in TAKEN or name.startswith("world.")]
    middle = [name for name in names if name not in ahead and name not in behind]
    last = sorted(
        (name for name in behind if name not in (*ahead, "repeat")), key=lambda name: name.startswith("world.")
    )
    frame = pandas.DataFrame(rows, columns=[*ahead, *middle, *last])
    if "at" in frame:
        frame["at"] = pandas.to_datetime(frame["at"], unit="s", utc=True)
    return frame


def _row(entry: Entry) -> dict[str, object]:
    row: dict[str, object] = {name: entry[name] for name in TAKEN if name in entry} | dict(entry["parameters"])
    for name, value in entry.get("results", {}).items():
        if row.get(name) != value:  # a result that only repeats a parameter needs no column
            row[f"result.{name}" if name in row else name] = value
    return row | {f"world.{name}": value for name, value in entry.get("world", {}).items()}


def plain_columns(table: pandas.DataFrame) -> pandas.DataFrame:
    """Return the table with text in columns of mixed types or of objects such as lists: Parquet needs one type."""
    plain = table.copy()
    for name in plain.columns:
        if str(plain[name].dtype) != "object":
            continue
        kinds = {type(value) for value in plain[name] if not missing(value)}
        if kinds - {str} and kinds != {bool}:
            plain[name] = [None if missing(value) else _text(value) for value in plain[name]]
    return plain


def missing(value: object) -> bool:
    """Whether a table's cell has no value: None or NaN."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def plain_results(results: Mapping[str, object]) -> dict[str, object]:
    """Return results as JSON values: arrays of one element as numbers, longer ones as lists, and the rest as text."""
    return {str(name): _plain(value) for name, value in results.items()}


def _plain(value: object) -> object:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return plain_results(value)
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    for way in ("item", "tolist"):  # numpy and MLX
        try:
            return _plain(getattr(value, way)())
        except (AttributeError, TypeError, ValueError):
            continue
    return str(value)
