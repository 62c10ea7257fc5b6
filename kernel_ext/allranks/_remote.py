"""Hosts over ssh: one login each, which carries the host process's orders and, in tunnels, the ranks' way back.

Controller and lifeline listen on the notebook's loopback only, and at the other end of the tunnel on the host's
loopback, where CurveZMQ keeps other users out. So nobody is asked for an address, and no firewall or NAT between the
notebook and a host matters. The ranks' own traffic goes straight from host to host.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from allranks_backends._checks import known_as, login_and_port
from allranks_backends._plan import Host, Platform
from allranks_backends.nccl import visible_devices

from ._addresses import Told
from ._host_process import OnEvent, PipedHost
from .errors import CannotStart
from .rank.machine import versions

CONNECT_WITHIN = 8
"""Seconds ssh gets to connect and log in."""
READY_WITHIN = 10.0
"""Seconds a host gets until its host process answers."""
ALIVE_EVERY = 4.0
PATIENCE = 16.0
"""Seconds without a word from the notebook after which a host ends its ranks."""
SSH_OPTIONS = (
    *(
        "-T",
        "-o",
        "BatchMode=yes",
        "-o",
        f"ConnectTimeout={CONNECT_WITHIN}",
        "-o",
        "ExitOnForwardFailure=yes",
        "-o",
        "LogLevel=INFO",
    ),
    # A network that is gone is noticed after 15 to 20 s; one of some seconds costs nothing.
    *("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3", "-o", "ControlPath=none"),
)
FROM_SOURCE = "(from source)"
"""The version of a package that is only on the path, not installed."""
_ALLOCATED = re.compile(r"Allocated port (\d+) for remote forward to 127\.0\.0\.1:(\d+)")
_NOISE = ("Warning: Permanently added", "Allocated port")

_NOT_INSTALLED = "allranks is not installed for {python} there. There: {python} -m pip install allranks"
_NO_PYTHON = "there is no {python} there. Name the Python that has allranks with --python"
_CAUSES = (
    ("Permission denied (", "it refused the key. Put it there with: ssh-copy-id {words}"),
    ("REMOTE HOST IDENTIFICATION HAS CHANGED", "its host key has changed. If that is right: ssh-keygen -R {key}"),
    ("Host key verification failed", "its host key is not known here. Look at it once with: ssh {words}"),
    ("Could not resolve hostname", "there is no host of that name. ~/.ssh/config or DNS must know it"),
    ("Connection refused", "nothing listens for ssh there. Is Remote Login (macOS) or sshd (Linux) on?"),
    ("No route to host", "there is no way to it. Is it on, and on this network?"),
    ("timed out", "it does not answer. Is it on, and on this network?"),
    ("remote port forwarding failed", "its sshd forwards no ports: set AllowTcpForwarding yes in its sshd_config"),
    ("administratively prohibited", "its sshd forwards no ports: set AllowTcpForwarding yes in its sshd_config"),
    (
        "No module named 'allranks'",
        _NOT_INSTALLED,
    ),
    ("No module named allranks", _NOT_INSTALLED),
    ("No module named", "a package is missing for {python} there ({said}). There: {python} -m pip install allranks"),
    # By dash, bash and zsh, each with the path in its own place.
    ("{python}: not found", _NO_PYTHON),
    ("{python}: No such file or directory", _NO_PYTHON),
    ("{python}: command not found", _NO_PYTHON),
    ("no such file or directory: {python}", _NO_PYTHON),
    ("command not found: {python}", _NO_PYTHON),
    (
        "{python}: cannot execute",
        "{python} is no program there. Name the Python that has allranks with --python",
    ),
    ("{python}: Permission denied", "{python} there cannot be run. Name the Python that has allranks with --python"),
    ("UNKNOWN port", "its ProxyJump or ProxyCommand in ~/.ssh/config does not get through. Try: ssh {words} true"),
    ("No space left on device", "its disk is full (where TMPDIR points, or /tmp)"),
    ("No usable temporary directory", "its disk is full (where TMPDIR points, or /tmp), or nobody may write there"),
)


class RemoteHost(PipedHost):
    """A host process at the other end of an ssh connection."""

    def __init__(
        self, host: Host, process: subprocess.Popen[bytes], python: str, ports: Sequence[int], on_event: OnEvent
    ) -> None:
        assert process.stdin is not None and process.stdout is not None
        super().__init__(host.name, process.stdout, process.stdin, on_event)
        self.host, self._python = host, python
        self._process = process
        self._wanted = ports
        self._tunnels: dict[int, int] = {}
        """Port here to port there."""
        self._said: list[str] = []
        self._ended_orderly = False
        self.prepared: dict[str, Any] | None = None
        """What the host says of itself."""

    @classmethod
    def begin(
        cls, host: Host, *, python: str, engine_info: Mapping[str, Any], lifeline_url: str, on_event: OnEvent
    ) -> RemoteHost:
        """Log in and start a host process; does not wait for it (see `ready`)."""
        ports = sorted({*_engine_ports(engine_info), _port(lifeline_url)})
        tunnels = [word for port in ports for word in ("-R", f"127.0.0.1:0:127.0.0.1:{port}")]
        command = f"exec {shlex.quote(python)} -m allranks.rank.host"
        process = subprocess.Popen(
            ["ssh", *SSH_OPTIONS, *tunnels, *destination(host.name), command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C in a terminal is for the notebook
        )

        def heard(event: dict[str, Any]) -> None:
            if event["event"] == "prepared":
                with end._changed:
                    end.prepared = event
                    end._changed.notify_all()
            else:
                on_event(event)

        end = cls(host, process, python, ports, heard)
        threading.Thread(target=end._read_complaints, name=f"allranks-ssh-{host.name}", daemon=True).start()
        end._order(do="prepare", patience=PATIENCE)
        end.follow()
        end.engine_info, end.lifeline_url = dict(engine_info), lifeline_url
        return end

    def ready(self, deadline: float) -> None:
        """Wait until it can start ranks. Raises CannotStart."""
        with self._changed:
            self._changed.wait_for(self._settled, max(0.0, deadline - time.monotonic()))
        if self.prepared is None or self.trouble or len(self._tunnels) < len(self._wanted):
            raise CannotStart(f"{self.name}: {self._why_not()}.")
        if differs := differing(self.prepared["versions"]):
            raise CannotStart(f"{self.name} differs from this notebook:\n{listing(differs, self._python)}")
        self.directory = Path(self.prepared["directory"])
        self._said.clear()  # what ssh said until now was no trouble
        self.engine_info = _through(self.engine_info, self._tunnels)
        self.lifeline_url = f"tcp://127.0.0.1:{self._tunnels[_port(self.lifeline_url)]}"
        threading.Thread(target=self._keep_alive, name=f"allranks-alive-{self.name}", daemon=True).start()

    @property
    def told(self) -> Told:
        """Its network."""
        seen, prepared = self._seen, self.prepared or {}
        return Told(prepared.get("addresses", ()), seen[2] if seen else None)

    @property
    def sees_notebook_at(self) -> str | None:
        """The notebook's address as this host sees it."""
        return self._seen[0] if self._seen else None

    @property
    def _seen(self) -> list[str]:
        """Address and port of ssh's two ends: the notebook's (or a jump host's), and its own."""
        seen = str(self.prepared["ssh"]).split() if self.prepared else []
        return seen if len(seen) == 4 else []

    @property
    def platform(self) -> Platform:
        """What the host says it can run."""
        assert self.prepared is not None
        return Platform(**self.prepared["platform"])

    @property
    def cuda(self) -> tuple[str, ...]:
        """The CUDA devices it was told to use; empty for all of them."""
        assert self.prepared is not None
        return visible_devices({"CUDA_VISIBLE_DEVICES": self.prepared["cuda"]})

    def end(self) -> None:
        """See `HostEnd.end`."""
        self._ended_orderly = True
        super().end()

    def _settled(self) -> bool:
        there = self.prepared is not None and len(self._tunnels) >= len(self._wanted)
        return self._gone.is_set() or bool(self.trouble) or there

    def _keep_alive(self) -> None:
        while not self._gone.wait(ALIVE_EVERY):
            self._order(do="alive")

    def _read_complaints(self) -> None:
        assert self._process is not None and self._process.stderr is not None
        for raw in self._process.stderr:
            line = raw.decode(errors="replace").strip()
            if found := _ALLOCATED.search(line):
                with self._changed:
                    self._tunnels[int(found[2])] = int(found[1])
                    self._changed.notify_all()
            elif line and not line.startswith(_NOISE):
                self._said = [*self._said[-30:], line]

    def _why_not(self) -> str:
        """What went wrong, and what to do, from what ssh and the host said."""
        time.sleep(0.05)  # the last complaint may still be on its way
        if said := [*self._said, *([self.trouble] if self.trouble else [])]:
            return explained(said, self.name, self._python)
        if self.alive:
            return f"it accepted the connection and did not answer within {READY_WITHIN:g} s"
        return "the connection ended without a word"

    def _how_ended(self) -> dict[str, Any]:
        said = "" if self._ended_orderly else self._why_not()
        return {"event": "host gone", "host": self.name, "because": said, **super()._how_ended()}


