"""What a pass left on this machine besides processes: network namespaces, links, mounts, firewall rules, shared memory.

Other programs of this machine make such things, too. What was there before the pass is not its leak. Of what is new,
this is taken for another program's:

- a namespace in which a process runs that is no descendant of ours (our own processes are ended first);
- a link whose other end is in a namespace, and a bridge with ports: they go with the namespace, or are seen after it;
- a firewall rule that names a link which is there and is no leak;
- a file in /dev/shm that a process has open or mapped which is no descendant of ours, or that another user owns;
- shared memory of SysV whose maker lives and is no descendant of ours, or that another user owns;
- a mount outside of the temporary folder, the clone and /dev/shm.

What another test run on the same machine leaves without any process is taken for ours.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from processes import descendants, described, end_all

NAMESPACES = Path("/run/netns")
SHARED = Path("/dev/shm")
ID = {"shm": "shmid", "sem": "semid", "msg": "msqid"}
"""The column of /proc/sysvipc/KIND with the identifier."""
POLL = 0.5
"""Seconds between looks."""
ROUNDS = 40
"""Rounds of removing: a bridge is seen after its ports are gone, and rules for it after the bridge."""
CLEAN = 4
"""Rounds that must see nothing: the kernel takes a namespace's links down a moment after the namespace."""


@dataclass(frozen=True, order=True)
class Leak:
    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True)
class Link:
    name: str
    bridge: str
    in_namespace: bool
    """Its other end is in another network namespace."""


@dataclass
class Machine:
    """Remembers what was there before, and what was seen in another program's hands."""

    clone: Path
    before: frozenset[Leak] = frozenset()
    theirs: set[Leak] = field(default_factory=set)

    def remember(self) -> None:
        self.before = frozenset(_everything())

    def leaks(self) -> list[Leak]:
        new = {leak for leak in _everything() if leak not in self.before} - self.theirs
        if new:
            others = _others()
            self.theirs |= {leak for leak in new if self._is_theirs(leak, others)}
            new -= self.theirs
            standing = {link.name for link in _links() if Leak("link", link.name) not in new}
            new = {leak for leak in new if leak.kind != "firewall rule" or not _links_named_by(leak) & standing}
        return sorted(new)

    def _is_theirs(self, leak: Leak, others: list[int]) -> bool:
        match leak.kind:
            case "network namespace":
                return _runs_in(NAMESPACES / leak.name, others)
            case "mount":
                ours = (Path(tempfile.gettempdir()), self.clone, SHARED)
                return not any(Path(leak.name).is_relative_to(folder) for folder in ours)
            case "file":
                return _holds(leak.name, others)
            case "SysV shm" | "SysV sem" | "SysV msg":
                return _made_by(leak, others)
        return False

    def settle(self, quiet: float) -> list[str]:
        """Wait until all is gone, at most `quiet` seconds; then name what is left and remove it."""
        deadline = time.monotonic() + quiet
        while (running := descendants()) or self.leaks():
            if time.monotonic() >= deadline:
                return [*map(described, running), *self._remove_all()]
            time.sleep(min(POLL, quiet / 4))
        return []

    def _remove_all(self) -> list[str]:
        end_all()
        removed: dict[Leak, None] = {}
        clean = 0
        for _ in range(ROUNDS):
            left = self.leaks()
            clean = 0 if left else clean + 1
            if clean == CLEAN or not (left or removed):
                break
            for leak in left:
                removed[leak] = None
                _remove(leak)
            time.sleep(POLL)
        return [str(leak) for leak in removed]


def _everything() -> Iterator[Leak]:
    for name, names in KINDS.items():
        for found in names():
            yield Leak(name, found)


def _names(folder: Path) -> list[str]:
    with suppress(OSError):
        return sorted(os.listdir(folder))
    return []


def _output(*command: str) -> str:
    """Empty where there is no such tool, or it may not be used."""
    if shutil.which(command[0]) is None:
        return ""
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def _links() -> list[Link]:
    said = json.loads(_output("ip", "-j", "link", "show") or "[]")
    return [
        Link(link["ifname"], link.get("master", ""), "link_netnsid" in link or "link_netns" in link)
        for link in said
        if "ifname" in link
    ]


