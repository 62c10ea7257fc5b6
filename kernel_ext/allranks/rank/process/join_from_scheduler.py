"""A process that a scheduler started joins a notebook's cluster, taking the role that an ssh login has elsewhere.

It finds the notebook by the join file, or by the same settings on stdin, and starts a host process (see
`host_process.host`). It relays the notebook's requests to the host process, and the host process's events to the
notebook, over its own encrypted connection. The host process ends everything it started, and this process ends last,
when the notebook ends the cluster or counts as lost (`PATIENCE`, `REFUSED_AFTER`), or on SIGTERM or SIGINT. If the
settings came over stdin, the end of stdin has the same effect.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message

from allranks.lifeline.rank_end import RankLifeline
from allranks.machine.addresses import address_towards
from allranks.messages.events import JoinedFrom, TaskEvent, TaskHello
from allranks.messages.host_messages import End, Prepare, to_line
from allranks.messages.requests import Request, TaskOrder, Welcome

RANK_VARIABLES = (
    "OMPI_COMM_WORLD_RANK",
    "PMIX_RANK",
    "SLURM_PROCID",
    "PMI_RANK",
    "PBS_VNODENUM",
    "JOB_COMPLETION_INDEX",
)
"""Variables with a process's number, by launcher; Slurm's comes after Open MPI's, since Slurm may start mpirun."""
SIZE_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
FILE_WITHIN = 90.0
"""Seconds to wait for a join file: NFS may hide a new file from other hosts for a minute."""
ANSWER_WITHIN = 20.0
"""Seconds to wait for the notebook at its addresses before a line reports that it does not answer."""
READ_EVERY = 0.5
"""Seconds between two reads of the join file while no notebook answers."""
OTHERS_WITHIN = 0.3
"""Extra seconds for addresses earlier in the file once a later address has answered."""
PATIENCE = 16.0
"""Seconds without a connection after which the notebook counts as lost."""
REFUSED_AFTER = 2.0
"""Seconds without a connection after which a notebook counts as lost if its machine refuses connections."""
END = to_line(End())


def launched_as() -> int | None:
    """The number that the launcher gave this process; None if it gave none."""
    return next((int(os.environ[name]) for name in RANK_VARIABLES if os.environ.get(name, "").isdigit()), None)


def read_join_file(path: Path, within: float) -> dict[str, Any]:
    """Return the settings in the join file at `path`, or in the first line of stdin if `path` is ``-``.

    Exits with a message if there is no file after `within` seconds, or if the file is unreadable or not a join file.
    """
    if str(path) == "-":
        return dict(json.loads(sys.stdin.buffer.readline()))
    deadline = time.monotonic() + within
    if within and not os.path.exists(path):
        print(
            f"allranks: waiting up to {within:g} s for {path} on {socket.gethostname()}.", file=sys.stderr, flush=True
        )
    while not os.path.exists(path):  # False also if the folder is not accessible
        if time.monotonic() > deadline:
            sys.exit(f"allranks: {path} not found on {socket.gethostname()}. %distributed up --join writes it.")
        time.sleep(0.5)
    try:
        return dict(json.loads(path.read_text()))
    except OSError as error:
        sys.exit(f"allranks: {path} cannot be read: {error.strerror}.")
    except (ValueError, TypeError):
        sys.exit(f"allranks: {path} is not a join file. %distributed up --join writes one.")


