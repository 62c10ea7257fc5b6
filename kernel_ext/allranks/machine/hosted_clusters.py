"""Descriptions of clusters that host processes write to files, so that a shell can list and end clusters."""

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
from typing import Any, TypeAlias

import psutil

from .lease import busy_at
from .private_files import refuse_open, write_private
from .process_identity import still_runs, this_machine

FILE = "cluster.json"
HOST_PROCESS = "host process"
HOST_MODULE = "allranks.host_process.host"
RUNS_A_CELL = 10.0
"""Seconds after its last sign of activity for which a cell counts as running."""
ENDS_WITHIN = 15.0
"""Seconds a host process gets to end everything before it is killed."""

ClusterDescription: TypeAlias = dict[str, Any]
"""A cluster as a host process of any version of allranks described it: mostly the fields of `HostedCluster`."""


@dataclass(frozen=True)
class HostedCluster:
    """The processes of one cluster on this machine."""

    cluster: str
    name: str
    backend: str
    size: int
    hosts: list[str]
    logins: dict[str, str]
    """Maps the ssh names of other hosts with processes of the cluster to the Python with allranks there."""
    host: str
    """The name of this machine in the cluster."""
    notebook: str
    python: str
    node: str
    """Identifies this machine, since other machines may share the folder for temporary files."""
    processes: dict[str, tuple[int, float]]
    """Pids and start times, by name: ``host process``, ``rank 3``, ``controller``, ``launcher`` or ``saver``."""
    since: float
    """When the host process started, by `time.time`."""
    lease: float | None = 0.0
    away_since: float | None = None
    """When the notebook disconnected, by `time.time`; None while it is connected."""
    folders: list[str] = field(default_factory=list)
    """All folders and files of the cluster on this machine; the folder with this description comes first."""
    version: str = ""
    """The version of allranks that wrote this description; empty for versions that did not note it."""
    busy_at: float = 0.0
    """The last sign of a running cell while the notebook is away, by `time.time`; 0 without one."""

    @property
    def running(self) -> list[str]:
        """Names of the processes that still run."""
        return _running(self.processes)

    @property
    def runs_a_cell(self) -> bool:
        """Whether a rank here signalled a running cell in the last `RUNS_A_CELL` seconds.

        Ranks signal this only while the notebook is away.
        """
        return self.busy_at > time.time() - RUNS_A_CELL

    def write(self) -> None:
        """Write the description to the first of the folders."""
        write_private(Path(self.folders[0], FILE), json.dumps(asdict(self)))


def hosted_clusters(also: Iterable[str | Path] = ()) -> list[HostedCluster]:
    """This user's clusters on this machine, including clusters of which only files are left.

    Searches the folders for temporary files, and the folders `also`.
    """
    found = (_hosted(told) for told in _read_all(also))
    return [each for each in found if each is not None]


def listed(also: Iterable[str | Path] = ()) -> list[dict[str, Any]]:
    """The clusters of `hosted_clusters` as values for JSON, each with the names of its processes that still run.

    Also includes, unchanged, descriptions by other versions of allranks that lack fields.
    """
    found = []
    for told in _read_all(also):
        each = _hosted(told)
        cluster = asdict(each) if each is not None else told
        found.append({"cluster": cluster, "running": _running(told["processes"])})
    return found


def _running(processes: Mapping[str, tuple[int, float]]) -> list[str]:
    return [name for name, (pid, since) in processes.items() if still_runs(pid, since)]


def _hosted(told: ClusterDescription) -> HostedCluster | None:
    """Convert a description, without unknown fields; None if it lacks fields (another version of allranks wrote it)."""
    known = {each.name for each in fields(HostedCluster)}
    try:
        return HostedCluster(**{name: value for name, value in told.items() if name in known})
    except TypeError:
        return None


def _read_all(also: Iterable[str | Path]) -> list[ClusterDescription]:
    folders = {file.parent for place in _places() for file in Path(place).resolve().glob(f"allranks-*/{FILE}")}
    found = (_read(folder) for folder in sorted(folders | {Path(each).resolve() for each in also}))
    return [each for each in found if each is not None]


def _places() -> set[str]:
    """The folders for temporary files: this process's, ``/tmp``, and the TMPDIR of each running host process."""
    places = {tempfile.gettempdir(), "/tmp"}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if HOST_MODULE in process.cmdline():
                places.add(process.environ().get("TMPDIR") or "/tmp")
    return places


def _read(folder: Path) -> ClusterDescription | None:
    """Read the description in a folder; None if it is missing, damaged or copied, or of another user or machine.

    Other users may write to /tmp: their files, and copies or links, must not determine which processes are ended.
    """
    try:
        refuse_open(folder)
        told = json.loads((folder / FILE).read_text())
        if Path(told["folders"][0]).resolve() != folder:  # a copied description
            return None
        told["processes"] = {name: (int(pid), float(since)) for name, (pid, since) in told["processes"].items()}
        if told["node"] != this_machine():
            return None
        told["busy_at"] = busy_at(map(Path, told["folders"]))
        return dict(told)
    except (OSError, ValueError, TypeError, LookupError, AttributeError):
        return None


def end(cluster: HostedCluster) -> list[str]:
    """End the cluster's processes on this machine, and remove its folders; return the names of the ended processes."""
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
            # Killing the host process's group also ends processes that cells have started.
            if os.getpgid(left) == pid:
                os.killpg(pid, signal.SIGKILL)
            else:
                os.kill(left, signal.SIGKILL)
    for folder in cluster.folders:
        if Path(folder).is_dir():  # the file for `attach` may now belong to a newer cluster of this name
            shutil.rmtree(folder, ignore_errors=True)
    return running
