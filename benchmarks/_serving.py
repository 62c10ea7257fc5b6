"""Ranks outside allranks that run `_loop` on request."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from ._processes import wait_ended

RANKS = 2
WITHIN = 120.0
"""Timeout, in seconds, for ranks to join, and to answer."""


class RanksFailed(RuntimeError):
    """Ranks did not connect or did not answer; the message has their number and output."""


Rates = Callable[[int, int], float]
"""Called with bytes and a number of calls; returns calls per second."""


def address(folder: str) -> str:
    """The address to which the ranks of `serving` connect."""
    return os.path.join(folder, "socket")


@contextmanager
def serving(folder: str, starts: Sequence[tuple[Sequence[str], dict[str, str]]]) -> Iterator[Rates]:
    """Run these command lines, each with variables added to the environment, and end their ranks on exit.

    Raises RanksFailed.
    """
    processes: list[psutil.Popen] = []
    connections: list[Connection[Any, Any]] = []
    log = Path(folder, "log")
    with socket.socket(socket.AF_UNIX) as listener, log.open("wb") as out:
        listener.bind(address(folder))
        listener.listen()
        try:
            for command, env in starts:
                env = {**os.environ, **env}
                processes.append(psutil.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out))
            while len(connections) < RANKS:
                connections.append(_accept(listener, processes, log))
            if sorted(_answers(connections)) != list(range(RANKS)):
                raise RanksFailed("the ranks did not join one world")
            yield lambda nbytes, calls: _ask(connections, nbytes, calls)
        finally:
            for connection in connections:
                try:
                    connection.send(None)
                except OSError:  # it is gone already
                    pass
                connection.close()
            wait_ended(processes, 10.0 if connections else 0.0)


def _accept(listener: socket.socket, processes: Sequence[psutil.Popen], log: Path) -> Connection[Any, Any]:
    deadline = time.monotonic() + WITHIN
    listener.settimeout(0.5)
    while True:
        try:
            connected, _ = listener.accept()
            connected.setblocking(True)
            return Connection(connected.detach())
        except TimeoutError:
            if time.monotonic() > deadline or any(process.poll() is not None for process in processes):
                said = log.read_text(errors="replace").strip().splitlines() or ["nothing"]
                raise RanksFailed(f"the ranks did not come; the last they said: {said[-1]}") from None


def _ask(connections: Sequence[Connection[Any, Any]], nbytes: int, calls: int) -> float:
    for connection in connections:
        connection.send((nbytes, calls))
    return median(_answers(connections))


def _answers(connections: Sequence[Connection[Any, Any]]) -> list[float]:
    answers = []
    for connection in connections:
        if not connection.poll(WITHIN):
            raise RanksFailed(f"a rank did not answer in {WITHIN:g} s")
        answers.append(connection.recv())
    return answers
