"""Recordings: Snapshots, output and logged values as JSON lines. A dashboard can replay them without a cluster.

A recording is a text file, gzipped if its name ends in ``.gz``. Each line is an object with ``at`` (Unix time in
seconds) and one of ``frame`` (a Snapshot), ``output`` (items for `Dashboard.output`) and ``logged`` (rows for
`Dashboard.logged`). Fields that have their default are left out, and a reader ignores fields of newer versions.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import threading
import time
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, NamedTuple

from allranks_backends.views import Snapshot

from ._kept import Json
from .curves import LoggedRow, rows_json
from .snapshot_json import from_dict, to_dict

if TYPE_CHECKING:
    from .dashboard import Dashboard


class Recorder:
    """Writes to a file what a dashboard would show, for a later replay.

    After `close`, or the end of a ``with``, further calls are ignored.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._file = _open(self.path, "wt")
        self._lock = threading.Lock()  # one thread may call `show` while another calls `close`

    def show(self, snapshot: Snapshot) -> None:
        self._write({"at": snapshot.at, "frame": to_dict(snapshot)})

    def flush(self) -> None:
        """Do nothing, since nothing is held back; callers can use a recorder in place of a dashboard."""

    def refresh(self) -> None:
        """Do nothing, since a recording has no tables."""

    def output(self, items: Sequence[Json], at: float | None = None) -> None:
        """Record output of ranks; ``at`` is Unix time in seconds, now if not given."""
        self._write({"at": time.time() if at is None else at, "output": list(items)})

    def logged(self, rows: Sequence[LoggedRow], at: float | None = None) -> None:
        """Record logged values; ``at`` is Unix time in seconds, now if not given."""
        self._write({"at": time.time() if at is None else at, "logged": json.loads(rows_json(rows))})

    def close(self) -> None:
        with self._lock:
            self._file.close()

    def _write(self, entry: Json) -> None:
        with self._lock:
            if not self._file.closed:
                self._file.write(json.dumps(entry, separators=(",", ":"), ensure_ascii=False) + "\n")

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, kind: type[BaseException] | None, raised: BaseException | None, _: TracebackType | None) -> None:
        self.close()


class Recorded(NamedTuple):
    """One line of a recording."""

    at: float
    """Unix time in seconds."""
    snapshot: Snapshot | None
    output: list[Json]
    logged: list[LoggedRow]


def read(path: str | Path) -> Iterator[Recorded]:
    """Yield the lines of a recording, in order."""
    with _open(Path(path), "rt") as file:
        for line in file:
            entry = json.loads(line)
            frame = entry.get("frame")
            shown = None if frame is None else from_dict(Snapshot, frame)
            yield Recorded(entry["at"], shown, entry.get("output", []), entry.get("logged", []))


def _open(path: Path, mode: str) -> IO[str]:
    if path.suffix == ".gz":
        return typing.cast(IO[str], gzip.open(path, mode, encoding="utf-8"))
    return path.open(mode, encoding="utf-8")


class Replay:
    """Shows a recording in a dashboard, in a separate thread."""

    def __init__(self, path: str | Path, dashboard: Dashboard, speed: float = 1.0) -> None:
        if speed <= 0:
            raise ValueError(f"invalid speed {speed}: must be above 0")
        self._path, self._entries = Path(path), list(read(path))
        self._dashboard = dashboard
        self._speed = speed
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="allranks-replay", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        seconds = (self._entries[-1].at - self._entries[0].at) / self._speed if self._entries else 0.0
        return f"<Replay of {self._path.name}, {seconds:.3g} s: {'shown' if self._thread.is_alive() else 'over'}>"

    def stop(self) -> None:
        """Stop the replay; the dashboard keeps what it shows."""
        self._stopped.set()
        self._thread.join()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end of the replay, at most ``timeout`` seconds (None: no limit); return whether it has ended."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        if not self._entries:
            return
        began, first = time.time(), self._entries[0].at
        for entry in self._entries:
            due = began + (entry.at - first) / self._speed
            if self._stopped.wait(max(0.0, due - time.time())):
                return
            if entry.snapshot is not None:  # dated now, so that the chart ends at the present
                self._dashboard.show(dataclasses.replace(entry.snapshot, at=due))
            if entry.output:
                self._dashboard.output(entry.output)
            if entry.logged:
                self._dashboard.logged(entry.logged)
        self._stopped.wait(0.15)
        self._dashboard.flush()


def replay(path: str | Path, dashboard: Dashboard, speed: float = 1.0) -> Replay:
    """Show a recording in ``dashboard``, ``speed`` times as fast as it was recorded.

    Returns once the file has been read; a thread then shows it.
    """
    return Replay(path, dashboard, speed)
