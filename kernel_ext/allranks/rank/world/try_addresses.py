"""Whether this host reaches other hosts at the addresses that a world is to use, and how fast they send."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from allranks.machine.keyed_connections import KeyedListener, prove
from allranks.messages.requests import HostAt, HostTried

PIECE = bytes(1 << 16)
MOST_HOSTS = 1000
"""Maximum number of hosts connected to one listener at a time."""
WARM_UP = 0.05
"""Seconds at the start that are not measured, since a network's rate at first says little."""


class Listening:
    """Listens at these addresses until `stop`, for `within` seconds at most (see `requests.ListenForHosts`)."""

    def __init__(self, addresses: Sequence[str], key: bytes, within: float) -> None:
        self._key, self._within, self._until = key, within, time.monotonic() + within
        self._listeners = [self._listen(address) for address in addresses]
        self.ports = [each.ports[0][1] if each is not None else 0 for each in self._listeners]
        """One port for each address; 0 where this host cannot listen at the address."""

    def stop(self) -> None:
        """Close the ports and the connections."""
        for each in self._listeners:
            if each is not None:
                each.close()

    def _listen(self, address: str) -> KeyedListener | None:
        try:
            return KeyedListener([address], self._key, self._send, within=self._within, most=MOST_HOSTS)
        except OSError:
            return None

    def _send(self, connection: socket.socket) -> None:
        connection.settimeout(max(0.1, self._until - time.monotonic()))
        if connection.recv(1) == b"+":
            while time.monotonic() < self._until:  # or until the other end closes the connection
                connection.sendall(PIECE)


def try_all(hosts: Sequence[HostAt], key: bytes, within: float, measure: float) -> list[HostTried]:
    """Connect to the hosts, up to 32 at a time, then measure how fast each sends, one after another.

    With `measure` 0, nothing is measured (see `requests.TryHosts`).
    """
    if not hosts:
        return []
    with ThreadPoolExecutor(min(len(hosts), 32)) as threads:
        reached = list(threads.map(lambda host: _connected(host, key, within), hosts))
    tried = []
    for each in reached:
        if isinstance(each, str):
            tried.append(HostTried(each))
            continue
        with each:
            tried.append(HostTried("", _rate(each, measure) if measure else 0.0))
    return tried


def _connected(host: HostAt, key: bytes, within: float) -> socket.socket | str:
    """A connection to the host, or the reason why there is none."""
    try:
        connection = socket.create_connection((host.address, host.port), within)
    except TimeoutError:
        return f"no answer within {within:g} s"
    except OSError as error:
        return (error.strerror or str(error)).lower()
    with suppress(OSError):
        connection.settimeout(within)
        prove(connection, key)
        return connection
    connection.close()
    return "another machine answers there"


def _rate(connection: socket.socket, measure: float) -> float:
    """The rate at which the other end sends, in bytes per second."""
    connection.settimeout(measure)
    buffer, began, nbytes = bytearray(1 << 20), time.monotonic(), 0
    counted_from = began
    with suppress(OSError):
        connection.sendall(b"+")
        while (now := time.monotonic()) < began + WARM_UP + measure:
            count = connection.recv_into(buffer)
            if not count:
                break
            if now < began + WARM_UP:
                counted_from = time.monotonic()
            else:
                nbytes += count
    return nbytes / max(time.monotonic() - counted_from, 1e-6)
