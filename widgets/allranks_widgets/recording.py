"""Snapshots, output and logged values as JSON lines: recordings, which a dashboard can replay without a cluster.

A recording is a text file, gzipped if its name ends in ``.gz``. Each line is an object with ``at`` (Unix time in
seconds) and one of ``frame`` (a Snapshot), ``output`` (items for `Dashboard.output`) and ``logged`` (rows for
`Dashboard.logged`). Fields that have their default are left out; fields of newer versions are ignored.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import threading
import time
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from allranks_backends.views import Snapshot

from .curves import LoggedRow, rows_json

if TYPE_CHECKING:
    from .dashboard import Dashboard

Json = dict[str, Any]
"""A JSON object."""

OLD_NAMES = {"epoch": "generation", "seq": "number"}
"""Maps the name of a field in recordings of version 0.1 to its present name."""
_NO_DEFAULT = object()


def to_dict(value: Any) -> Any:
    """Return a (nested) dataclass of `plan` or `views` as JSON, without the fields that have their default."""
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, tuple):
        return [to_dict(item) for item in value]
    if isinstance(value, Mapping):
        return dict(value)
    plain = {}
    kind: Any = type(value)
    for name, default in _defaults(kind):
        held = getattr(value, name)
        if held is not default and held != default:
            plain[name] = to_dict(held)
    return plain


def from_dict(kind: Any, plain: Any) -> Any:
    """Return ``plain`` as a ``kind``, a dataclass or the annotation of a field; the opposite of `to_dict`."""
    origin = typing.get_origin(kind)
    if origin is types.UnionType or origin is typing.Union:
        return None if plain is None else from_dict(typing.get_args(kind)[0], plain)
    if origin is tuple:
        return tuple(from_dict(typing.get_args(kind)[0], item) for item in plain)
    if origin is not None and isinstance(plain, Mapping):
        return MappingProxyType(dict(plain))
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        fields = _annotations(kind)
        plain = {OLD_NAMES.get(name, name): held for name, held in plain.items()}
        return kind(**{name: from_dict(fields[name], held) for name, held in plain.items() if name in fields})
    return plain


def to_json(snapshot: Snapshot) -> str:
    """The Snapshot as one line of JSON."""
    return json.dumps(to_dict(snapshot), separators=(",", ":"), ensure_ascii=False)


def from_json(text: str | bytes) -> Snapshot:
    """Return the Snapshot that `to_json` wrote, possibly in a newer version.

    Raises ValueError if the text is not JSON, and TypeError if a field is missing.
    """
    snapshot: Snapshot = from_dict(Snapshot, json.loads(text))
    return snapshot


@cache
def _defaults(kind: Any) -> tuple[tuple[str, Any], ...]:
    def default(field: dataclasses.Field[Any]) -> Any:
        if field.default_factory is not dataclasses.MISSING:
            return field.default_factory()
        return _NO_DEFAULT if field.default is dataclasses.MISSING else field.default

    return tuple((field.name, default(field)) for field in dataclasses.fields(kind))


@cache
def _annotations(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


class Recorder:
    """Writes to a file what a dashboard would show, for a later replay.

    After `close`, or the end of a ``with``, further calls are ignored.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._file = _open(self.path, "wt")
        self._lock = threading.Lock()  # one thread may feed it and another close it

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
    """A recording that a thread of its own shows in a dashboard."""

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
        """Wait at most ``timeout`` seconds for the end; return whether it was reached."""
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
    """Show a recording in ``dashboard``, ``speed`` times as fast as it was recorded; returns at once."""
    return Replay(path, dashboard, speed)
