"""The host process's line to the head: JSON lines over a pipe, or over whatever connects to a Unix socket.

The head may go away and come back, by another connection or as another head. Its orders are numbered, so that those
which are sent again after a gap are carried out once; what happened meanwhile is in `Present`.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Collection, Iterator
from pathlib import Path

from allranks.machine.files import write_all
from allranks.messages.host_messages import HostEvent, Serial, to_line


class HeadConnection:
    """Begins with standard input and output, which nothing else is to use."""

    def __init__(self) -> None:
        self._input, self._output = os.dup(0), os.dup(1)
        os.dup2(2, 1)  # a stray print must not break the protocol
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)  # never closed: a file or a socket must not be given this number
        self._listener: socket.socket | None = None
        self._rest = b""
        self.patience: float | None = None
        """Seconds without a word after which the head, or the network to it, counts as gone."""
        self._heard = time.monotonic()
        self.away_since: float | None = None
        """When it went, as `time.time` has it; None while it is there."""
        self.head, self.received = "", 0
        """Which head gave the last order that has a number, and that number."""

    def listen(self, path: Path) -> None:
        """Let the next head, or this one by another connection, in at this socket, in a folder of this user's alone."""
        if self._listener is not None:
            return
        self._listener = socket.socket(socket.AF_UNIX)
        before = os.open(".", os.O_RDONLY)
        os.chdir(path.parent)  # a socket's path may have some 100 characters only
        self._listener.bind(path.name)
        os.fchdir(before)
        os.close(before)
        self._listener.listen()

    def watched(self) -> list[int]:
        """Descriptors that are to be looked at."""
        listener = self._listener.fileno() if self._listener is not None else -1
        return [each for each in (self._input, listener) if each >= 0]

    def look_within(self) -> float | None:
        """Seconds within which a silent head must be noticed."""
        return None if self.away_since is not None or self.patience is None else self.patience / 4

    def lines(self, ready: Collection[int]) -> Iterator[bytes]:
        """What has come; the connection is `leave`d where it has closed, or was silent for too long."""
        if self._input >= 0 and self._input in ready:
            data, self._heard = _read(self._input), time.monotonic()
            if not data:
                self.leave()
            *lines, self._rest = (self._rest + data).split(b"\n")
            yield from lines
        elif self.away_since is None and self.patience and time.monotonic() - self._heard > self.patience:
            self.leave()

    def is_called(self, ready: Collection[int]) -> bool:
        """Whether somebody connects: `accept` takes that connection instead of the one there is."""
        return self._listener is not None and self._listener.fileno() in ready

    def accept(self) -> None:
        """From now on this connection gives the orders, whatever became of the one before."""
        assert self._listener is not None
        connection, _ = self._listener.accept()
        self.leave()
        os.close(self._output)
        self._input = self._output = connection.detach()
        self._rest, self.away_since, self._heard = b"", None, time.monotonic()

    def leave(self) -> None:
        """The head is gone."""
        if self._input < 0:
            return
        os.close(self._input)
        if self._output != self._input:
            os.close(self._output)
        self._input, self._output = -1, os.open(os.devnull, os.O_WRONLY)
        self.away_since = time.time()

    def is_new(self, serial: Serial | None) -> bool:
        """Whether the order of this number is to be carried out."""
        if serial is None:
            return True
        head, number = serial
        if head == self.head and number <= self.received:
            return False
        self.head, self.received = head, number
        return True

    def say(self, event: HostEvent) -> None:
        try:
            write_all(self._output, to_line(event) + b"\n")
        except OSError:
            pass  # the head is gone

    def drop(self) -> None:
        """In a forked child: close what is the host process's alone."""
        for descriptor in {self._output, self._input} - {-1}:
            os.close(descriptor)
        if self._listener is not None:
            self._listener.close()


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 1 << 16)
    except OSError:  # a connection that was reset
        return b""
