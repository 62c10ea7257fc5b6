"""Start and end the processes: the host process, ipyparallel's controller, one engine a rank."""

from __future__ import annotations

import itertools
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import zmq

from .errors import CannotStart
from .rank.ports import free_ports

CONTROLLER_PORTS = {
    "engine": ("registration", "control", "mux", "task", "iopub", "hb_ping", "hb_pong", "broadcast"),
    "client": ("registration", "control", "mux", "task", "iopub", "notification", "broadcast"),
}
CONTROLLER_RANGE = range(14_000, 20_000)
"""Below the ports that the system gives outgoing connections, which may take one before the controller does, and apart
from the ring's, which are chosen before the controller has taken its own."""
LOOPBACK = "127.0.0.1"
OnEvent = Callable[[dict[str, Any]], None]
HEARTBEAT_MS = 1000
"""ipyparallel counts an engine as registered after its first heartbeat; our own readiness comes over the lifeline."""
ANSWER_WITHIN = 10.0
"""Seconds a host process gets to answer."""
GONE_WITHIN = 8.0
"""Seconds the host process is given to end everything before it is killed itself."""


class HostEnd:
    """The notebook's end of one host process: orders down, events up. How they travel is for subclasses to say."""

    def __init__(self, name: str, on_event: OnEvent) -> None:
        self.name = name
        self._on_event = on_event
        self._gone = threading.Event()
        self._changed = threading.Condition()
        self._living: set[int] = set()
        self._answers: dict[int, dict[str, Any]] = {}
        self._questions = itertools.count(1)
        self.directory = Path()
        """Its private folder, on that host."""
        self.engine_info: dict[str, Any] = {}
        """How an engine there reaches the controller."""
        self.lifeline_url = ""
        """How a rank there reaches the notebook."""
        self.trouble = ""
        """Why it could not carry out an order."""
        self.ended: dict[str, Any] | None = None
        """How the host process ended, once it has."""

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

    def ports(self, count: int) -> list[int]:
        """Free TCP ports of that host. Raises CannotStart where it does not answer."""
        answer = self._answer(do="ports", count=count)
        if answer is None:
            late = f"{self.name} did not name free ports in {ANSWER_WITHIN:g} s."
            raise CannotStart(late if self.alive else f"{self.name}: what started ranks there has just ended.")
        return list(answer["ports"])

    def offer(self, cluster: str, ranks: Sequence[Mapping[str, Any]]) -> None:
        """Lay these settings where the ranks of a launcher find them there. Raises CannotStart."""
        if self._answer(do="offer", cluster=cluster, ranks=list(ranks)) is None:
            raise CannotStart(f"{self.name} could not write its ranks' settings.")

    def runs(self, pid: int) -> bool:
        """Whether there is such a process on that host, as far as it answers."""
        answer = self._answer(do="runs", pid=pid)
        return self.alive if answer is None else bool(answer["pid"] == pid)

    def _answer(self, **order: Any) -> dict[str, Any] | None:
        """Give an order and wait for its answer, which carries the number of the question: one may come too late."""
        question = next(self._questions)
        self._order(**order, ask=question)
        with self._changed:
            self._changed.wait_for(lambda: question in self._answers or self._gone.is_set(), ANSWER_WITHIN)
            return self._answers.pop(question, None)

    def wait_gone(self, pids: Iterable[int], within: float) -> set[int]:
        """Wait until these processes have ended; returns those that have not."""
        wanted = set(pids)
        with self._changed:
            self._changed.wait_for(lambda: not wanted & self._living or self._gone.is_set(), within)
            return set() if self._gone.is_set() else wanted & self._living

    def forget(self, uuids: Sequence[str]) -> None:
        """These engines have ended: ipyparallel's clients must not wait for them."""
        self._order(do="forget", uuids=list(uuids))

    def end(self) -> None:
        """End every process and remove every file; returns when they are gone."""
        self._order(do="end")
        self._gone.wait(GONE_WITHIN)

    def wait_end(self) -> None:
        """Wait for an `end` in another thread."""
        self._gone.wait(GONE_WITHIN)

    @property
    def alive(self) -> bool:
        return not self._gone.is_set()

    def log(self) -> str:
        """What the host process complained of, if anything."""
        return self.trouble

    def _order(self, **order: Any) -> None:
        raise NotImplementedError

    def _hear(self, event: dict[str, Any]) -> None:
        """Take an event of the host process in, and pass it on."""
        kind = event["event"]
        with self._changed:
            if kind in ("started", "launched"):
                self._living.add(event["pid"])
            elif kind == "present":
                self._living.update(event["processes"].values())
            elif kind == "ended":
                self._living.discard(event["pid"])
            elif "ask" in event:
                self._answers[event["ask"]] = event
            self._changed.notify_all()
        if kind == "trouble":
            self.trouble = str(event["text"]).strip().splitlines()[-1]
        self._on_event(event)

    def _has_gone(self) -> None:
        """The host process is no more, or out of reach."""
        self._gone.set()
        with self._changed:
            self._changed.notify_all()
        self.ended = self._how_ended()
        self._on_event(self.ended)

    def _how_ended(self) -> dict[str, Any]:
        raise NotImplementedError