def _loose_links() -> list[str]:
    links = _links()
    bridges = {link.bridge for link in links}
    return [link.name for link in links if not link.in_namespace and link.name not in bridges]


def _mounts() -> list[str]:
    """Mount points. Those of network namespaces count as namespaces."""
    with suppress(OSError):
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
        points = [re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), line.split()[4]) for line in lines]
        return [point for point in points if not Path(point).is_relative_to(NAMESPACES)]
    return []


def _rules() -> list[str]:
    """Each as `table: -A CHAIN ...`, and chains of one's own as `table: -N CHAIN`."""
    rules, table = [], ""
    for line in _output("iptables-save").splitlines():
        if line.startswith("*"):
            table = line[1:]
        elif line.startswith("-A"):
            rules.append(f"{table}: {line}")
        elif line.startswith(":") and line.split()[1] == "-":
            rules.append(f"{table}: -N {line[1:].split()[0]}")
    return rules


def _links_named_by(rule: Leak) -> set[str]:
    return set(re.findall(r"-[io] (\S+)", rule.name))


def _shared_files() -> list[str]:
    """Of this user."""
    found = []
    for name in _names(SHARED):
        with suppress(OSError):  # gone meanwhile
            if (SHARED / name).lstat().st_uid == os.geteuid():
                found.append(str(SHARED / name))
    return found


def _sysv(kind: str) -> Callable[[], list[str]]:
    """Identifiers of what is this user's."""

    def identifiers() -> list[str]:
        return [row[ID[kind]] for row in _sysv_table(kind) if row["uid"] == str(os.geteuid())]

    return identifiers


def _sysv_table(kind: str) -> list[dict[str, str]]:
    with suppress(OSError):
        head, *rows = Path(f"/proc/sysvipc/{kind}").read_text().splitlines()
        return [dict(zip(head.split(), row.split())) for row in rows]
    return []


KINDS: dict[str, Callable[[], Iterable[str]]] = {
    "network namespace": lambda: _names(NAMESPACES),
    "link": _loose_links,
    "mount": _mounts,
    "firewall rule": _rules,
    "file": _shared_files,
    "SysV shm": _sysv("shm"),
    "SysV sem": _sysv("sem"),
    "SysV msg": _sysv("msg"),
}


def _others() -> list[int]:
    """Processes that are neither this one nor its descendants."""
    ours = {os.getpid(), *(process.pid for process in psutil.Process().children(recursive=True))}
    return [pid for pid in psutil.pids() if pid not in ours]


def _runs_in(namespace: Path, pids: list[int]) -> bool:
    with suppress(OSError):
        wanted = namespace.stat().st_ino
        for pid in pids:
            with suppress(OSError):
                if Path(f"/proc/{pid}/ns/net").stat().st_ino == wanted:
                    return True
    return False


def _holds(path: str, pids: list[int]) -> bool:
    for pid in pids:
        with suppress(OSError):
            if path in Path(f"/proc/{pid}/maps").read_text(errors="replace"):
                return True
            for number in os.listdir(f"/proc/{pid}/fd"):
                with suppress(OSError):
                    if os.readlink(f"/proc/{pid}/fd/{number}").startswith(path):
                        return True
    return False


def _made_by(leak: Leak, pids: list[int]) -> bool:
    kind = leak.kind.split()[1]
    makers = [row.get("cpid") for row in _sysv_table(kind) if row[ID[kind]] == leak.name]
    return any(maker == str(pid) for maker in makers for pid in pids)


def _remove(leak: Leak) -> None:
    match leak.kind:
        case "network namespace":
            command = ["ip", "netns", "del", leak.name]
        case "link":
            command = ["ip", "link", "del", leak.name]
        case "mount":
            command = ["umount", "--lazy", leak.name]
        case "firewall rule":
            table, rule = leak.name.split(": ", 1)
            action, *rest = shlex.split(rule)
            command = ["iptables", "-w", "-t", table, {"-A": "-D", "-N": "-X"}[action], *rest]
        case "file":
            path = Path(leak.name)
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
            return
        case _:
            option = {"SysV shm": "-m", "SysV sem": "-s", "SysV msg": "-q"}[leak.kind]
            command = ["ipcrm", option, leak.name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(f"ci: cannot remove {leak}: {done.stderr.strip()}", flush=True)
