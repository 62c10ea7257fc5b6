"""What host processes write down about the cluster they belong to, so that a shell can list and end clusters."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import psutil

from .files import refuse_open, write_private
from .identity import still_runs, this_machine
from .lease import busy_at

FILE = "cluster.json"
HOST_PROCESS = "host process"
HOST_MODULE = "allranks.rank.process.host"
RUNS_A_CELL = 10.0
"""Seconds since its last sign within which a cell counts as running."""
ENDS_WITHIN = 15.0
"""Seconds a host process gets to end everything before it is killed."""


@dataclass(frozen=True)
class HostedCluster:
    """One cluster's processes on this machine."""

    cluster: str
    name: str
    backend: str
    size: int
    hosts: list[str]
    logins: dict[str, str]
    """Other hosts that have processes of it, by their names for ssh, and the Python that has allranks there."""
    host: str
    """The name of this machine there."""
    notebook: str
    python: str
    node: str
    """Which machine this is: others find this description, too, where the folder of temporary files is shared."""
    processes: dict[str, tuple[int, float]]
    """Number of each, and when it began, by name: ``host process``, ``rank 3``, ``controller``, ``launcher``."""
    since: float
    """When it was first described, as `time.time` has it."""
    lease: float | None = 0.0
    away_since: float | None = None
    """When the notebook went, as `time.time` has it; None while it is there."""
    folders: list[str] = field(default_factory=list)
    """All that the cluster has on this machine, the one of this description first; files too."""
    version: str = ""
    """Of allranks that wrote this; empty for an older one."""
    busy_at: float = 0.0
    """Once the notebook is away: the last sign of a cell, by `time.time`."""

    @property
    def running(self) -> list[str]:
        """Names of the processes that still run."""
        return _running(self.processes)

    @property
    def runs_a_cell(self) -> bool:
        """Whether a rank here has lately said so; those with a notebook tell that instead."""
        return self.busy_at > time.time() - RUNS_A_CELL

    def write(self) -> None:
        """Into the first of its folders."""
        write_private(Path(self.folders[0], FILE), json.dumps(asdict(self)))


def hosted_clusters(also: Iterable[str | Path] = ()) -> list[HostedCluster]:
    """This user's clusters on this machine, including those of which only files are left.

    They are looked for where temporary files are, and in the folders `also`.
    """
    found = (_hosted(told) for told in _read_all(also))
    return [each for each in found if each is not None]


def listed(also: Iterable[str | Path] = ()) -> list[dict[str, Any]]:
    """What `hosted_clusters` reads, each with the names of its processes that still run, as JSON.

    Those that another version of allranks has written, with other fields, are there as it wrote them.
    """
    found = []
    for told in _read_all(also):
        each = _hosted(told)
        cluster = asdict(each) if each is not None else told
        found.append({"cluster": cluster, "running": _running(told["processes"])})
    return found


def _running(processes: Mapping[str, tuple[int, float]]) -> list[str]:
    return [name for name, (pid, since) in processes.items() if still_runs(pid, since)]


def _hosted(told: Mapping[str, Any]) -> HostedCluster | None:
    """None where another version wrote it, and left out what this one needs."""
    known = {each.name for each in fields(HostedCluster)}
    try:
        return HostedCluster(**{name: value for name, value in told.items() if name in known})
    except TypeError:
        return None


def _read_all(also: Iterable[str | Path]) -> list[dict[str, Any]]:
    folders = {file.parent for place in _places() for file in Path(place).resolve().glob(f"allranks-*/{FILE}")}
    found = (_read(folder) for folder in sorted(folders | {Path(each).resolve() for each in also}))
    return [each for each in found if each is not None]


def _places() -> set[str]:
    """Where temporary files are, also for host processes that were started with another TMPDIR."""
    places = {tempfile.gettempdir(), "/tmp"}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if HOST_MODULE in process.cmdline():
                places.add(process.environ().get("TMPDIR") or "/tmp")
    return places


def _read(folder: Path) -> dict[str, Any] | None:
    """None where there is none, or another user's or another machine's.

    Others may write in /tmp: what could be theirs, or leads elsewhere, says nothing of what is to be ended.
    """
    try:
        refuse_open(folder)
        told = json.loads((folder / FILE).read_text())
        if Path(told["folders"][0]).resolve() != folder:  # a copy
            return None
        told["processes"] = {name: (int(pid), float(since)) for name, (pid, since) in told["processes"].items()}
        if told["node"] != this_machine():
            return None
        told["busy_at"] = busy_at(map(Path, told["folders"]))
        return dict(told)
    except (OSError, ValueError, TypeError, LookupError, AttributeError):
        return None


def end(cluster: HostedCluster) -> list[str]:
    """End its processes on this machine, and remove its folders; returns the names of those that were ended."""
    running = cluster.running
    pid, _ = cluster.processes[HOST_PROCESS]
    if HOST_PROCESS in running:
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            process.terminate()
            with suppress(psutil.TimeoutExpired):
                process.wait(ENDS_WITHIN)
    for name in cluster.running:
        left, _ = cluster.processes[name]
        with suppress(ProcessLookupError, PermissionError):
            # In the group of the host process: with it goes what its cells have started.
            if os.getpgid(left) == pid:
                os.killpg(pid, signal.SIGKILL)
            else:
                os.kill(left, signal.SIGKILL)
    for folder in cluster.folders:
        if Path(folder).is_dir():  # the file for attaching may by now be that of another cluster of this name
            shutil.rmtree(folder, ignore_errors=True)
    return running
