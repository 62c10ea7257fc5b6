"""The host process's connection to the head: JSON lines over a pipe, or over a connection to its Unix socket.

The head may disconnect and come back over another connection, or another head may connect. Over ssh, the head numbers
its requests, so that a request that is sent again after a gap is handled only once. `Present` reports what happened
during the gap.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Collection, Iterator
from pathlib import Path

from allranks.machine.private_files import write_all
from allranks.messages.host_messages import HostEvent, Serial, to_line


class HeadConnection:
    """Begins with standard input and output, which no other code may use."""

    def __init__(self) -> None:
        self._input, self._output = os.dup(0), os.dup(1)
        os.dup2(2, 1)  # a stray print must not break the protocol
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)  # never closed: a file or a socket must not be given this number
        self._listener: socket.socket | None = None
        self._rest = b""
        self.patience: float | None = None
        """Seconds without a message after which the head, or the network to it, counts as lost; None for no limit."""
        self._heard = time.monotonic()
        self.away_since: float | None = None
        """When the head disconnected, by `time.time`; None while it is connected."""
        self.head, self.received = "", 0
        """The head that sent the last numbered request, and the number of that request."""

    def listen(self, path: Path) -> None:
        """Listen for this or another head at a Unix socket, in a folder that only this user can enter."""
        if self._listener is not None:
            return
        self._listener = socket.socket(socket.AF_UNIX)
        before = os.open(".", os.O_RDONLY)
        os.chdir(path.parent)  # the path of a Unix socket is limited to about 100 characters
        self._listener.bind(path.name)
        os.fchdir(before)
        os.close(before)
        self._listener.listen()

    def watched(self) -> list[int]:
        """The descriptors to poll: input and listener."""
        listener = self._listener.fileno() if self._listener is not None else -1
        return [each for each in (self._input, listener) if each >= 0]

    def look_within(self) -> float | None:
        """Maximum seconds between two calls of `lines`, so that a silent head is noticed; None for no limit."""
        return None if self.away_since is not None or self.patience is None else self.patience / 4

    def lines(self, ready: Collection[int]) -> Iterator[bytes]:
        """The lines received; calls `leave` if the connection was closed or silent for too long."""
        if self._input >= 0 and self._input in ready:
            data, self._heard = _read(self._input), time.monotonic()
            if not data:
                self.leave()
            *lines, self._rest = (self._rest + data).split(b"\n")
            yield from lines
        elif self.away_since is None and self.patience and time.monotonic() - self._heard > self.patience:
            self.leave()

    def is_called(self, ready: Collection[int]) -> bool:
        """Whether a new connection waits; `accept` replaces the current one with it."""
        return self._listener is not None and self._listener.fileno() in ready

    def accept(self) -> None:
        """Take requests from the new connection, and close the previous one."""
        assert self._listener is not None
        connection, _ = self._listener.accept()
        self.leave()
        os.close(self._output)
        self._input = self._output = connection.detach()
        self._rest, self.away_since, self._heard = b"", None, time.monotonic()

    def leave(self) -> None:
        """Close the connection and note when the head disconnected."""
        if self._input < 0:
            return
        os.close(self._input)
        if self._output != self._input:
            os.close(self._output)
        self._input, self._output = -1, os.open(os.devnull, os.O_WRONLY)
        self.away_since = time.time()

    def is_new(self, serial: Serial | None) -> bool:
        """Whether the request with this serial (None: no serial) is new. If so, store the serial."""
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
            pass  # the head has disconnected

    def drop(self) -> None:
        """In a forked child: close the descriptors that belong to the host process only."""
        for descriptor in {self._output, self._input} - {-1}:
            os.close(descriptor)
        if self._listener is not None:
            self._listener.close()


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 1 << 16)
    except OSError:  # the connection was reset
        return b""
