"""The connections by which a host gets the blocks of what is shared from another one.

Whoever connects must first show that it knows the transfer's key, and so must who listens. The content is not
encrypted, like that of collectives; each block comes with its digest, which only the hosts of the transfer can make.

    listener   HELLO, a nonce
    receiver   a nonce, its proof
    listener   its proof
    receiver   what it wants: a kind, a file, a block                         again and again
    listener   WAIT each second until it has the block; then DATA or FAILED
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TypeAlias

from allranks.machine.shared_tree import BLOCK, CONTENT, DIGEST, WantedBlock, error_text

HELLO = b"allranks share 1"
NONCE = 32
PROVES_WITHIN = 5.0
"""Seconds that somebody who connects gets to show that it knows the key."""
MOST = 64
"""Connections at a time: more come from strangers."""
IDLE = 60.0
"""Seconds without a request, or in which nothing of an answer is taken, after which a connection is closed."""
SAYS_WAIT_EVERY = 1.0
"""Seconds."""
SILENCE = 8.0
"""Seconds without a byte after which a connection counts as lost."""
CONNECTS_WITHIN = 4.0
AGAIN_AFTER = 0.5
"""Seconds until a lost connection is opened again."""
GIVES_UP_AFTER = 120.0
"""Seconds without an answer after which the other host, or its disk, counts as gone."""
CLOSES_WITHIN = 1.5
"""Seconds until its thread has closed a listener: that looks each second, where the system does not wake it."""
FIRST_WITHIN = 30.0
"""The same, before it has answered at all: a firewall, say."""
LONGEST_TEXT = 2000
"""Bytes of the reason for a failure."""

WAIT, DATA, FAILED = 0, 1, 2
_REQUEST, _REPLY = struct.Struct(">BIQ"), struct.Struct(">BI")

Blocks: TypeAlias = Callable[[int, int, float], "tuple[bytes, bytes] | None"]
"""Called with a file, a block and seconds: the digest and the block; None where it is not there in that time."""


class ReportedByOther(RuntimeError):
    """The other host cannot give a block, and says why."""

    def __init__(self, host: str, why: str) -> None:
        super().__init__(why)
        self.host = host


class Unreachable(RuntimeError):
    """The other host does not answer."""


class Stopped(Exception):
    """The transfer has ended."""


class BlockListener:
    """Lets those who know the key have `blocks`; `tick` is called every second, until `close`."""

    def __init__(self, addresses: Sequence[str], key: bytes, blocks: Blocks, tick: Callable[[], None]) -> None:
        """Raises OSError where it cannot listen at an address."""
        self._key, self._blocks, self._tick = key, blocks, tick
        self._closed = threading.Event()
        self._open = set[_Serving]()
        self._listening = list[socket.socket]()
        try:
            for address in addresses:
                (family, _, _, _, where), *_ = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)
                self._listening.append(socket.create_server(where[:2], family=family, backlog=MOST))
        except BaseException:
            for each in self._listening:
                each.close()
            raise
        self.ports = [
            (address, int(each.getsockname()[1])) for address, each in zip(addresses, self._listening, strict=True)
        ]
        self._thread = threading.Thread(target=self._accept, name="allranks-share", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End all connections; no port is open any more then."""
        self._closed.set()
        for each in (*self._listening, *(serving.connection for serving in list(self._open))):
            _end(each)
        if threading.current_thread() is not self._thread:
            self._thread.join(CLOSES_WITHIN)

    def _accept(self) -> None:
        try:
            with selectors.DefaultSelector() as selector:
                for each in self._listening:
                    each.setblocking(False)
                    selector.register(each, selectors.EVENT_READ)
                while not self._closed.is_set():
                    for ready, _ in selector.select(SAYS_WAIT_EVERY):
                        with suppress(OSError):  # it has gone already, or we are closed
                            self._begin(ready.fileobj.accept()[0])  # type: ignore[union-attr]
                    for serving in list(self._open):
                        serving.report_reading()
                    self._tick()
        finally:
            for each in self._listening:
                each.close()

    def _begin(self, connection: socket.socket) -> None:
        if len(self._open) >= MOST:
            connection.close()
            return
        serving = _Serving(connection)
        self._open.add(serving)
        threading.Thread(target=self._serve, args=(serving,), name="allranks-share-to", daemon=True).start()

    def _serve(self, serving: _Serving) -> None:
        connection = serving.connection
        try:
            with connection:
                connection.settimeout(PROVES_WITHIN)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._prove(connection)
                connection.settimeout(IDLE)
                while not self._closed.is_set():
                    self._answer(serving, *_REQUEST.unpack(_receive(connection, _REQUEST.size)))
        except (OSError, struct.error):  # it has gone, or is none of ours
            pass
        finally:
            self._open.discard(serving)

    def _prove(self, connection: socket.socket) -> None:
        """Raises ConnectionError where the other end does not know the key; nothing else is read from it then."""
        deadline, ours = time.monotonic() + PROVES_WITHIN, secrets.token_bytes(NONCE)
        _send(connection, HELLO + ours)
        theirs = bytes(_receive(connection, NONCE, deadline))
        if not hmac.compare_digest(_receive(connection, DIGEST, deadline), _proof(self._key, "in", ours, theirs)):
            raise ConnectionError("it does not know the key")
        _send(connection, _proof(self._key, "out", theirs, ours))

    def _answer(self, serving: _Serving, kind: int, file: int, block: int) -> None:
        try:
            while True:
                with serving.reading():
                    found = self._blocks(file, block, SAYS_WAIT_EVERY)
                if found is not None:
                    break
                if self._closed.is_set():
                    return
                serving.send(_REPLY.pack(WAIT, 0))
        except (OSError, RuntimeError, LookupError) as error:  # our own files, not the connection
            serving.fail(error_text(error))
            return
        digest, data = found
        content = data if kind == CONTENT else b""
        serving.send(_REPLY.pack(DATA, DIGEST + len(content)) + digest)
        serving.send(content)


