"""What the doctor asks a host, and what it makes of the answers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from allranks_backends.interfaces import Interface, interfaces_of
from allranks_backends.plan import Host
from allranks_backends.registry import BACKENDS
from allranks_backends.thunderbolt import ports
from allranks_backends.thunderbolt.ports import Mac

_MAC = '[ "$(uname -s)" = Darwin ] && '
COMMANDS: Mapping[str, str] = {
    "system": "uname -s; uname -r; uname -m",
    "date": "date +%s",
    "python": "{python} -c {probe} {names}",
    "login python": '"${SHELL:-sh}" -lc "command -v python3; command -v python"',
    "interfaces": '[ "$(uname -s)" = Darwin ] || ip -j addr',  # a Mac is asked for ifconfig below
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
    **{f"mac {name}": _MAC + command for name, command in ports.COMMANDS.items()},
}
"""Lines of sh. What stands in braces is filled in, quoted, by whoever asks."""


@dataclass(frozen=True)
class Asked:
    """What the user is about to start."""

    backend: str = "auto"
    """The name of one, or ``auto``."""
    python: str = "python3"
    python_named: bool = False
    """Whether the user named it, for all hosts."""
    cwd: str = ""
    """The working folder, where one was named."""
    ranks_per_host: int = 1
    memory: int | None = None
    """Bytes that each rank will need, for a model to be loaded."""
    ranks: tuple[Host, ...] = ()
    """The host of each rank, with what a hostfile says of it."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """What the notebook runs: ``python`` and the packages that must be equal everywhere."""
    mpirun: str = ""
    """The notebook's, which starts all ranks; empty where there is none."""
    mpirun_fails: str = ""
    """What it said when it could not start one process."""
    prted: str = ""
    """The daemon that it starts on other hosts."""
    open_mpi: str = ""
    """Its version."""
    mca: Mapping[str, str] = field(default_factory=dict)
    """Settings of Open MPI in the notebook's environment, which mpirun gives to all ranks, without ``OMPI_MCA_``."""

    def python_of(self, host: str) -> str:
        """The interpreter that was named for this host, or is everybody's."""
        return next((each.python for each in self.ranks if each.name == host and each.python), self.python)

    def folder_of(self, host: str) -> str:
        """The working folder that was named for this host, or for all; empty where none was."""
        return next((each.cwd for each in self.ranks if each.name == host and each.cwd), self.cwd)

    def wants_environment(self, host: str) -> bool:
        """Whether an environment that `setup` made on the host would be used: no interpreter was named for it."""
        return not self.python_named and not any(each.python for each in self.ranks if each.name == host)

    def other_python(self, python: Mapping[str, Any]) -> bool:
        """Whether its minor version is another than the notebook's."""
        here = self.versions.get("python", "")
        return bool(here) and str(python["python"]).split(".")[:2] != here.split(".")[:2]

    def differing(self, python: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
        """The packages whose versions differ, with the version here and there; `python` is what `probe.py` tells."""
        there = {name: str(python["packages"].get(name, "")) for name in self.versions}
        return {
            name: (mine, there[name])
            for name, mine in self.versions.items()
            if name != "python" and there[name] != mine
        }

    def fits(self, python: Mapping[str, Any] | None) -> bool:
        """Whether ranks can run under it; None where there is none."""
        return python is not None and not self.other_python(python) and not self.differing(python)

    def needs(self, what: str) -> bool:
        """Whether the backend that is asked for needs this (see ``Backend.needs``)."""
        return self.backend in BACKENDS and BACKENDS[self.backend].needs == what

    @property
    def by_mpirun(self) -> bool:
        """Whether mpirun is to start the ranks."""
        return self.backend in BACKENDS and BACKENDS[self.backend].launcher == "mpirun"


@dataclass(frozen=True)
class Reach:
    """How a host fared when it connected to another one's TCP port."""

    address: str
    error: str = ""
    """Empty where it worked, else the name of the errno, or a clause."""


@dataclass(frozen=True)
class HostFacts:
    """All that is known of one host. What could not be asked is empty, None or 0."""

    name: str
    local: bool = True
    trouble: str = ""
    """Why it could not be asked at all, and what to do."""
    said: tuple[str, ...] = ()
    """What ssh said."""
    known_hosts: str = ""
    """The file in which ssh keeps its key."""
    has_agent: bool = True
    addresses: tuple[str, ...] = ()
    """Where the others will reach it."""
    system: str = ""
    release: str = ""
    """Of macOS its version, else of the kernel."""
    skew: float = 0.0
    """Seconds its clock is ahead of the notebook's, beyond what asking took."""
    python: Mapping[str, Any] | None = None
    """What `probe.py` tells; None where it did not run."""
    python_said: str = ""
    login_python: str = ""
    interfaces: tuple[Interface, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    open_files: int | None = None
    disk: tuple[str, int] | None = None
    """Folder for temporary files, and bytes free there."""
    home: tuple[str, int] | None = None
    """The disk with the home folder, and bytes free there."""
    no_folder: str = ""
    """Why ranks cannot work in the folder that was named; empty where they can."""
    memory: tuple[int, int] | None = None
    """Bytes it has, bytes available to new programs."""
    open_mpi: str = ""
    """Version of the daemon that the notebook's mpirun starts; empty where it is not there."""
    not_in_place: str = ""
    """Why a rank there could not abort collectives of the backend in place, as a clause; empty where it could."""
    not_in_place_fix: str = ""
    """What to do about that, where it is known."""
    gpus: tuple[str, ...] = ()
    """As ``nvidia-smi -L`` lists them."""
    sleeps: str = ""
    """The line of ``pmset -g`` that lets it sleep."""
    mac: Mac | None = None
    """Its Thunderbolt ports and what is plugged in; None where it is no Mac, or does not say."""
    reaches: Mapping[str, Reach] = field(default_factory=dict)
    """By the other host's name."""

    @property
    def is_mac(self) -> bool:
        return self.system == "Darwin"


Told = Callable[[str], str]
"""What the command of that name wrote; empty where it failed."""


def facts_of(name: str, local: bool, told: Told, complained: Told, between: tuple[float, float]) -> dict[str, Any]:
    """The fields of `HostFacts` that the answers to `COMMANDS` hold. `complained` is what a command wrote to stderr."""
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
        return ports.mac_from(name, {each: told(f"mac {each}") for each in ports.COMMANDS})
    except ValueError:
        return None


def version_in(text: str) -> str:
    """``5.0.11`` of ``mpirun (Open MPI) 5.0.11``."""
    found = re.search(r"\d+\.\d+\.\d+\S*", text)
    return found[0] if found else ""


def _skew(told: str, between: tuple[float, float]) -> float:
    """0 if the host's time lies between the asking and the answer; ``date`` tells whole seconds."""
    there = _number(told)
    if there is None:
        return 0.0
    asked, answered = between
    return there - answered if there > answered else min(0.0, there + 1 - asked)


def _number(text: str) -> int | None:
    return int(text) if text.strip().isdigit() else None


def _json(text: str) -> Mapping[str, Any] | None:
    for line in reversed(text.splitlines()):
        if line.startswith("{"):
            found: Mapping[str, Any] = json.loads(line)
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
    """`` sleep 10 (sleep prevented by ...)`` counts: what prevents it now may end."""
    found = re.search(r"^\s*(sleep\s+[1-9]\d*.*)$", text, re.MULTILINE)
    return found[1].strip() if found else ""
