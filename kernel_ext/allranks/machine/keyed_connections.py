"""TCP connections between hosts with a common key: each end proves that it knows the key, without sending the key.

    listener     HELLO, a nonce
    other end    a nonce, its proof
    listener     its proof

Data sent afterwards is not encrypted.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import math
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

HELLO = b"allranks 1"
NONCE = PROOF = 32
"""Bytes of a nonce and of a proof."""
PROVES_WITHIN = 5.0
"""Timeout, in seconds, for the proof of the other end."""
MOST = 64
"""Default limit for concurrent connections. Hosts that know the key need fewer; further connections are closed."""
EVERY = 1.0
"""Default maximum time, in seconds, between two calls of `tick`."""
CLOSES_WITHIN = 1.5
"""Maximum seconds to wait until a listener's thread has closed its ports; the thread may be busy in `tick`."""


class KeyedListener:
    """Calls `serve` in a new thread with each connection whose other end knows the key, then closes the connection.

    Listens until `close`, but at most for `within` seconds. Meanwhile `tick` is called at least every `every` seconds.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        key: bytes,
        serve: Callable[[socket.socket], None],
        tick: Callable[[], None] = lambda: None,
        *,
        every: float = EVERY,
        within: float = math.inf,
        most: int = MOST,
    ) -> None:
        """Start to listen. Raises OSError if it cannot listen at an address."""
        self._key, self._do_serve, self._tick, self._every, self._most = key, serve, tick, every, most
        self._until = time.monotonic() + within
        self._closed = threading.Event()
        self._woken, self._waker = socket.socketpair()
        """A socket pair to wake the selector: on some systems, shutting down a listening socket does not wake it."""
        self._open = set[socket.socket]()
        self._listening = list[socket.socket]()
        try:
            for address in addresses:
                (family, _, _, _, where), *_ = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)
                self._listening.append(socket.create_server(where[:2], family=family, backlog=MOST))
        except BaseException:
            self._close_sockets()
            raise
        self.ports = [
            (address, int(each.getsockname()[1])) for address, each in zip(addresses, self._listening, strict=True)
        ]
        self._thread = threading.Thread(target=self._accept, name="allranks-listener", daemon=True)
        self._thread.start()

    @property
    def closed(self) -> bool:
        """Whether `close` was called; stays False if the listener ends because `within` seconds have passed."""
        return self._closed.is_set()

    def close(self) -> None:
        """End all connections and close the ports. Waits at most `CLOSES_WITHIN` seconds until the ports are closed."""
        self._closed.set()
        end(self._waker)
        for each in list(self._open):
            end(each)
        if threading.current_thread() is not self._thread:
            self._thread.join(CLOSES_WITHIN)

    def _accept(self) -> None:
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(self._woken, selectors.EVENT_READ)
                for each in self._listening:
                    each.setblocking(False)
                    selector.register(each, selectors.EVENT_READ)
                while not self.closed and (left := self._until - time.monotonic()) > 0:
                    ready = [key.fileobj for key, _ in selector.select(min(self._every, left))]
                    for each in self._listening:
                        if each in ready and not self.closed:
                            self._take(each)
                    self._tick()
        finally:
            self._close_sockets()

    def _close_sockets(self) -> None:
        for each in (*self._listening, self._woken, self._waker):
            each.close()

    def _take(self, listening: socket.socket) -> None:
        try:
            connection = listening.accept()[0]
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._closed.wait(0.1)  # no descriptor is free: the connection stays in the queue
            return  # otherwise, the peer has closed the connection already
        if len(self._open) >= self._most:
            connection.close()
            return
        self._open.add(connection)
        if self.closed:  # `close` may have missed this connection
            end(connection)
        threading.Thread(target=self._serve, args=(connection,), name="allranks-serving", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                connection.settimeout(PROVES_WITHIN)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._check(connection)
                self._do_serve(connection)
        except OSError:  # the peer is gone, or does not know the key
            pass
        finally:
            self._open.discard(connection)

    def _check(self, connection: socket.socket) -> None:
        """Verify that the other end knows the key, before any other data is read. Raises ConnectionError if not."""
        deadline, ours = time.monotonic() + PROVES_WITHIN, secrets.token_bytes(NONCE)
        send(connection, HELLO + ours)
        theirs = bytes(receive(connection, NONCE, deadline))
        if not hmac.compare_digest(receive(connection, PROOF, deadline), _proof(self._key, "in", ours, theirs)):
            raise ConnectionError("it does not know the key")
        send(connection, _proof(self._key, "out", theirs, ours))


def prove(connection: socket.socket, key: bytes) -> None:
    """Prove to a `KeyedListener` that this end knows the key, and verify the same of the listener. Raises OSError."""
    greeting, ours = bytes(receive(connection, len(HELLO) + NONCE)), secrets.token_bytes(NONCE)
    theirs = greeting[len(HELLO) :]
    if greeting[: len(HELLO)] != HELLO:
        raise ConnectionError("something else listens there")
    send(connection, ours + _proof(key, "in", theirs, ours))
    if not hmac.compare_digest(receive(connection, PROOF), _proof(key, "out", ours, theirs)):
        raise ConnectionError("something else listens there")


def _proof(key: bytes, way: str, first: bytes, second: bytes) -> bytes:
    person = f"allranks {way}".encode()
    return hashlib.blake2b(first + second, key=key, digest_size=PROOF, person=person).digest()


def receive(connection: socket.socket, count: int, deadline: float | None = None) -> bytearray:
    """Receive exactly `count` bytes before the `deadline` by `time.monotonic` (None: no deadline). Raises OSError."""
    data = bytearray(count)
    view = memoryview(data)
    while view:
        if deadline is not None:
            connection.settimeout(max(deadline - time.monotonic(), 0.001))
        got = connection.recv_into(view)
        if not got:
            raise ConnectionError("the connection was closed")
        view = view[got:]
    return data


def send(connection: socket.socket, data: bytes) -> None:
    """Send all of `data`. The timeout applies to each part; in `socket.sendall`, to the total. Raises OSError."""
    view = memoryview(data)
    while view:
        view = view[connection.send(view) :]


def end(connection: socket.socket) -> None:
    """Shut down the connection, which wakes a thread that is blocked on it."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
