"""What of a rank outlives it for a moment, in the host process: a ring's sockets, and what a library wrote at the end.

The sockets stay open so that its neighbours' collectives are aborted instead of failing.

When a process ends the kernel closes its sockets, and MLX raises in the neighbours at once. What they were computing
then holds their own numbers, or whatever was in memory, and looks right; and the third collective in flight hangs
indefinitely (mlx 0.32.4). So the host process has a second descriptor of each socket: none is closed, the neighbours
wait, and are unblocked like those that wait for a rank that raised (see `placeholders`).

A library that ends the process (MLX at an error of NCCL) writes why to stderr just before. That is a pipe which the
rank reads itself (ipykernel), and it may have no time left for it: the host process reads what is left.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Collection, Sequence
from contextlib import suppress

HELD_FOR = 10.0
"""Seconds after a rank's end in which its neighbours are unblocked, or else find its sockets closed."""
MOST_READ = 65_536
"""Bytes: as many as a pipe of Linux holds."""
MOST = 250
"""Descriptors in one message; the kernel takes 253."""


def hold(holder: int | None, descriptors: Sequence[int]) -> None:
    """In a rank: have the host process hold these sockets, in place of those it held before."""
    if holder is None:
        return
    with suppress(OSError), socket.socket(fileno=os.dup(holder)) as channel:
        if descriptors:
            socket.send_fds(channel, [b"h"], list(descriptors)[:MOST])
        else:
            channel.send(b"h")


def keep_readable(holder: int | None, pipe: int) -> None:
    """In a rank: have the host process read what is left in this pipe when the rank has ended."""
    if holder is None:
        return
    with suppress(OSError), socket.socket(fileno=os.dup(holder)) as channel:
        socket.send_fds(channel, [b"p"], [pipe])


class Holder:
    """In the host process. A rank is known by its name."""

    def __init__(self) -> None:
        self._channels: dict[str, socket.socket] = {}
        self._held: dict[str, list[int]] = {}
        self._pipes: dict[str, list[int]] = {}
        self._until: dict[str, float] = {}

    def channel(self, name: str) -> socket.socket:
        """The end that a new process is to `hold` by."""
        self._let_go(name)
        ours, theirs = socket.socketpair()
        self._channels[name] = ours
        return theirs

    def watched(self) -> list[int]:
        """What `take` is to be called for when it is ready."""
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
        """The process has ended."""
        if name in self._held:
            self._until[name] = time.monotonic() + HELD_FOR

    def unread(self, name: str) -> str:
        """What the process wrote to its stderr and had no time to read."""
        found = b""
        for pipe in self._pipes.pop(name, ()):
            os.set_blocking(pipe, False)
            with suppress(OSError):
                found = os.read(pipe, MOST_READ)
            os.close(pipe)
        return found.decode(errors="replace")

    def close_due(self, *, now: bool = False) -> float | None:
        """Let go of what need not be held any more, of all that has ended if `now`; returns seconds until the next."""
        at = time.monotonic()
        for name in [name for name, until in self._until.items() if now or until <= at]:
            self._let_go(name)
        return min((until - at for until in self._until.values()), default=None)

    def close(self) -> None:
        """Let go of everything, as a forked child must."""
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