class _Serving:
    """A connection of a receiver: the thread that serves it reads, and the listener's says WAIT meanwhile."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._sends = threading.Lock()
        self._since: float | None = None
        """When it began to read the block that is wanted."""

    @contextmanager
    def reading(self) -> Iterator[None]:
        """While a block is read."""
        self._since = time.monotonic()
        try:
            yield
        finally:
            with self._sends:
                self._since = None

    def send(self, data: bytes) -> None:
        """Raises OSError."""
        _send(self.connection, data)

    def fail(self, why: str) -> None:
        """Say why the block cannot be had. Raises OSError."""
        text = why.encode(errors="replace")[:LONGEST_TEXT]
        self.send(_REPLY.pack(FAILED, len(text)) + text)

    def report_reading(self) -> None:
        """Say WAIT where a slow disk takes long, and fail where it takes too long."""
        with self._sends, suppress(OSError):
            if self._since is None or (seconds := time.monotonic() - self._since) < SAYS_WAIT_EVERY:
                return
            if seconds < GIVES_UP_AFTER:
                self.send(_REPLY.pack(WAIT, 0))
                return
            self.fail(f"its disk gave nothing for {seconds:.0f} s")
            _end(self.connection)  # what the disk gives after all is not sent


class BlockLink:
    """A connection to a host named `host`, opened again where it is lost, until `stop` is set.

    Of several ports, which are on different networks of that host, the first that answers is used.
    """

    def __init__(self, host: str, ports: Sequence[tuple[str, int]], key: bytes, stop: threading.Event) -> None:
        self._host, self._ports, self._key, self._stop = host, list(ports), key, stop
        self._socket: socket.socket | None = None
        self._answered_at, self._gives_up_after = time.monotonic(), FIRST_WITHIN

    def ask(self, kind: int, file: int, block: int) -> tuple[bytes, bytes | memoryview]:
        """The digest of a block, and for CONTENT the block.

        Raises ReportedByOther, Unreachable, and Stopped.
        """
        self._answered_at = time.monotonic()
        while True:
            if self._stop.is_set():
                raise Stopped
            try:
                connection = self._socket or self._connect()
                _send(connection, _REQUEST.pack(kind, file, block))
                status, content = self._reply(connection)
                break
            except OSError as error:
                self.close()
                if time.monotonic() - self._answered_at > self._gives_up_after:
                    raise Unreachable(f"{self._where()} does not answer ({error})") from None
                self._stop.wait(AGAIN_AFTER)
        if status == FAILED:
            raise ReportedByOther(self._host, content.decode(errors="replace"))
        return bytes(content[:DIGEST]), memoryview(content)[DIGEST:]

    def close(self) -> None:
        """Also from another thread, which ends what waits for it."""
        if (connection := self._socket) is not None:
            self._socket = None
            _end(connection)
            connection.close()

    def _where(self) -> str:
        return f"{self._host} ({', '.join(f'{address} port {port}' for address, port in self._ports)})"

    def _connect(self) -> socket.socket:
        for number, (address, port) in enumerate(self._ports):
            try:
                connection = socket.create_connection((address, port), CONNECTS_WITHIN)
            except OSError:
                if number == len(self._ports) - 1:
                    raise
                continue
            try:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.settimeout(SILENCE)
                self._prove(connection)
            except BaseException:
                connection.close()
                raise
            self._socket = connection
            self._gives_up_after = GIVES_UP_AFTER
            return connection
        raise ConnectionError("it has no address")

    def _prove(self, connection: socket.socket) -> None:
        greeting, ours = bytes(_receive(connection, len(HELLO) + NONCE)), secrets.token_bytes(NONCE)
        theirs = greeting[len(HELLO) :]
        if greeting[: len(HELLO)] != HELLO:
            raise ConnectionError("something else listens there")
        _send(connection, ours + _proof(self._key, "in", theirs, ours))
        if not hmac.compare_digest(_receive(connection, DIGEST), _proof(self._key, "out", ours, theirs)):
            raise ConnectionError("something else listens there")

    def _reply(self, connection: socket.socket) -> tuple[int, bytearray]:
        while True:
            status, length = _REPLY.unpack(_receive(connection, _REPLY.size))
            self._answered_at = time.monotonic()
            if length > BLOCK + DIGEST or (status == DATA and length < DIGEST):
                raise ConnectionError("its answer makes no sense")
            if status != WAIT:
                content = _receive(connection, length)
                self._answered_at = time.monotonic()
                return status, content


class FromNotebook:
    """In place of a `BlockLink`, shared by several threads, where the notebook's machine is the source without a rank.

    The notebook asks what is wanted, and sends it over the lifeline.
    """

    def __init__(self, host: str) -> None:
        self.host = host
        self._changed = threading.Condition()
        self._wanted = dict[WantedBlock, bool]()
        """Whether the notebook knows."""
        self._given = dict[WantedBlock, tuple[bytes, bytes]]()
        self._failed = ""
        self._closed = False

    def ask(self, kind: int, file: int, block: int) -> tuple[bytes, bytes]:
        """As `BlockLink.ask`. Raises ReportedByOther, and Stopped."""
        wanted = (kind, file, block)
        with self._changed:
            self._wanted[wanted] = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: wanted in self._given or self._failed or self._closed)
            if self._failed:
                raise ReportedByOther(self.host, self._failed)
            if self._closed:
                raise Stopped
            return self._given.pop(wanted)

    def give(self, given: Mapping[WantedBlock, tuple[bytes, bytes]], failed: str, *, again: bool) -> list[WantedBlock]:
        """What the notebook sends; returns what is wanted and was not returned before; all of it with `again`."""
        with self._changed:
            self._failed = self._failed or failed
            for wanted in given.keys() & self._wanted.keys():
                self._given[wanted] = given[wanted]
                del self._wanted[wanted]
            if again:
                self._wanted = dict.fromkeys(self._wanted, False)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._closed or not all(self._wanted.values()), SAYS_WAIT_EVERY)
            news = [wanted for wanted, known in self._wanted.items() if not known]
            self._wanted |= dict.fromkeys(news, True)
            return news

    def close(self) -> None:
        """End what waits for it."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


def _proof(key: bytes, way: str, first: bytes, second: bytes) -> bytes:
    person = f"allranks {way}".encode()
    return hashlib.blake2b(first + second, key=key, digest_size=DIGEST, person=person).digest()


def _receive(connection: socket.socket, count: int, deadline: float | None = None) -> bytearray:
    """So many bytes, all of them by the `deadline`. Raises OSError."""
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


def _send(connection: socket.socket, data: bytes) -> None:
    """All of it. `socket.sendall` would take the timeout for that of the whole, however slow the network is."""
    view = memoryview(data)
    while view:
        view = view[connection.send(view) :]


def _end(connection: socket.socket) -> None:
    """Wake whoever waits for it."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
