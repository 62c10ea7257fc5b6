"""Hosts of our own: network namespaces on one bridge, each with its sshd, address and link, and an ssh that knows them.

They share this machine's files and processes; what differs is the network, which is what ranks on several hosts stand
on. Made by root on Linux, and taken down whatever happens.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

SSHD = "/usr/sbin/sshd"
SSHD_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""What sshd gives root where nothing else is said."""
WITHIN = 60.0
"""Seconds for what takes milliseconds on a machine that is not busy."""


class Hosts:
    """`names` can be given to ``--hosts`` by whoever has `path` at the head of PATH."""

    called = "host"
    """What their names begin with."""

    def __init__(self, count: int, folder: Path, tag: str) -> None:
        self.names = [f"{self.called}{number}" for number in range(1, count + 1)]
        self.folder, self._tag = folder, tag
        self._net = 20 + sum(tag.encode()) % 200
        self._sshds: dict[str, subprocess.Popen[bytes]] = {}
        self._set: dict[str, dict[str, str]] = {}
        self.path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"

    def address(self, name: str) -> str:
        return f"10.77.{self._net}.{10 + self.names.index(name) + 1}"

    @property
    def gateway(self) -> str:
        """This machine's own address on the bridge."""
        return f"10.77.{self._net}.1"

    def home(self, name: str) -> Path:
        """The host's own folder; programs in its ``bin`` are found there before others."""
        return self.folder / name

    def environment(self, name: str) -> dict[str, str]:
        """What sshd sets for whoever logs in there."""
        ours = {"PYTHONPATH": os.environ["PYTHONPATH"]} if os.environ.get("PYTHONPATH") else {}  # the same source
        return {"PATH": f"{self.home(name) / 'bin'}:{SSHD_PATH}", **ours, **self._set.get(name, {})}

    def space(self, name: str) -> str:
        return f"{self._tag}-{name}"

    def inside(self, name: str, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command on a host, without ssh."""
        line = ["ip", "netns", "exec", self.space(name), *command]
        return subprocess.run(line, capture_output=True, text=True, timeout=WITHIN)

    def begin(self, name: str, *command: str) -> subprocess.Popen[str]:
        """Start a command on a host, without ssh; its output can be read."""
        line = ["ip", "netns", "exec", self.space(name), *command]
        return subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)

    def up(self) -> None:
        """Make them. Raises CalledProcessError where this machine does not allow it."""
        bridge = self._bridge
        with _alone():
            self._net = _free_network(self._net)
            _run("ip", "link", "add", bridge, "type", "bridge")
            _run("ip", "addr", "add", f"{self.gateway}/24", "dev", bridge)
        _run("ip", "link", "set", bridge, "up")
        _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / "key"))
        (self.folder / "authorized").write_text((self.folder / "key.pub").read_text())
        (self.folder / "authorized").chmod(0o600)
        for name in self.names:
            self._make(name)
        self._write_client()

    @property
    def _bridge(self) -> str:
        return f"br-{self._tag}"[:15]

    def _make(self, name: str) -> None:
        space, end = self.space(name), f"{self._tag}{self.names.index(name)}"
        _run("ip", "netns", "add", space)
        _run("ip", "link", "add", f"v{end}", "type", "veth", "peer", "name", "eth0", "netns", space)
        _run("ip", "link", "set", f"v{end}", "master", self._bridge, "up")
        for command in (
            ("ip", "addr", "add", f"{self.address(name)}/24", "dev", "eth0"),
            ("ip", "link", "set", "eth0", "up"),
            ("ip", "link", "set", "lo", "up"),
        ):
            assert self.inside(name, *command).returncode == 0, command
        self.start_sshd(name)

    def start_sshd(self, name: str, more: str = "") -> None:
        """With `more` lines in its configuration, which come before the others and so prevail."""
        home, before = self.home(name), self._listened(name)
        home.mkdir(exist_ok=True)
        environment = " ".join(f'"{key}={value}"' for key, value in self.environment(name).items())
        if not (home / "hostkey").exists():
            _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(home / "hostkey"))
        (home / "sshd_config").write_text(
            f"{more}ListenAddress {self.address(name)}:22\nHostKey {home / 'hostkey'}\nPidFile {home / 'pid'}\n"
            f"AuthorizedKeysFile {self.folder / 'authorized'}\nPasswordAuthentication no\nPermitRootLogin yes\n"
            f"StrictModes no\nUsePAM no\nLogLevel VERBOSE\nSetEnv {environment}\n"
        )
        os.makedirs("/run/sshd", exist_ok=True)
        # With a host name of its own: Open MPI takes processes of one name for neighbours that share memory.
        named = f"hostname {name} && exec {SSHD} -D -e -f {home / 'sshd_config'}"
        line = ["ip", "netns", "exec", self.space(name), "unshare", "--uts", "sh", "-c", named]
        with open(home / "log", "ab") as log:
            self._sshds[name] = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + WITHIN
        while self._listened(name) <= before:
            assert time.monotonic() < deadline, f"the sshd of {name} does not listen:\n{(home / 'log').read_text()}"
            time.sleep(0.02)

    def restart_sshd(self, name: str, more: str = "", **environment: str) -> None:
        """Restart it with these variables set at each login, and with `more` lines; it is not restored afterwards."""
        self._set[name] = environment
        self._sshds[name].terminate()
        self._sshds[name].wait(WITHIN)
        self.start_sshd(name, more)

    def _listened(self, name: str) -> int:
        log = self.home(name) / "log"
        return log.read_text().count("Server listening") if log.exists() else 0

    def logins(self, name: str) -> int:
        """How many logins the host has accepted."""
        return (self.folder / name / "log").read_text().count("Accepted publickey")

    def _write_client(self) -> None:
        known = "".join(
            f"{self.address(name)},{name} {(self.folder / name / 'hostkey.pub').read_text()}" for name in self.names
        )
        (self.folder / "known").write_text(known)
        hosts = "".join(f"Host {name}\n  HostName {self.address(name)}\n" for name in self.names)
        (self.folder / "config").write_text(
            f"{hosts}Host *\n  User {os.environ.get('USER') or 'root'}\n  IdentityFile {self.folder / 'key'}\n"
            f"  IdentitiesOnly yes\n  UserKnownHostsFile {self.folder / 'known'}\n  StrictHostKeyChecking yes\n"
        )
        folder = self.folder / "bin"
        folder.mkdir()
        real = shutil.which("ssh")
        (folder / "ssh").write_text(f'#!/bin/sh\nexec {real} -F {self.folder / "config"} "$@"\n')
        (folder / "ssh").chmod(0o755)

    def mounted(self, name: str, *arguments: str) -> None:
        """Call ``mount`` with these arguments on a host; other hosts and this machine do not see it."""
        _run("nsenter", "-t", str(self._sshds[name].pid), "-m", "mount", *arguments)

    def renamed(self, name: str, new: str) -> None:
        """Give a host another host name of its own, until its sshd is restarted."""
        _run("nsenter", "-t", str(self._sshds[name].pid), "-u", "hostname", new)

    def unmounted(self, name: str, folder: Path) -> None:
        """Undo `mounted`."""
        _run("nsenter", "-t", str(self._sshds[name].pid), "-m", "umount", "-l", str(folder))

    def within(self, name: str, *command: str) -> str:
        """What a command prints that sees the host's own file systems."""
        line = ["nsenter", "-t", str(self._sshds[name].pid), "-m", "-n", *command]
        return subprocess.run(line, check=True, capture_output=True, text=True, timeout=WITHIN).stdout

    def link(self, name: str, state: str) -> None:
        """Cut a host's cable (``down``) or plug it in again (``up``)."""
        _run("ip", "link", "set", f"v{self._tag}{self.names.index(name)}", state)

    def cut_off(self, cut: bool, *names: str) -> None:
        """Let nothing pass between this machine and these hosts, or let it pass again; all hosts reach each other."""
        for address in map(self.address, names or self.names):
            for chain, way, end in (("INPUT", "-i", "-s"), ("OUTPUT", "-o", "-d")):
                _run("iptables", "-w", "-I" if cut else "-D", chain, way, self._bridge, end, address, "-j", "DROP")

    def slow(self, name: str, mbit: int) -> None:
        """Limit what the host sends to `mbit` Mbit/s."""
        done = self.inside(name, *_shape("eth0", mbit))
        assert done.returncode == 0, done.stderr

    def slow_towards(self, name: str, mbit: int) -> None:
        """Limit what the host receives to `mbit` Mbit/s."""
        _run(*_shape(f"v{self._tag}{self.names.index(name)}", mbit))

    def slow_here(self, mbit: int) -> None:
        """Limit what this machine sends to all hosts together to `mbit` Mbit/s."""
        _run(*_shape(self._bridge, mbit))

    def processes(self, name: str) -> list[int]:
        """Processes that run on the host, its sshd and their children for logins not counted."""
        pids = subprocess.run(
            ["ip", "netns", "pids", self.space(name)], capture_output=True, text=True, check=False
        ).stdout.split()
        found = []
        for pid in map(int, pids):
            with suppress(OSError):
                line = Path(f"/proc/{pid}/cmdline").read_bytes()
                if line and not line.startswith((b"sshd", SSHD.encode(), b"ip\0")):
                    found.append(pid)
        return found

    def end_logins(self, name: str) -> None:
        """End the sshd of each login on the host, as it ends by itself when it notices that the network is gone."""
        space = subprocess.run(["ip", "netns", "pids", self.space(name)], capture_output=True, text=True, check=True)
        for pid in map(int, space.stdout.split()):
            with suppress(OSError):
                line = Path(f"/proc/{pid}/cmdline").read_bytes()
                if line.startswith(b"sshd: ") and b"[listener]" not in line:
                    os.kill(pid, signal.SIGKILL)

    def down(self) -> None:
        for process in self._sshds.values():
            process.terminate()
        for name in self.names:
            pids = subprocess.run(["ip", "netns", "pids", self.space(name)], capture_output=True, text=True).stdout
            for pid in pids.split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            subprocess.run(["ip", "netns", "del", self.space(name)], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", self._bridge], capture_output=True, check=False)
        for process in self._sshds.values():
            process.wait(WITHIN)


HostsT = TypeVar("HostsT", bound=Hosts)


@contextmanager
def standing(hosts: HostsT) -> Iterator[HostsT]:
    """Made, known to ssh, and taken down again whatever happens."""
    before = os.environ["PATH"]
    try:
        hosts.up()
        os.environ["PATH"] = hosts.path
        yield hosts
    finally:
        os.environ["PATH"] = before
        hosts.down()


@contextmanager
def made(count: int) -> Iterator[Hosts]:
    """Hosts for a program that is no test."""
    with (
        tempfile.TemporaryDirectory() as folder,
        standing(Hosts(count, Path(folder), f"b{uuid.uuid4().hex[:5]}")) as it,
    ):
        yield it


@contextmanager
def _alone() -> Iterator[None]:
    """Other workers of pytest make labs as well, and must not choose the network that is free now."""
    with open(Path(tempfile.gettempdir(), "allranks-lab.lock"), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _free_network(first: int) -> int:
    """10.77.N.0/24 that no other lab of this machine has: two on one network would answer for each other."""
    taken = subprocess.run(["ip", "-4", "-o", "addr"], capture_output=True, text=True, check=True).stdout
    networks = [*range(first, 220), *range(20, first)]
    free: list[int] = [net for net in networks if f" 10.77.{net}." not in taken]
    return free[0]


def _shape(device: str, mbit: int) -> list[str]:
    shape = ["tc", "qdisc", "replace", "dev", device, "root", "tbf"]
    return [*shape, "rate", f"{mbit}mbit", "burst", "128kb", "latency", "50ms"]


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


def forbidden() -> str | None:
    """Why this machine lets nobody make hosts, whatever is installed (a container without the right, say)."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "network namespaces need root on Linux"
    name = f"try{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return f"no network namespace can be made: {made.stderr.strip()}" if made.returncode else None


def missing() -> str | None:
    """Which tool is not installed."""
    for tool, package in (("ip", "iproute2"), (SSHD, "openssh-server"), ("ssh", "openssh-client")):
        if shutil.which(tool) is None:
            return f"there is no {tool} (apt install {package})"
    return None