class PipedHost(HostEnd):
    """A host process whose orders and events are JSON lines of two streams."""

    def __init__(self, name: str, reader: IO[bytes], writer: IO[bytes], on_event: OnEvent) -> None:
        super().__init__(name, on_event)
        self._reader, self._writer = reader, writer
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def follow(self) -> None:
        """Hear its events, in a thread."""
        threading.Thread(target=self._listen, name=f"allranks-host-{self.name}", daemon=True).start()

    def end(self) -> None:
        """See `HostEnd.end`."""
        super().end()
        if self._process is not None:
            if not self._gone.is_set():
                self._process.kill()
            try:
                self._process.wait(GONE_WITHIN)
            except subprocess.TimeoutExpired:  # an ssh that waits for its tunnels
                self._process.kill()
                self._process.wait()

    def _order(self, **order: Any) -> None:
        with self._lock:
            try:
                self._writer.write(json.dumps(order).encode() + b"\n")
                self._writer.flush()
            except (BrokenPipeError, ConnectionError, ValueError):
                self._gone.set()

    def _listen(self) -> None:
        for line in self._reader:
            try:
                event = json.loads(line)
                kind = event["event"]
            except (ValueError, TypeError, KeyError):
                continue  # what a login shell prints is no event
            if kind == "gone":
                break
            self._hear(event)
        self._has_gone()

    def _how_ended(self) -> dict[str, Any]:
        return {"event": "host gone", "code": self._process.wait() if self._process is not None else 0}


