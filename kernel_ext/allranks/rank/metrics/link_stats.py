"""Traffic of each link, read from the ring's own sockets, without touching or slowing the user's code.

Linux: ``TCP_INFO`` (``struct tcp_info`` of ``linux/tcp.h``; the counters of bytes came with Linux 4.1). macOS:
``TCP_CONNECTION_INFO`` (``struct tcp_connection_info`` of ``netinet/tcp.h``); written from the header, not yet run.
MPI, by shared memory or TCP, and RDMA are not counted: such links stay unknown.
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
"""If two readings are more than this many seconds apart, the process or its machine was suspended in between."""


class SocketReading(NamedTuple):
    """The kernel's figures for one socket."""

    sent: int
    """Bytes that the peer has acknowledged; on macOS, bytes sent."""
    rtt: float
    """The smoothed round-trip time, in seconds."""
    retransmits: int
    """Segments sent again."""
    queued: int
    """Bytes in the send buffer, which the peer has not acknowledged."""


class LinkStats:
    """This rank's end of its links; each `join` starts a new set."""

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
        """Find the sockets of a new ring among `descriptors`, by their ports.

        `mine` are this rank's listening ports, to which the left neighbour connects. `neighbours` maps each neighbour
        to its ports; if there are two neighbours, the left one comes first. `threads` are the ring's threads.
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
        """Forget the ring's sockets, since their descriptors may be reused."""
        self._sockets = {}

    def read(self) -> list[LinkReading]:
        """A reading of each neighbour's link; a link with a closed socket is left out."""
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
        """Seconds for which a transfer has been pending without any peer acknowledging bytes; `links` were just read.

        0 if bytes move or no transfer is pending, None if that cannot be determined. While a collective waits for a
        computation, no transfer is pending: the ring's threads sleep.
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


def read(descriptor: int) -> SocketReading | None:
    """The kernel's figures for a TCP socket; None if it is closed, or the system does not report them."""
    try:
        if sys.platform == "linux":
            info = _getsockopt(descriptor, _TCP_INFO, 136)
            if len(info) < 136:
                return None
            (rtt,) = struct.unpack_from("=I", info, 68)  # microseconds
            (retransmits,) = struct.unpack_from("=I", info, 100)
            (acked,) = struct.unpack_from("=Q", info, 120)
            return SocketReading(acked, rtt / 1e6, retransmits, _queued(descriptor))
        if sys.platform == "darwin":
            info = _getsockopt(descriptor, _TCP_CONNECTION_INFO, 112)
            (rtt,) = struct.unpack_from("=I", info, 44)  # tcpi_srtt, milliseconds
            (queued,) = struct.unpack_from("=I", info, 32)  # tcpi_snd_sbbytes
            (txbytes,) = struct.unpack_from("=Q", info, 64)
            (again,) = struct.unpack_from("=Q", info, 104)
            return SocketReading(txbytes, rtt / 1e3, again, queued)
    except (OSError, struct.error):
        pass
    return None


def _queued(descriptor: int) -> int:
    (count,) = struct.unpack("=i", fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(4)))
    return int(count)


def _getsockopt(descriptor: int, option: int, size: int) -> bytes:
    # With family, type and protocol given, Python does not query the descriptor; `detach` leaves it open.
    each = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=descriptor)
    try:
        return each.getsockopt(socket.IPPROTO_TCP, option, size)
    finally:
        each.detach()


def _ports(descriptor: int) -> tuple[int, int] | None:
    """Local and remote port of a connected IPv4 TCP socket; None for any other descriptor."""
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
    """Name of the interface with this address, or None."""
    return next((name for name, has in psutil.net_if_addrs().items() if address in (one.address for one in has)), None)


def _interface(descriptor: int) -> tuple[str | None, float | None]:
    """Name of the interface with the socket's address, and its nominal speed in bits a second; None if unknown."""
    each = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=descriptor)
    try:
        address: Any = each.getsockname()[0]
        within = each.getpeername()[0] == address
    except OSError:
        return None, None
    finally:
        each.detach()
    if within:  # the same host: the kernel uses loopback, whatever interface has the address
        address = "127.0.0.1"
    name = interface_of(address)
    if name is None:
        return None, None
    stats = psutil.net_if_stats().get(name)
    return name, stats.speed * 1e6 if stats is not None and stats.speed > 0 and not address.startswith("127.") else None
