"""Start and end the processes: the host process, ipyparallel's controller, one engine a rank."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

CONTROLLER_PORTS = {
    "engine": ("registration", "control", "mux", "task", "iopub", "hb_ping", "hb_pong", "broadcast"),
    "client": ("control", "mux", "task", "iopub", "notification", "broadcast"),
}
HEARTBEAT_MS = 1000
"""ipyparallel counts an engine as registered after its first heartbeat; our own readiness comes over the lifeline."""
GONE_WITHIN = 8.0
"""Seconds the host process is given to end everything before it is killed itself."""


class LocalHost:
    """The notebook's own machine: one host process, and through it the controller and the ranks."""

    def __init__(self, name: str, *, keep: bool, python: str, on_event: Callable[[dict[str, Any]], None]) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix=f"allranks-{name}-"))  # 0700
        (self.directory / "profile").mkdir()
        self._on_event = on_event
        # Children must not inherit what a test or a notebook server set for itself alone.
        environment = {key: value for key, value in os.environ.items() if key != "PYTEST_CURRENT_TEST"}
        self._log = open(self.directory / "host.log", "wb")
        self._process = subprocess.Popen(
            [python, "-m", "allranks.rank.host"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
            start_new_session=True,  # Ctrl-C in a terminal is for the notebook, not for the ranks' parent
        )
        self._lock = threading.Lock()
        self._gone = threading.Event()
        self.ended: dict[str, Any] | None = None
        """How the host process ended, once it has."""
        self.connection_file = self.directory / "ipcontroller-client.json"
        self.engine_info, self.client_info, controller = _controller_settings(self.directory)
        self._order(do="prepare", directory=str(self.directory), keep=keep, controller=controller)
        _write_private(self.connection_file, json.dumps(self.client_info))
        threading.Thread(target=self._listen, name="allranks-host", daemon=True).start()

    def start(self, ranks: Sequence[Mapping[str, Any]]) -> None:
        """Start one engine for each of these settings (see `rank.config.RankConfig`)."""
        self._order(do="start", ranks=list(ranks))

    def launch(self, command: Sequence[str], env: Mapping[str, str], ranks: Sequence[Mapping[str, Any]]) -> None:
        """Start all ranks through a launcher such as mpirun; `{join}` in `command` is the file they read."""
        join = str(self.directory / "ranks.json")
        self._order(
            do="launch",
            command=[part.replace("{join}", join) for part in command],
            env=dict(env),
            rank_config={"ranks": list(ranks)},
            join=join,
        )

    def signal(self, pid: int, number: int) -> None:
        self._order(do="signal", pid=pid, number=number)

    def end(self) -> None:
        """End every process and remove every file; returns when they are gone."""
        self._order(do="end")
        if not self._gone.wait(GONE_WITHIN):
            self._process.kill()
        self._process.wait(GONE_WITHIN)
        self._log.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def log(self) -> str:
        """What the host process complained of, if anything."""
        try:
            return (self.directory / "host.log").read_text(errors="replace").strip()
        except OSError:
            return ""

    @property
    def pid(self) -> int:
        return self._process.pid

    def _order(self, **order: Any) -> None:
        with self._lock:
            assert self._process.stdin is not None
            try:
                self._process.stdin.write(json.dumps(order).encode() + b"\n")
                self._process.stdin.flush()
            except (BrokenPipeError, ValueError):
                self._gone.set()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event = json.loads(line)
            if event["event"] == "gone":
                break
            self._on_event(event)
        self._gone.set()
        self.ended = {"event": "host gone", "code": self._process.wait()}
        self._on_event(self.ended)


def ended_because(event: Mapping[str, Any]) -> str:
    """A dead process's cause in words: signal, exit code or out of memory, with its last crash report."""
    code = event["code"]
    if event.get("out_of_memory"):
        cause = "killed by the kernel: out of memory"
    elif code < 0:
        try:
            cause = f"killed by {signal.Signals(-code).name}"
        except ValueError:
            cause = f"killed by signal {-code}"
    else:
        cause = f"exited with code {code}"
    log = event.get("log", "").splitlines()
    said = log[-1] if log and code > 0 else ""
    crash = next((line for line in log if line.startswith("Fatal Python error")), said)
    return f"{cause} ({crash})" if crash else cause


def rank_settings(host: LocalHost, number: int, **shared: Any) -> dict[str, Any]:
    """The RankConfig of one rank, as JSON."""
    return {
        "rank": number,
        "host": "localhost",
        "uuid": secrets.token_hex(8),
        "directory": str(host.directory / f"rank-{number}"),
        "engine": host.engine_info,
        **shared,
    }


def _controller_settings(directory: Path) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Choose ports and key for a controller on loopback; returns engine info, client info and its settings."""
    key = secrets.token_hex(32)
    names = [(side, port) for side, ports in CONTROLLER_PORTS.items() for port in ports]
    ports = dict(zip(names, _free_ports(len(names)), strict=True))
    engine: dict[str, Any] = {port: ports["engine", port] for port in CONTROLLER_PORTS["engine"]}
    client: dict[str, Any] = {port: ports["client", port] for port in CONTROLLER_PORTS["client"]}
    engine |= {"interface": "tcp://127.0.0.1", "broadcast": [engine["broadcast"]]}
    client |= {"interface": "tcp://127.0.0.1", "registration": engine["registration"], "task_scheme": "leastload"}
    shared = {
        "ssh": "",
        "key": key,
        "curve_serverkey": None,
        "location": "127.0.0.1",
        "pack": "json",
        "unpack": "json",
        "signature_scheme": "hmac-sha256",
    }
    settings = {
        "engine_info": engine,
        "client_info": client,
        "key": key,
        "ip": "127.0.0.1",
        "curve": None,
        "profile": str(directory / "profile"),
        "heartbeat_ms": HEARTBEAT_MS,
    }
    return engine | shared, client | shared, settings


def _free_ports(count: int) -> list[int]:
    """Distinct TCP ports of the loopback that nobody listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _write_private(path: Path, text: str) -> None:
    path.touch(mode=0o600)
    path.write_text(text)


def default_python(python: str | None) -> str:
    """The interpreter ranks run: the notebook's own unless another is named."""
    return python or sys.executable
