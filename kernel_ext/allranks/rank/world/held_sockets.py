"""What the host process keeps of a rank that has ended: a ring's sockets, and unread output on the rank's stderr.

The sockets stay open so that the neighbours' collectives are aborted instead of failing.

When a process ends, the kernel closes its sockets, and MLX raises in the neighbours at once. The results that they were
computing then hold their own numbers, or whatever was in memory, and look right; and the third collective in flight
hangs indefinitely (mlx 0.32.4). So the host process has a second descriptor of each socket: no socket is closed, and
the neighbours wait until they are unblocked, like ranks that wait for a rank that raised (see `placeholders`).

A library that ends the process (MLX at an error of NCCL) writes the reason to stderr just before. Stderr is a pipe that
the rank reads itself (ipykernel), and the rank may have no time left to do so. Then the host process reads the rest.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Collection, Sequence
from contextlib import suppress

HELD_FOR = 10.0
"""Seconds after a rank's end until its sockets are closed; its neighbours should be unblocked by then."""
MOST_READ = 65_536
"""Maximum number of bytes read from a pipe: a Linux pipe holds no more by default."""
MOST = 250
"""Maximum number of descriptors in one message; the kernel accepts 253."""


def hold(holder: int | None, descriptors: Sequence[int]) -> None:
    """In a rank: have the host process hold these sockets, at most `MOST`, instead of the ones it held before.

    `holder` is the descriptor of a channel to the host process (`Holder.channel`); with None, this does nothing.
    """
    if holder is None:
        return
    with suppress(OSError), socket.socket(fileno=os.dup(holder)) as channel:
        if descriptors:
            socket.send_fds(channel, [b"h"], list(descriptors)[:MOST])
        else:
            channel.send(b"h")


def keep_readable(holder: int | None, pipe: int) -> None:
    """In a rank: have the host process read the rest of this pipe once the rank has ended (`holder` as in `hold`)."""
    if holder is None:
        return
    with suppress(OSError), socket.socket(fileno=os.dup(holder)) as channel:
        socket.send_fds(channel, [b"p"], [pipe])


class Holder:
    """Holds descriptors of ranks in the host process. Ranks are identified by name."""

    def __init__(self) -> None:
        self._channels: dict[str, socket.socket] = {}
        self._held: dict[str, list[int]] = {}
        self._pipes: dict[str, list[int]] = {}
        self._until: dict[str, float] = {}

    def channel(self, name: str) -> socket.socket:
        """Make a channel for a new process; returns the end whose descriptor the process passes to `hold`."""
        self._let_go(name)
        ours, theirs = socket.socketpair()
        self._channels[name] = ours
        return theirs

    def watched(self) -> list[int]:
        """The descriptors to wait for; pass the ready ones to `take`."""
        return [channel.fileno() for channel in self._channels.values()]

    def take(self, ready: Collection[int]) -> None:
        for name, channel in list(self._channels.items()):
            if channel.fileno() not in ready:
                continue
            try:
                said, descriptors, _, _ = socket.recv_fds(channel, 1, MOST)
            except OSError:
                said, descriptors = b"", []
            if said:
                kind = self._pipes if said == b"p" else self._held
                _close(kind.pop(name, ()))
                kind[name] = descriptors
            else:
                self._channels.pop(name).close()

    def ended(self, name: str) -> None:
        """Start the timeout after which the sockets of this process, which has ended, are closed."""
        if name in self._held:
            self._until[name] = time.monotonic() + HELD_FOR

    def unread(self, name: str) -> str:
        """Read the rest of an ended process's output from its stderr pipe, and close the pipe; "" without a pipe."""
        found = b""
        for pipe in self._pipes.pop(name, ()):
            os.set_blocking(pipe, False)
            with suppress(OSError):
                found = os.read(pipe, MOST_READ)
            os.close(pipe)
        return found.decode(errors="replace")

    def close_due(self, *, now: bool = False) -> float | None:
        """Close sockets that are due, or with `now` all sockets of ended processes.

        Returns the seconds until the next sockets are due; None if no ended process has sockets left.
        """
        at = time.monotonic()
        for name in [name for name, until in self._until.items() if now or until <= at]:
            self._let_go(name)
        return min((until - at for until in self._until.values()), default=None)

    def close(self) -> None:
        """Close all descriptors, as a forked child must."""
        for name in {*self._channels, *self._held, *self._pipes}:
            self._let_go(name)

    def _let_go(self, name: str) -> None:
        _close(self._held.pop(name, ()))
        _close(self._pipes.pop(name, ()))
        self._until.pop(name, None)
        if name in self._channels:
            self._channels.pop(name).close()


def _close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
