"""What a pass left on this machine: processes, network namespaces, links, mounts, firewall rules, shared memory.

Processes are ours if they descend from this one. Of the rest, what was not there before the pass counts as left, also
where another program has made it meanwhile: CI has its machine to itself. So nothing but processes is removed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from processes import descendants, described, end_all

NAMESPACES = Path("/run/netns")
SHARED = Path("/dev/shm")
POLL = 0.5
"""Seconds between looks."""


@dataclass
class Machine:
    """Knows what was there before."""

    before: frozenset[str] = frozenset()

    def remember(self) -> None:
        self.before = frozenset(_everything())

    def settle(self, quiet: float) -> list[str]:
        """Wait at most `quiet` seconds until all is gone, then end the processes that are left. Returns the leaks."""
        deadline = time.monotonic() + quiet
        while (running := descendants()) or self._new():
            if time.monotonic() >= deadline:
                names = [described(process) for process in running]
                end_all()
                names += self._new()
                self.remember()
                return names
            time.sleep(min(POLL, quiet / 4))
        return []

    def _new(self) -> list[str]:
        return sorted(set(_everything()) - self.before)


def _everything() -> Iterable[str]:
    for kind, names in KINDS.items():
        for name in names():
            yield f"{kind} {name}"


def _names(folder: Path) -> list[str]:
    with suppress(OSError):
        return sorted(os.listdir(folder))
    return []


def _output(*command: str) -> str:
    """Empty where there is no such tool, or it may not be used."""
    if shutil.which(command[0]) is None:
        return ""
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def _links() -> list[str]:
    return [link["ifname"] for link in json.loads(_output("ip", "-j", "link", "show") or "[]") if "ifname" in link]


def _mounts() -> list[str]:
    """Mount points. Those of network namespaces count as namespaces."""
    with suppress(OSError):
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
        points = [re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), line.split()[4]) for line in lines]
        return [point for point in points if not Path(point).is_relative_to(NAMESPACES)]
    return []


def _rules() -> list[str]:
    """Each as `table: -A CHAIN ...`."""
    rules, table = [], ""
    for line in _output("iptables-save").splitlines():
        if line.startswith("*"):
            table = line[1:]
        elif line.startswith("-A"):
            rules.append(f"{table}: {line}")
    return rules


def _shared_segments() -> list[str]:
    """Identifiers of this user's segments of SysV."""
    with suppress(OSError):
        head, *rows = Path("/proc/sysvipc/shm").read_text().splitlines()
        table = [dict(zip(head.split(), row.split())) for row in rows]
        return [row["shmid"] for row in table if row["uid"] == str(os.geteuid())]
    return []


KINDS: dict[str, Callable[[], Iterable[str]]] = {
    "network namespace": lambda: _names(NAMESPACES),
    "link": _links,
    "mount": _mounts,
    "firewall rule": _rules,
    "file": lambda: [str(SHARED / name) for name in _names(SHARED)],
    "SysV shm": _shared_segments,
}
