"""The notebook's own machine: its host process, and the settings of ipyparallel's controller there."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any

import psutil
import zmq

from allranks.machine.private_files import write_private
from allranks.machine.process_identity import identity_of
from allranks.machine.tcp_ports import free_ports
from allranks.messages.host_messages import Prepare

from .host_end import ConnectionInfo, PipedHost
from .reachable_addresses import LOOPBACK

CONTROLLER_PORTS = {
    "engine": ("registration", "control", "mux", "task", "iopub", "hb_ping", "hb_pong", "broadcast"),
    "client": ("registration", "control", "mux", "task", "iopub", "notification", "broadcast"),
}
CONTROLLER_RANGE = range(14_000, 20_000)
"""Range of the controller's ports. They are below the system's ephemeral ports, since an outgoing connection could take
one before the controller binds it. They are apart from the ring's ports, which are chosen before the controller has
bound its own."""
LONGEST = 90
"""Limit, in characters, for the path of a folder to which a socket's name is added."""
HEARTBEAT_MS = 1000
"""Milliseconds between two heartbeats of the controller. ipyparallel counts an engine as registered after its first
heartbeat; ranks report readiness over the lifeline."""


class LocalHost(PipedHost):
    """The notebook's own machine, where ipyparallel's controller runs too.

    Made by `begin`, or by `adopt` for a host process that another notebook started and detached from. `follow` then
    reads its events.
    """

    NAME = "localhost"

    def __init__(self, directory: Path, reader: IO[bytes], writer: IO[bytes]) -> None:
        super().__init__(self.NAME, reader, writer)
        self.directory = directory
        self.connection_file = directory / "ipcontroller-client.json"
        self.process = (0, 0.0)
        """Pid and start time (Unix seconds) of the host process."""

    @classmethod
    def begin(cls, name: str, *, python: str, shared: bool, listen: str = LOOPBACK, forks: bool = True) -> LocalHost:
        """Start a host process. Raises OSError, or ZMQError, if this machine lacks a resource that it needs.

        With `shared`, ranks on other hosts connect to the controller, at the address `listen`. With `forks`, the host
        process imports the modules of its ranks at once.
        """
        directory = Path(tempfile.mkdtemp(prefix=f"allranks-{name}-"))  # 0700
        try:
            return cls._begun(directory, python, shared=shared, listen=listen, forks=forks)
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)  # the host process ends when its input closes
            raise

    @classmethod
    def _begun(cls, directory: Path, python: str, *, shared: bool, listen: str, forks: bool) -> LocalHost:
        (directory / "profile").mkdir()
        # Ranks must not inherit a variable that pytest set only for itself.
        environment = {key: value for key, value in os.environ.items() if key != "PYTEST_CURRENT_TEST"}
        with open(directory / "host.log", "wb") as log:
            process = subprocess.Popen(
                [python, "-m", "allranks.host_process.host"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                start_new_session=True,  # Ctrl-C in a terminal is for the notebook, not for the ranks' parent
            )
        assert process.stdin is not None and process.stdout is not None
        host = cls(directory, process.stdout, process.stdin)
        host._process, host.process = process, identity_of(process.pid)
        host.engine_info, client_info, controller = _controller_settings(directory, shared=shared, listen=listen)
        host._order(Prepare(str(directory), controller, forks=forks))
        write_private(host.connection_file, json.dumps(client_info))
        return host

    @classmethod
    def adopt(cls, directory: Path, engine_info: ConnectionInfo, process: tuple[int, float]) -> LocalHost:
        """Take over the host process of a detached cluster. Raises OSError if it has ended."""
        connection = socket.socket(socket.AF_UNIX)
        with _short(directory) as folder:
            connection.connect(f"{folder}/control")
        host = cls(directory, connection.makefile("rb"), connection.makefile("wb"))
        host.engine_info, host.process = engine_info, process
        return host

    def ask_ports(self, count: int) -> Callable[[], list[int]]:
        """See `HostEnd.ask_ports`."""
        return partial(free_ports, count)

    def wait_ended(self, pid: int, within: float) -> bool:
        """See `HostEnd.wait_ended`."""
        try:
            psutil.Process(pid).wait(within)
        except psutil.NoSuchProcess:
            pass
        except psutil.TimeoutExpired:
            return False
        return True

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


@contextmanager
def _short(folder: Path) -> Iterator[str]:
    """A path to `folder` short enough for a socket's path, which may have about 100 characters; a link if needed."""
    if len(str(folder)) < LONGEST:
        yield str(folder)
        return
    link = f"/tmp/allranks-{secrets.token_hex(8)}"
    os.symlink(folder, link)
    try:
        yield link
    finally:
        os.unlink(link)


def _controller_settings(
    directory: Path, *, shared: bool, listen: str
) -> tuple[ConnectionInfo, ConnectionInfo, dict[str, Any]]:
    """Choose addresses and keys for a controller; returns engine info, client info and the controller's settings.

    Every user of a machine can connect to a port of its loopback, and ipyparallel signs its messages but does not
    encrypt them. So on one machine the controller listens on Unix sockets in the private folder. With engines on other
    hosts, or if the folder's path is too long for sockets, it uses CurveZMQ on ports, which is slower: a plain client
    pushes large values at a fifth of the speed, and more often misses output of code that it runs in its first
    milliseconds (8 times out of 40 instead of once, on a busy machine).
    """
    key = secrets.token_hex(32)
    names = [(side, port) for side, ports in CONTROLLER_PORTS.items() for port in ports]
    sockets = f"{directory}/socket"
    if tcp := shared or len(f"{sockets}:65535") > zmq.IPC_PATH_MAX_LEN:
        engines_at, clients_at = f"tcp://{listen}", f"tcp://{LOOPBACK}"
        numbers = free_ports(len(names), listen, CONTROLLER_RANGE)
    else:
        engines_at = clients_at = f"ipc://{sockets}"
        numbers = list(range(1, len(names) + 1))
    keys = [part.decode() for part in zmq.curve_keypair()] if tcp else None
    ports = dict(zip(names, numbers, strict=True))
    engine: ConnectionInfo = {port: ports["engine", port] for port in CONTROLLER_PORTS["engine"]}
    client: ConnectionInfo = {port: ports["client", port] for port in CONTROLLER_PORTS["client"]}
    engine |= {"interface": engines_at, "broadcast": [engine["broadcast"]]}
    client |= {"interface": clients_at, "task_scheme": "leastload"}
    if engines_at == clients_at:  # the hub binds once
        client["registration"] = engine["registration"]
    common = {
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
        "curve": keys,
        "profile": str(directory / "profile"),
        "heartbeat_ms": HEARTBEAT_MS,
    }
    return engine | common, client | common, settings
