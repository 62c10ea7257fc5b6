"""The commands that the doctor runs on a host, and the facts parsed from their output."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from allranks_backends.interfaces import Interface, Json, interfaces_of
from allranks_backends.plan import Host
from allranks_backends.registry import BACKENDS
from allranks_backends.thunderbolt import thunderbolt_ports
from allranks_backends.thunderbolt.thunderbolt_ports import Mac

_MAC = '[ "$(uname -s)" = Darwin ] && '
COMMANDS: Mapping[str, str] = {
    "system": "uname -s; uname -r; uname -m",
    "date": "date +%s",
    "python": "{python} -c {probe} {names}",
    "login python": '"${SHELL:-sh}" -lc "command -v python3; command -v python"',
    "interfaces": '[ "$(uname -s)" = Darwin ] || ip -j addr',  # on a Mac, see "mac ifconfig"
    "environment": "env",
    "open files": "ulimit -n",
    "disk": 'd=${TMPDIR:-/tmp}; [ -d "$d" ] || d=/tmp; df -Pk "$d"',
    "home": 'df -Pk "$HOME"',
    "folder": "cd {folder}",
    "memory": 'if [ "$(uname -s)" = Darwin ]; then sysctl -n hw.memsize; vm_stat; else cat /proc/meminfo; fi',
    "daemon": "test -x {prted} && {mpirun} --version",  # prted --version crashes in PyPI's 5.0.11
    "in place": "{abortable}",
    "gpus": "nvidia-smi -L",
    "power": _MAC + "pmset -g",
    **{f"mac {name}": _MAC + command for name, command in thunderbolt_ports.COMMANDS.items()},
}
"""Shell commands by name. The caller replaces the ``{placeholders}`` with quoted values."""


@dataclass(frozen=True)
class Asked:
    """What the user is about to start."""

    backend: str = "auto"
    """Name of the backend, or ``auto``."""
    python: str = "python3"
    python_named: bool = False
    """Whether the user named `python`, which then applies to all hosts whose hostfile entry names no interpreter."""
    cwd: str = ""
    """The working folder of the ranks; empty if the user named none."""
    ranks_per_host: int = 1
    memory: int | None = None
    """Bytes that each rank will need, for example to load a model; None if the user did not say."""
    ranks: tuple[Host, ...] = ()
    """The host of each rank, including its settings from a hostfile."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Versions in the notebook: of ``python`` and of the packages that must be the same on every host."""
    mpirun: str = ""
    """Path of the notebook's mpirun, which would start all ranks of an MPI world; empty if there is no mpirun, or if
    another backend was requested. The fields below are then empty, too."""
    mpirun_fails: str = ""
    """The error message of mpirun if it could not start one process, else empty."""
    prted: str = ""
    """Path of the daemon that mpirun starts on other hosts."""
    open_mpi: str = ""
    """Version of the notebook's Open MPI; empty if mpirun is not Open MPI's."""
    mca: Mapping[str, str] = field(default_factory=dict)
    """Open MPI settings in the notebook's environment, named without ``OMPI_MCA_``; mpirun passes them to all ranks."""

    def python_of(self, host: str) -> str:
        """Return the interpreter named for this host, or else `python`, for all hosts."""
        return next((each.python for each in self.ranks if each.name == host and each.python), self.python)

    def folder_of(self, host: str) -> str:
        """Return the working folder named for this host, or else `cwd`, for all hosts; empty if neither is set."""
        return next((each.cwd for each in self.ranks if each.name == host and each.cwd), self.cwd)

    def wants_environment(self, host: str) -> bool:
        """Whether the host would use an environment made by `setup`: only if no interpreter was named for it."""
        return not self.python_named and not any(each.python for each in self.ranks if each.name == host)

    def other_python(self, python: Json) -> bool:
        """Whether the minor version of `python` (the output of `probe_python.py`) differs from the notebook's."""
        here = self.versions.get("python", "")
        return bool(here) and str(python["python"]).split(".")[:2] != here.split(".")[:2]

    def differing(self, python: Json) -> dict[str, tuple[str, str]]:
        """Map each differing package to its versions in the notebook and in `python` (output of `probe_python.py`)."""
        there = {name: str(python["packages"].get(name, "")) for name in self.versions}
        return {
            name: (mine, there[name])
            for name, mine in self.versions.items()
            if name != "python" and there[name] != mine
        }

    def fits(self, python: Json | None) -> bool:
        """Whether ranks can run under this Python (the output of `probe_python.py`); False if it is None."""
        return python is not None and not self.other_python(python) and not self.differing(python)

    def needs(self, what: str) -> bool:
        """Whether the requested backend needs ``what`` (see ``Backend.needs``)."""
        return self.backend in BACKENDS and BACKENDS[self.backend].needs == what

    @property
    def by_mpirun(self) -> bool:
        """Whether mpirun is to start the ranks."""
        return self.backend in BACKENDS and BACKENDS[self.backend].launcher == "mpirun"


