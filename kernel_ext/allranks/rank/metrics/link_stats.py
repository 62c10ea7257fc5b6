"""What travelled over each link, read from the ring's own sockets: no code of the user's is touched or slowed.

Linux: ``TCP_INFO`` (``struct tcp_info`` of ``linux/tcp.h``; the counters of bytes came with 4.1). macOS:
``TCP_CONNECTION_INFO`` (``struct tcp_connection_info`` of ``netinet/tcp.h``); written from the header, not run there.
Memory that ranks share (MPI on one host) and RDMA are not counted: their links stay unknown.
"""

from __future__ import annotations

import fcntl
import socket
import struct
import sys
import termios
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

import psutil

from allranks.messages.events import LinkReading

from .thread_times import time_used

_TCP_INFO = 11
_TCP_CONNECTION_INFO = 0x106
ASLEEP_AFTER = 3.0
"""Seconds between two readings after which the process, or its machine, was stopped meanwhile."""


class Reading(NamedTuple):
    """What one socket's kernel says of it."""

    sent: int
    """Bytes the peer has acknowledged."""
    rtt: float
    """Seconds."""
    retransmits: int
    """Segments sent again."""
    queued: int
    """Bytes sent that the peer has not acknowledged."""


class LinkStats:
    """The rank's side of its links, from `join` to the next."""

    def __init__(self) -> None:
        self._sockets: dict[int, list[int]] = {}
        self._interfaces: dict[int, tuple[str | None, float | None]] = {}
        self._before: dict[int, tuple[int, float]] = {}
        self._threads: Collection[int] = ()
        self._used: int | None = None
        self._still: tuple[int, float] = (-1, 0.0)
        self._looked_at = 0.0

    def join(
        self,
        descriptors: Iterable[int],
        mine: Collection[int],
        neighbours: Mapping[int, Collection[int]],
        threads: Collection[int] = (),
    ) -> None:
        """Know the sockets of a new ring by their ports: `mine` are listened on, for the left neighbour.

        `neighbours` maps each of the two to its ports, the left one first where they differ. `threads` are the ring's.
        """
        sockets: dict[int, list[int]] = {peer: [] for peer in neighbours}
        left = next(iter(neighbours), None)
        for descriptor in descriptors:
            ports = _ports(descriptor)
            if ports is None:
                continue
            if ports[0] in mine and left is not None:
                sockets[left].append(descriptor)
            else:
                for peer, theirs in neighbours.items():
                    if ports[1] in theirs:
                        sockets[peer].append(descriptor)
        self._interfaces.clear()
        self._before.clear()
        self._sockets, self._threads, self._used = sockets, threads, None

    def leave(self) -> None:
        """The ring is gone, and its descriptors may become anything."""
        self._sockets = {}

    def read(self) -> list[LinkReading]:
        """Each neighbour's link now; one whose sockets are closed is left out."""
        now, links = time.monotonic(), []
        for peer, descriptors in list(self._sockets.items()):
            readings = [reading for each in descriptors if (reading := read(each)) is not None]
            if not readings or len(readings) < len(descriptors):
                continue
            sent = sum(reading.sent for reading in readings)
            before, at = self._before.get(peer, (sent, now))
            self._before[peer] = (sent, now)
            if peer not in self._interfaces:
                self._interfaces[peer] = _interface(descriptors[0])
            links.append(
                LinkReading(
                    peer,
                    len(readings),
                    sent,
                    round((sent - before) / (now - at)) if now > at else 0,
                    round(max(reading.rtt for reading in readings), 6),
                    sum(reading.retransmits for reading in readings),
                    *self._interfaces[peer],
                    sum(reading.queued for reading in readings),
                )
            )
        return links

    def stalled(self, links: Collection[LinkReading]) -> float | None:
        """Seconds in which a transfer was pending and no byte of this rank's arrived anywhere; `links` as read now.

        0 where bytes move or no transfer is pending, None where that cannot be known. A rank whose collective waits for
        a computation has no transfer pending: the ring's threads sleep.
        """
        used, before = time_used(self._threads) if self._sockets else None, self._used
        self._used = used
        now, sent = time.monotonic(), sum(link.sent for link in links)
        asleep, self._looked_at = now - self._looked_at > ASLEEP_AFTER, now
        if used is None or used == before or before is None or sent != self._still[0] or asleep:
            self._still = (sent, now)
        if used is None or before is None or len(links) < len(self._sockets):
            return None
        return round(now - self._still[1], 1)


def read(descriptor: int) -> Reading | None:
    """What the kernel counts on a TCP socket; None where it is closed, or this system does not tell."""
    try:
        if sys.platform == "linux":
            info = _getsockopt(descriptor, _TCP_INFO, 136)
            if len(info) < 136:
                return None
            (rtt,) = struct.unpack_from("=I", info, 68)  # microseconds
            (retransmits,) = struct.unpack_from("=I", info, 100)
            (acked,) = struct.unpack_from("=Q", info, 120)
            return Reading(acked, rtt / 1e6, retransmits, _queued(descriptor))
        if sys.platform == "darwin":
            info = _getsockopt(descriptor, _TCP_CONNECTION_INFO, 112)
            (rtt,) = struct.unpack_from("=I", info, 44)  # tcpi_srtt, milliseconds
            (queued,) = struct.unpack_from("=I", info, 32)  # tcpi_snd_sbbytes
            (txbytes,) = struct.unpack_from("=Q", info, 64)
            (again,) = struct.unpack_from("=Q", info, 104)
            return Reading(txbytes, rtt / 1e3, again, queued)
    except (OSError, struct.error):
        pass
    return None


def _queued(descriptor: int) -> int:
    (count,) = struct.unpack("=i", fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(4)))
    return int(count)


def _getsockopt(descriptor: int, option: int, size: int) -> bytes:
    # Told its kind, Python asks the descriptor nothing; `detach` leaves it open.
    each = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=descriptor)
    try:
        return each.getsockopt(socket.IPPROTO_TCP, option, size)
    finally:
        each.detach()


def _ports(descriptor: int) -> tuple[int, int] | None:
    """Local and remote port of a connected socket."""
    try:
        each = socket.socket(fileno=descriptor)
    except OSError:
        return None
    try:
        if each.family != socket.AF_INET or each.type != socket.SOCK_STREAM:
            return None
        return each.getsockname()[1], each.getpeername()[1]
    except OSError:
        return None
    finally:
        each.detach()


def interface_of(address: str) -> str | None:
    """Name of the interface that has this address."""
    return next((name for name, has in psutil.net_if_addrs().items() if address in (one.address for one in has)), None)


def _interface(descriptor: int) -> tuple[str | None, float | None]:
    """Name of the interface that has the socket's address, and the bits a second it claims."""
    each = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=descriptor)
    try:
        address: Any = each.getsockname()[0]
        within = each.getpeername()[0] == address
    except OSError:
        return None, None
    finally:
        each.detach()
    if within:  # the same host: the kernel sends it through loopback, whatever interface has the address
        address = "127.0.0.1"
    name = interface_of(address)
    if name is None:
        return None, None
    stats = psutil.net_if_stats().get(name)
    return name, stats.speed * 1e6 if stats is not None and stats.speed > 0 and not address.startswith("127.") else None