class LocalHost(PipedHost):
    """The notebook's own machine, where ipyparallel's controller lives too.

    Made by `begin`, or by `adopt` for a host process that another notebook started and kept.
    """

    def __init__(self, directory: Path, reader: IO[bytes], writer: IO[bytes], on_event: OnEvent) -> None:
        super().__init__("localhost", reader, writer, on_event)
        self.directory = directory
        self.connection_file = directory / "ipcontroller-client.json"
        self.client_info: dict[str, Any] = {}

    @classmethod
    def begin(
        cls, name: str, *, kept_as: Path | None, python: str, on_event: OnEvent, shared: bool, listen: str = LOOPBACK
    ) -> LocalHost:
        """Start a host process; with `kept_as`, the file that says how to attach, it outlives this notebook.

        `shared` says that users of other hosts can reach the controller: then it takes nobody without its key.
        Engines reach it at the address `listen`.
        """
        directory = Path(tempfile.mkdtemp(prefix=f"allranks-{name}-"))  # 0700
        (directory / "profile").mkdir()
        # Children must not inherit what a test or a notebook server set for itself alone.
        environment = {key: value for key, value in os.environ.items() if key != "PYTEST_CURRENT_TEST"}
        with open(directory / "host.log", "wb") as log:
            process = subprocess.Popen(
                [python, "-m", "allranks.rank.host"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                start_new_session=True,  # Ctrl-C in a terminal is for the notebook, not for the ranks' parent
            )
        assert process.stdin is not None and process.stdout is not None
        host = cls(directory, process.stdout, process.stdin, on_event)
        host._process = process
        host.engine_info, host.client_info, controller = _controller_settings(directory, curve=shared, listen=listen)
        host._order(
            do="prepare",
            directory=str(directory),
            keep=kept_as is not None,
            controller=controller,
            also_remove=str(kept_as) if kept_as else None,
        )
        _write_private(host.connection_file, json.dumps(host.client_info))
        host.follow()
        return host

    @classmethod
    def adopt(cls, directory: Path, engine_info: dict[str, Any], on_event: OnEvent) -> LocalHost:
        """Take a kept host process over. Raises OSError when it is no more."""
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(directory / "control"))
        host = cls(directory, connection.makefile("rb"), connection.makefile("wb"), on_event)
        host.engine_info = engine_info
        host.client_info = json.loads(host.connection_file.read_text())
        host.follow()
        return host

    def ports(self, count: int) -> list[int]:
        """See `HostEnd.ports`."""
        return free_ports(count)

    def end(self) -> None:
        """See `HostEnd.end`."""
        super().end()
        shutil.rmtree(self.directory, ignore_errors=True)

    def log(self) -> str:
        """See `HostEnd.log`."""
        try:
            said = (self.directory / "host.log").read_text(errors="replace").strip()
            return "\n".join(filter(None, (said, self.trouble)))
        except OSError:
            return ""


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


def rank_settings(host: HostEnd, number: int, **shared: Any) -> dict[str, Any]:
    """The RankConfig of one rank, as JSON."""
    return {
        "rank": number,
        "host": host.name,
        "uuid": secrets.token_hex(8),
        "directory": str(host.directory / f"rank-{number}"),
        "engine": host.engine_info,
        "lifeline_url": host.lifeline_url,
        **shared,
    }


def _controller_settings(
    directory: Path, *, curve: bool, listen: str
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Choose ports and keys for a controller: engines reach it at `listen`, clients on loopback.

    Returns engine info, client info and its settings.
    """
    key = secrets.token_hex(32)
    keys = [part.decode() for part in zmq.curve_keypair()] if curve else None
    names = [(side, port) for side, ports in CONTROLLER_PORTS.items() for port in ports]
    ports = dict(zip(names, free_ports(len(names), listen, CONTROLLER_RANGE), strict=True))
    engine: dict[str, Any] = {port: ports["engine", port] for port in CONTROLLER_PORTS["engine"]}
    client: dict[str, Any] = {port: ports["client", port] for port in CONTROLLER_PORTS["client"]}
    engine |= {"interface": f"tcp://{listen}", "broadcast": [engine["broadcast"]]}
    client |= {"interface": f"tcp://{LOOPBACK}", "task_scheme": "leastload"}
    if listen == LOOPBACK:  # where the two addresses are one, the hub binds once
        client["registration"] = engine["registration"]
    shared = {
        "ssh": "",
        "key": key,
        "curve_serverkey": keys[0] if keys else None,
        "location": LOOPBACK,
        "pack": "json",
        "unpack": "json",
        "signature_scheme": "hmac-sha256",
    }
    settings = {
        "engine_info": engine,
        "client_info": client,
        "key": key,
        "engine_ip": listen,
        "client_ip": LOOPBACK,
        "curve": keys,
        "profile": str(directory / "profile"),
        "heartbeat_ms": HEARTBEAT_MS,
    }
    return engine | shared, client | shared, settings


def _write_private(path: Path, text: str) -> None:
    path.touch(mode=0o600)
    path.write_text(text)
