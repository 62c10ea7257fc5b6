"""Finds this process's sockets, and the ring's among them: MLX does not expose its sockets; their ports are known."""

from __future__ import annotations

import os
import socket
import stat
import sys
from collections.abc import Collection, Iterable
from contextlib import suppress


def own_sockets() -> list[int]:
    found = []
    for name in os.listdir("/dev/fd" if sys.platform == "darwin" else "/proc/self/fd"):
        try:
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                found.append(int(name))
        except OSError:
            continue
    return found


def with_ports(descriptors: Iterable[int], ports: Collection[int]) -> list[int]:
    """The sockets that have one of `ports` at either end."""
    found = []
    for descriptor in descriptors:
        # Only the duplicate is closed; the ring still owns the original.
        with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as duplicate:
            if not _port_pair(duplicate).isdisjoint(ports):
                found.append(descriptor)
    return found


def close_refused(descriptors: Iterable[int]) -> None:
    """Close the sockets that mlx 0.32.4 leaks: one for each attempt to connect before the neighbour listened.

    They are blocking, and neither connected nor listening. ZeroMQ's threads may open sockets meanwhile, but theirs are
    non-blocking.
    """
    for descriptor in descriptors:
        with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as each:
            refused = each.family == socket.AF_INET and each.type == socket.SOCK_STREAM and os.get_blocking(descriptor)
            if refused and not each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) and not _connected(each):
                os.close(descriptor)


def _connected(each: socket.socket) -> bool:
    try:
        each.getpeername()
    except OSError:
        return False
    return True


def _port_pair(each: socket.socket) -> set[int]:
    """Local and remote TCP port, as far as there are any."""
    ports = set()
    for ask in (each.getsockname, each.getpeername):
        try:
            address = ask()
        except OSError:
            continue
        if isinstance(address, tuple):
            ports.add(address[1])
    return ports


def has_ended(descriptor: int) -> bool:
    """Whether the other end of a TCP connection is closed, or the connection has failed; False if data is unread."""
    with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as duplicate:
        try:
            return not duplicate.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
    return True