@dataclass(frozen=True)
class Reach:
    """The result of connecting from one host to a TCP port of another."""

    address: str
    error: str = ""
    """Empty if the connection succeeded, else the name of the errno or a clause."""


@dataclass(frozen=True)
class HostFacts:
    """All facts about one host. A fact that could not be obtained is empty, None or 0."""

    name: str
    local: bool = True
    trouble: str = ""
    """Why no command could be run on the host, and what to do."""
    said: tuple[str, ...] = ()
    """The lines that ssh printed."""
    known_hosts: str = ""
    """The file in which ssh stores the host's key."""
    has_agent: bool = True
    addresses: tuple[str, ...] = ()
    """The addresses at which the other hosts will reach it."""
    system: str = ""
    release: str = ""
    """The version of macOS, or the release of the Linux kernel."""
    skew: float = 0.0
    """Seconds by which the host's clock is ahead of the notebook's (negative: behind).

    A difference that the duration of the request explains does not count.
    """
    python: Json | None = None
    """The output of `probe_python.py`; None if it did not run."""
    python_said: str = ""
    login_python: str = ""
    interfaces: tuple[Interface, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    open_files: int | None = None
    disk: tuple[str, int] | None = None
    """Mount point of the disk for temporary files, and the bytes free on it."""
    home: tuple[str, int] | None = None
    """Mount point of the disk with the home folder, and the bytes free on it."""
    no_folder: str = ""
    """Why ranks cannot work in the folder that the user named; empty if they can."""
    memory: tuple[int, int] | None = None
    """Bytes in total, and bytes available to new programs."""
    open_mpi: str = ""
    """Version of the daemon that the notebook's mpirun starts there; empty if it is missing."""
    not_in_place: str = ""
    """Why a rank there could not abort collectives of the backend in place, as a clause; empty if it could."""
    not_in_place_fix: str = ""
    """The fix for `not_in_place`; empty if none is known."""
    gpus: tuple[str, ...] = ()
    """The NVIDIA GPUs: one line of ``nvidia-smi -L`` for each."""
    sleeps: str = ""
    """The line of ``pmset -g`` that sets when the Mac goes to sleep; empty if it never does."""
    mac: Mac | None = None
    """The Mac and its Thunderbolt ports; None if the host is not a Mac, if a command's output cannot be parsed, or if
    the notebook's mlx lacks the code that parses it."""
    reaches: Mapping[str, Reach] = field(default_factory=dict)
    """By name of another host, the result of connecting to it."""

    @property
    def is_mac(self) -> bool:
        return self.system == "Darwin"


Told = Callable[[str], str]
"""Returns the output, or the error message, of the command with the given name; empty if there is no such text."""


def facts_of(name: str, local: bool, told: Told, complained: Told, between: tuple[float, float]) -> dict[str, Any]:
    """Return the fields of `HostFacts` that can be parsed from the output of `COMMANDS`.

    `told` returns the output of a command, and `complained` the error message of a command that failed. `between` are
    the times, in seconds, at which the host was asked and at which it answered.
    """
    system = told("system").split()
    in_place = _json(told("in place")) or {}
    return {
        "name": name,
        "local": local,
        "system": system[0] if system else "",
        "release": told("mac macos").strip() or (system[1] if len(system) > 1 else ""),
        "skew": _skew(told("date"), between),
        "python": _json(told("python")),
        "python_said": complained("python").strip(),
        "login_python": next((line for line in told("login python").splitlines() if line.startswith("/")), ""),
        "interfaces": interfaces_of(told("interfaces") or told("mac ifconfig")),
        "environment": dict(line.split("=", 1) for line in told("environment").splitlines() if "=" in line),
        "open_files": _number(told("open files")),
        "disk": _disk(told("disk")),
        "home": _disk(told("home")),
        "no_folder": complained("folder").strip(),
        "memory": _memory(told("memory")),
        "open_mpi": version_in(told("daemon")),
        "not_in_place": in_place.get("why", ""),
        "not_in_place_fix": in_place.get("fix", ""),
        "gpus": tuple(line.strip() for line in told("gpus").splitlines() if line.startswith("GPU ")),
        "sleeps": _sleeps(told("power")),
        "mac": _mac(name, told) if system[:1] == ["Darwin"] else None,
    }


def _mac(name: str, told: Told) -> Mac | None:
    try:
        return thunderbolt_ports.mac_from(name, {each: told(f"mac {each}") for each in thunderbolt_ports.COMMANDS})
    except ValueError:
        return None


def version_in(text: str) -> str:
    """Return ``5.0.11`` for ``mpirun (Open MPI) 5.0.11``; empty if `text` has no version."""
    found = re.search(r"\d+\.\d+\.\d+\S*", text)
    return found[0] if found else ""


def _skew(told: str, between: tuple[float, float]) -> float:
    """Return `HostFacts.skew`: 0 if the host's time may lie between request and answer.

    ``date`` prints whole seconds.
    """
    there = _number(told)
    if there is None:
        return 0.0
    asked, answered = between
    return there - answered if there > answered else min(0.0, there + 1 - asked)


def _number(text: str) -> int | None:
    return int(text) if text.strip().isdigit() else None


def _json(text: str) -> Json | None:
    for line in reversed(text.splitlines()):
        if line.startswith("{"):
            found: Json = json.loads(line)
            return found
    return None


def _disk(text: str) -> tuple[str, int] | None:
    lines = text.splitlines()
    fields = lines[-1].split() if len(lines) > 1 else []
    return (fields[5], int(fields[3]) * 1024) if len(fields) > 5 and fields[3].isdigit() else None


def _memory(text: str) -> tuple[int, int] | None:
    kib = dict(re.findall(r"^(MemTotal|MemAvailable):\s+(\d+) kB", text, re.MULTILINE))
    if len(kib) == 2:
        return int(kib["MemTotal"]) * 1024, int(kib["MemAvailable"]) * 1024
    page = re.search(r"page size of (\d+) bytes", text)
    if page is None:
        return None
    pages = re.findall(r"^Pages (?:free|inactive|speculative|purgeable):\s+(\d+)", text, re.MULTILINE)
    total = _number(text.split()[0])
    return None if total is None else (total, sum(map(int, pages)) * int(page[1]))


def _sleeps(text: str) -> str:
    """Return the line of ``pmset -g`` that sets when the Mac goes to sleep; empty if it never does.

    ``sleep 10 (sleep prevented by ...)`` counts, since whatever prevents sleep now may end.
    """
    found = re.search(r"^\s*(sleep\s+[1-9]\d*.*)$", text, re.MULTILINE)
    return found[1].strip() if found else ""
