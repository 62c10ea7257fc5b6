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
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from allranks.errors import CannotStart
from allranks.machine.facts import versions
from allranks.messages.host_messages import Alive, Prepare, Prepared
from allranks_backends.plan import Host, Platform
from allranks_backends.runtimes.nccl import visible_devices

from .addresses import HostNetwork
from .host_process import HostGone, HostReport, OnEvent, PipedHost
from .ssh import SSH_OPTIONS, destination, explained

READY_WITHIN = 25.0
"""Seconds a host gets until its host process answers, which may come from a cold disk; ssh has limits of its own."""
ALIVE_EVERY = 4.0
PATIENCE = 16.0
"""Seconds without a word from the notebook after which a host ends its ranks."""
FROM_SOURCE = "(from source)"
"""The version of a package that is only on the path, not installed."""
_ALLOCATED = re.compile(r"Allocated port (\d+) for remote forward to 127\.0\.0\.1:(\d+)")
_NOISE = ("Warning: Permanently added", "Allocated port")


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
        self.prepared: Prepared | None = None
        """What the host says of itself."""

    @classmethod
    def begin(
        cls, host: Host, *, python: str, engine_info: Mapping[str, Any], lifeline_url: str, on_event: OnEvent
    ) -> RemoteHost:
        """Log in and start a host process; does not wait for it (see `ready`)."""
        ports = sorted({*_engine_ports(engine_info), _port(lifeline_url)})
        tunnels = [word for port in ports for word in ("-R", f"127.0.0.1:0:127.0.0.1:{port}")]
        command = f"exec {shlex.quote(python)} -m allranks.rank.process.host"
        process = subprocess.Popen(
            ["ssh", *SSH_OPTIONS, *tunnels, *destination(host.name), command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C in a terminal is for the notebook
        )

        def heard(event: HostReport) -> None:
            if isinstance(event, Prepared):
                with end._changed:
                    end.prepared = event
                    end._changed.notify_all()
            else:
                on_event(event)

        end = cls(host, process, python, ports, heard)
        threading.Thread(target=end._read_complaints, name=f"allranks-ssh-{host.name}", daemon=True).start()
        end._order(Prepare(patience=PATIENCE))
        end.follow()
        end.engine_info, end.lifeline_url = dict(engine_info), lifeline_url
        return end

    def ready(self, deadline: float) -> None:
        """Wait until it can start ranks. Raises CannotStart."""
        with self._changed:
            self._changed.wait_for(self._settled, max(0.0, deadline - time.monotonic()))
        if self.prepared is None or self.trouble or len(self._tunnels) < len(self._wanted):
            raise CannotStart(f"{self.name}: {self._why_not()}.")
        if differs := differing(self.prepared.versions):
            raise CannotStart(f"{self.name} differs from this notebook:\n{listing(differs, self._python)}")
        self.directory = Path(self.prepared.directory)
        self._said.clear()  # what ssh said until now was no trouble
        self.engine_info = _through(self.engine_info, self._tunnels)
        self.lifeline_url = f"tcp://127.0.0.1:{self._tunnels[_port(self.lifeline_url)]}"
        threading.Thread(target=self._keep_alive, name=f"allranks-alive-{self.name}", daemon=True).start()

    @property
    def network(self) -> HostNetwork:
        """Its network."""
        seen, own = self._seen, self.prepared.addresses if self.prepared is not None else ()
        return HostNetwork(own, seen[2] if seen else None)

    @property
    def sees_notebook_at(self) -> str | None:
        """The notebook's address as this host sees it."""
        return self._seen[0] if self._seen else None

    @property
    def _seen(self) -> list[str]:
        """Address and port of ssh's two ends: the notebook's (or a jump host's), and its own."""
        seen = self.prepared.ssh.split() if self.prepared else []
        return seen if len(seen) == 4 else []

    @property
    def platform(self) -> Platform:
        """What the host says it can run."""
        assert self.prepared is not None
        return Platform(**asdict(self.prepared.platform))

    @property
    def cuda(self) -> tuple[str, ...]:
        """The CUDA devices it was told to use; empty for all of them."""
        assert self.prepared is not None
        return visible_devices({"CUDA_VISIBLE_DEVICES": self.prepared.cuda})

    def end(self) -> None:
        """See `HostEnd.end`."""
        self._ended_orderly = True
        super().end()

    def _settled(self) -> bool:
        there = self.prepared is not None and len(self._tunnels) >= len(self._wanted)
        return self._gone.is_set() or bool(self.trouble) or there

    def _keep_alive(self) -> None:
        while not self._gone.wait(ALIVE_EVERY):
            self._order(Alive())

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
            return f"it accepted the connection but did not answer within {READY_WITHIN:g} s"
        return "the connection closed without an error message"

    def _how_ended(self) -> HostGone:
        said = "" if self._ended_orderly else self._why_not()
        return replace(super()._how_ended(), because=said)


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
            raise CannotStart("ssh was not found on this machine; ranks on other hosts need it.") from None
        if isinstance(error, OSError):
            raise CannotStart(f"ssh cannot be started on this machine: {error.strerror}.") from None
        raise
    return ends


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
    rows = [("", "here", "there", ""), *((*row, _fix(row, python)) for row in differs)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def _fix(row: tuple[str, str, str], python: str) -> str:
    name, mine, _ = row
    if name == "python":
        return f"use a Python {'.'.join(mine.split('.')[:2])} there: --python"
    if mine == FROM_SOURCE:
        return f"there: install {name} from the same source as this notebook"
    return f"there: {shlex.quote(python)} -m pip install {name}=={mine}"