def reach(
    hosts: Sequence[Host], *, python: str, engine_info: Mapping[str, Any], lifeline_url: str, on_event: Any
) -> list[RemoteHost]:
    """Log in to all `hosts` at once; returns when each can start ranks. Raises CannotStart, naming each that cannot."""
    if not hosts:
        return []
    ends: list[RemoteHost] = []
    failures = []
    try:
        for host in hosts:
            end = RemoteHost.begin(
                host, python=python, engine_info=engine_info, lifeline_url=lifeline_url, on_event=on_event(host.name)
            )
            ends.append(end)
        deadline = time.monotonic() + READY_WITHIN
        for end in ends:
            try:
                end.ready(deadline)
            except CannotStart as error:
                failures.append(str(error))
        if failures:
            raise CannotStart("\n".join(failures))
    except BaseException as error:  # Ctrl-C too, and a machine that has no processes or descriptors left
        for end in ends:
            threading.Thread(target=end.end, daemon=True).start()
        for end in ends:
            end.wait_end()
        if isinstance(error, FileNotFoundError):
            raise CannotStart("there is no ssh on this machine, which ranks on other hosts need.") from None
        if isinstance(error, OSError):
            raise CannotStart(f"ssh cannot be started on this machine: {error.strerror}.") from None
        raise
    return ends


