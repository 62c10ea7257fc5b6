"""Whether this host reaches others at the addresses that a world is to use, and how fast these send."""

from __future__ import annotations

import errno
import hmac
import socket
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from allranks.messages.requests import HostAt, HostTried

PIECE = bytes(1 << 16)
WARM_UP = 0.05
"""Seconds that are not measured: what a network lets through at first says little."""


class Listening:
    """At these addresses, until `stop`, and for `within` seconds at most: see `requests.ListenForHosts`."""

    def __init__(self, addresses: Sequence[str], token: str, within: float) -> None:
        self._token, self._until = token, time.monotonic() + within
        self._servers: list[socket.socket] = []
        self.ports = [self._listen(address) for address in addresses]
        """One for each address; 0 where it is not this host's."""

    def stop(self) -> None:
        """Close the ports."""
        for server in self._servers:
            with suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits in accept
            server.close()

    def _listen(self, address: str) -> int:
        server = socket.socket()
        try:
            server.bind((address, 0))
            server.listen(64)
        except OSError:
            server.close()
            return 0
        self._servers.append(server)
        threading.Thread(target=self._serve, args=(server,), daemon=True).start()
        return int(server.getsockname()[1])

    def _serve(self, server: socket.socket) -> None:
        while (left := self._until - time.monotonic()) > 0:
            try:
                server.settimeout(left)
                connection, _ = server.accept()
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE):
                    break  # it was closed, or the time is over
                time.sleep(0.1)
                continue
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()
        server.close()

    def _answer(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.settimeout(max(0.1, self._until - time.monotonic()))
            if not hmac.compare_digest(_read(connection, len(self._token)), self._token.encode()):
                return
            connection.sendall(self._token.encode()[::-1])
            if connection.recv(1) != b"+":
                return
            while time.monotonic() < self._until:  # or until the other end has seen enough
                connection.sendall(PIECE)


def try_all(hosts: Sequence[HostAt], token: str, within: float, measure: float) -> list[HostTried]:
    """See `requests.TryHosts`."""
    if not hosts:
        return []
    with ThreadPoolExecutor(min(len(hosts), 32)) as threads:
        reached = list(threads.map(lambda host: _connected(host, token, within), hosts))
    tried = []
    for each in reached:
        if isinstance(each, str):
            tried.append(HostTried(each))
            continue
        with each:
            tried.append(HostTried("", _rate(each, measure) if measure else 0.0))
    return tried


def _connected(host: HostAt, token: str, within: float) -> socket.socket | str:
    """A connection to the host, or why there is none."""
    try:
        connection = socket.create_connection((host.address, host.port), within)
    except TimeoutError:
        return f"no answer within {within:g} s"
    except OSError as error:
        return (error.strerror or str(error)).lower()
    with suppress(OSError):
        connection.settimeout(within)
        connection.sendall(token.encode())
        if _read(connection, len(token)) == token.encode()[::-1]:
            return connection
    connection.close()
    return "another machine answers there"


def _rate(connection: socket.socket, measure: float) -> float:
    """Bytes a second that the other end sends."""
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


def _read(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (more := connection.recv(count - len(data))):
        data += more
    return data