class JoinedProcess:
    """This process, started by a scheduler, once it has found its notebook."""

    def __init__(self, settings: Mapping[str, Any], url: str) -> None:
        self._settings, self._url = settings, url
        self._ordered = False
        """Whether the notebook has sent `End`."""
        self._heard = time.monotonic()
        self._events: list[TaskEvent] = []
        self._writing = threading.Lock()
        self._telling = threading.Lock()
        """Keeps events in the order of their numbers: the notebook drops a lower number as a repetition."""
        self._host = subprocess.Popen(
            [sys.executable, "-m", "allranks.host_process.host"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # so that only this process gets the scheduler's signals
        )
        self._order(to_line(Prepare()))
        self._lifeline = RankLifeline(
            url,
            settings["key"].encode(),
            secrets.token_hex(8).encode(),
            on_connect=self._greet,
            on_message=lambda request, _: self._handle(request),
            on_tick=self._tick,
        )

    def run(self, until_input_ends: bool) -> int:
        """Relay messages until the host process ends; returns the exit code, 0 if the notebook ended the cluster.

        With `until_input_ends`, the end of stdin also ends the host process.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._close())
        self._lifeline.start()
        if until_input_ends:
            threading.Thread(target=self._follow_input, daemon=True).start()
        assert self._host.stdout is not None
        for line in self._host.stdout:
            with self._telling:
                self._events.append(TaskEvent(len(self._events) + 1, line.strip()))
                self._lifeline.send(self._events[-1])
        self._host.wait()
        self._lifeline.flushed(1.0)
        return 0 if self._ordered else 1

    def _greet(self) -> None:
        self._heard = time.monotonic()
        number = self._settings.get("number", launched_as())
        size = next((int(os.environ[name]) for name in SIZE_VARIABLES if os.environ.get(name, "").isdigit()), None)
        place = JoinedFrom(
            socket.gethostname(),
            address_towards(_address(self._url)),
            self._url,
            number,
            size,
            sys.executable,
            os.environ.get("CUDA_VISIBLE_DEVICES", ""),
        )
        self._lifeline.send(TaskHello(self._settings["token"], place))
        with self._telling:
            for event in self._events:  # some may have been lost with the previous connection
                self._lifeline.send(event)

    def _handle(self, request: Request) -> None:
        if isinstance(request, Welcome):
            print(f"allranks: {request.text}", flush=True)
        elif isinstance(request, TaskOrder):
            self._ordered = self._ordered or request.line == END
            self._order(request.line)

    def _order(self, line: bytes) -> None:
        assert self._host.stdin is not None
        with self._writing:
            try:
                self._host.stdin.write(line + b"\n")
                self._host.stdin.flush()
            except (OSError, ValueError):
                pass  # the host process is ending

    def _tick(self) -> float:
        if self._lifeline.connected:
            self._heard = time.monotonic()
        alone = time.monotonic() - self._heard
        if alone > PATIENCE or (alone > REFUSED_AFTER and refuses(self._url)):
            self._close()
        return 1.0

    def _follow_input(self) -> None:
        sys.stdin.buffer.read()
        self._close()

    def _close(self) -> None:
        """Tell the host process to end everything; `run` then returns."""
        self._order(END)


def join(settings: Mapping[str, Any], file: Path | None) -> int:
    """Serve the cluster until it ends; return the exit code: 0 if the notebook ended it, else 1.

    It is 1 also if no notebook answers in time. Without a `file`, the settings came over stdin, and the end of stdin
    also ends the process. A killed notebook leaves its file behind, so while no notebook answers, the file is read
    again, and new settings replace the old ones.
    """
    began = since = time.monotonic()
    within = FILE_WITHIN if file is not None else ANSWER_WITHIN
    waits = False
    while True:
        tried = ", ".join(_address(url) for url in settings["urls"])
        newer = partial(_newer, file, settings)
        url = find_notebook(settings["urls"], settings["key"].encode(), newer)
        if url is not None:
            return JoinedProcess(settings, url).run(until_input_ends=file is None)
        if (found := newer()) is not None:
            settings, since, waits = found, time.monotonic(), False
            continue
        left = max(began + within, since + ANSWER_WITHIN) - time.monotonic()
        if left <= 0:
            break
        if not waits:
            waits = True
            print(
                f"allranks: {socket.gethostname()} has no answer yet from the notebook at {tried}, which wrote {file}. "
                f"Waiting up to {left:.0f} s more for it, or for a new file: %distributed up --join writes one.",
                file=sys.stderr,
                flush=True,
            )
    print(
        f"allranks: {socket.gethostname()} got no answer from the notebook at {tried} within "
        f"{time.monotonic() - since:.0f} s. "
        "Is it still running, and can this host reach it?",
        file=sys.stderr,
    )
    return 1


def _newer(file: Path | None, known: Mapping[str, Any]) -> dict[str, Any] | None:
    """New settings in the join file; None if they equal `known`, or the file is missing or being written."""
    try:
        settings = dict(json.loads(file.read_text())) if file is not None else {}
    except (OSError, ValueError, TypeError):
        return None
    return settings if "urls" in settings and settings != known else None


def find_notebook(urls: Sequence[str], key: bytes, stop: Callable[[], object] = lambda: None) -> str | None:
    """The first of `urls` at which the holder of the cluster's secret key answers.

    A connection alone proves nothing, since another host may have the same private address. Returns None after
    `ANSWER_WITHIN`, or once `stop` returns a true value.
    """
    context, poller = zmq.Context(), zmq.Poller()
    events: dict[object, str] = {}
    attempts = []  # keeps references: an unreferenced socket is closed
    try:
        for url in urls:
            attempt = context.socket(zmq.DEALER)
            attempt.curve_serverkey = key
            attempt.curve_publickey, attempt.curve_secretkey = zmq.curve_keypair()
            monitor = attempt.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
            poller.register(monitor, zmq.POLLIN)
            events[monitor] = url
            attempt.connect(url)
            attempts.append(attempt)
        answered: set[str] = set()
        deadline = time.monotonic() + ANSWER_WITHIN
        while (left := deadline - time.monotonic()) > 0 and not set(urls[:1]) <= answered:
            if not answered and stop():
                return None
            for monitor, _ in poller.poll(int(min(left, READ_EVERY) * 1000) + 1):
                parse_monitor_message(monitor.recv_multipart())
                deadline = min(deadline, time.monotonic() + OTHERS_WITHIN)
                answered.add(events[monitor])
        return next((url for url in urls if url in answered), None)
    finally:
        context.destroy(linger=0)


def refuses(url: str) -> bool:
    """Whether the machine refuses connections at `url`; if it is silent, something may still listen."""
    try:
        socket.create_connection((_address(url), int(url.rpartition(":")[2])), 1.0).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        pass
    return False


def _address(url: str) -> str:
    return url.removeprefix("tcp://").rpartition(":")[0]