def explained(said: Sequence[str], name: str, python: str) -> str:
    """What these lines of ssh's, or of the host's shell, mean, and what to do."""
    for sign, meaning in _CAUSES:
        sign = sign.replace("{python}", python)
        if line := next((line for line in reversed(said) if sign in line), ""):
            words = shlex.join(word for word in destination(name) if word != "--")
            key = shlex.quote(known_as(name))
            return meaning.format(words=words, key=key, python=python, said=line.partition(": ")[2])
    return said[-1].rstrip(".")


def destination(name: str) -> list[str]:
    """ssh's words for ``user@host:port``."""
    login, port = login_and_port(name)
    # "--": a name from somebody's hostfile must not be an option.
    return ["--", login] if port is None else ["-p", str(port), "--", login]


def _engine_ports(info: Mapping[str, Any]) -> list[int]:
    return [*(port for port in info.values() if isinstance(port, int)), *info["broadcast"]]


def _through(info: Mapping[str, Any], tunnels: Mapping[int, int]) -> dict[str, Any]:
    """Connection info for an engine at the other end of the tunnels."""
    mapped = {key: tunnels[value] if isinstance(value, int) else value for key, value in info.items()}
    return mapped | {"broadcast": [tunnels[port] for port in info["broadcast"]]}


def _port(url: str) -> int:
    return int(url.rpartition(":")[2])


def differing(theirs: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """What must be equal and is not: name, here, there."""
    differs = []
    for name, mine in versions().items():
        other = theirs.get(name, "")
        same = mine.split(".")[:2] == other.split(".")[:2] if name == "python" else mine == other
        if not same:
            differs.append((name, mine or FROM_SOURCE, other or "missing"))
    return differs


def listing(differs: Sequence[tuple[str, str, str]], python: str) -> str:
    rows = [("", "here", "there", ""), *((*row, _mend(row, python)) for row in differs)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def _mend(row: tuple[str, str, str], python: str) -> str:
    name, mine, _ = row
    if name == "python":
        return f"name a Python {'.'.join(mine.split('.')[:2])} there with --python"
    if mine == FROM_SOURCE:
        return f"there: install {name} from the source that this notebook runs"
    return f"there: {python} -m pip install {name}=={mine}"
