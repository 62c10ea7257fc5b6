"""The connections over which a host receives blocks of shared files from another host.

Both ends first prove that they know the transfer's key (`machine.keyed_connections`). The content is not encrypted,
like the data of collectives; each block comes with its digest, which only the hosts of the transfer can make.

    receiver   requests, each a kind, a file and a block; several at once for small files   (repeated)
    listener   for each request: WAIT every second until it has the block, then DATA or FAILED
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TypeAlias

from allranks.machine.keyed_connections import KeyedListener, end, prove, receive, send
from allranks.machine.shared_tree import BLOCK, CONTENT, DIGEST, WantedBlock, error_text

IDLE = 60.0
"""Seconds without a request, or without the receiver reading from a reply, after which a connection is closed."""
SAYS_WAIT_EVERY = 1.0
"""Seconds between two WAIT replies."""
SILENCE = 8.0
"""Seconds without a byte after which a connection counts as lost."""
CONNECTS_WITHIN = 4.0
AGAIN_AFTER = 0.5
"""Seconds until a lost connection is opened again."""
GIVES_UP_AFTER = 120.0
"""Seconds without a reply after which the other host, or its disk, counts as lost."""
FIRST_WITHIN = 30.0
"""Replaces `GIVES_UP_AFTER`, in seconds, until a first connection succeeds, which a firewall may prevent."""
LONGEST_TEXT = 2000
"""Maximum length, in bytes, of the reason for a failure."""

SMALL = 1 << 16
"""Blocks of up to this many bytes are sent in one message with their header."""

WAIT, DATA, FAILED = 0, 1, 2
_REQUEST, _REPLY = struct.Struct(">BIQ"), struct.Struct(">BI")

Blocks: TypeAlias = Callable[[int, int, float], "tuple[bytes, bytes] | None"]
"""Called with file number, block number and timeout; returns digest and content, or None if the timeout expires."""


class ReportedByOther(RuntimeError):
    """The other host reports that it cannot provide a block; the message is its reason."""

    def __init__(self, host: str, why: str) -> None:
        super().__init__(why)
        self.host = host


class Unreachable(RuntimeError):
    """The other host does not answer."""


class Stopped(Exception):
    """The transfer has ended."""


class BlockListener:
    """Serves `blocks` to hosts that know the key, and calls `tick` every second, until `close`."""

    def __init__(self, addresses: Sequence[str], key: bytes, blocks: Blocks, tick: Callable[[], None]) -> None:
        """Raises OSError if it cannot listen at an address."""
        self._blocks, self._tick = blocks, tick
        self._open = set[_Serving]()
        self._listener = KeyedListener(addresses, key, self._serve, self._report, every=SAYS_WAIT_EVERY)
        self.ports = self._listener.ports

    def close(self) -> None:
        """End all connections and close the ports."""
        self._listener.close()

    def _report(self) -> None:
        for serving in list(self._open):
            serving.report_reading()
        self._tick()

    def _serve(self, connection: socket.socket) -> None:
        serving = _Serving(connection)
        self._open.add(serving)
        try:
            connection.settimeout(IDLE)
            while not self._listener.closed:
                self._answer(serving, *_REQUEST.unpack(receive(connection, _REQUEST.size)))
        finally:
            self._open.discard(serving)

    def _answer(self, serving: _Serving, kind: int, file: int, block: int) -> None:
        try:
            while True:
                with serving.reading():
                    found = self._blocks(file, block, SAYS_WAIT_EVERY)
                if found is not None:
                    break
                if self._listener.closed:
                    return
                serving.send(_REPLY.pack(WAIT, 0))
        except (OSError, RuntimeError, LookupError) as error:  # from reading this host's files, not from the connection
            serving.fail(error_text(error))
            return
        digest, data = found
        content = data if kind == CONTENT else b""
        header = _REPLY.pack(DATA, DIGEST + len(content)) + digest
        if len(content) <= SMALL:
            serving.send(header + content)
        else:
            serving.send(header)
            serving.send(content)


class _Serving:
    """A receiver's connection: its own thread reads blocks from disk; meanwhile the listener's thread sends WAIT."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._sends = threading.Lock()
        self._since: float | None = None
        """When reading of the requested block began; None while no block is being read."""

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Record, for `report_reading`, that a block is being read."""
        self._since = time.monotonic()
        try:
            yield
        finally:
            with self._sends:
                self._since = None

    def send(self, data: bytes) -> None:
        """Send the data. Raises OSError."""
        send(self.connection, data)

    def fail(self, why: str) -> None:
        """Send FAILED with the reason. Raises OSError."""
        text = why.encode(errors="replace")[:LONGEST_TEXT]
        self.send(_REPLY.pack(FAILED, len(text)) + text)

    def report_reading(self) -> None:
        """Send WAIT while a block is read from a slow disk; after `GIVES_UP_AFTER`, send FAILED and disconnect."""
        with self._sends, suppress(OSError):
            if self._since is None or (seconds := time.monotonic() - self._since) < SAYS_WAIT_EVERY:
                return
            if seconds < GIVES_UP_AFTER:
                self.send(_REPLY.pack(WAIT, 0))
                return
            self.fail(f"its disk gave nothing for {seconds:.0f} s")
            end(self.connection)  # so a block that is read later is not sent


class BlockLink:
    """A connection to the host named `host`, reopened when it is lost, until `stop` is set.

    `ports` may be on different networks of that host; the first to which a connection succeeds is used.
    """

    def __init__(self, host: str, ports: Sequence[tuple[str, int]], key: bytes, stop: threading.Event) -> None:
        self._host, self._ports, self._key, self._stop = host, list(ports), key, stop
        self._socket: socket.socket | None = None
        self._answered_at, self._gives_up_after = time.monotonic(), FIRST_WITHIN

    def ask(self, wanted: Sequence[WantedBlock]) -> list[tuple[bytes, bytes | memoryview]]:
        """The digest of each block, in order, with its content if the kind is CONTENT.

        Raises ReportedByOther, Unreachable, and Stopped.
        """
        self._answered_at = time.monotonic()
        while True:
            if self._stop.is_set():
                raise Stopped
            try:
                connection = self._socket or self._connect()
                send(connection, b"".join(_REQUEST.pack(*each) for each in wanted))
                replies = list[bytearray]()
                for _ in wanted:
                    status, content = self._reply(connection)
                    if status == FAILED:  # the listener may have ended the connection: no reply follows
                        self.close()
                        raise ReportedByOther(self._host, content.decode(errors="replace"))
                    replies.append(content)
                break
            except OSError as error:
                self.close()
                if time.monotonic() - self._answered_at > self._gives_up_after:
                    raise Unreachable(f"{self._where()} does not answer ({error})") from None
                self._stop.wait(AGAIN_AFTER)
        return [(bytes(content[:DIGEST]), memoryview(content)[DIGEST:]) for content in replies]

    def close(self) -> None:
        """Close the connection; from another thread, this also ends an `ask` that is waiting for a reply."""
        if (connection := self._socket) is not None:
            self._socket = None
            end(connection)
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
                prove(connection, self._key)
            except BaseException:
                connection.close()
                raise
            self._socket = connection
            self._gives_up_after = GIVES_UP_AFTER
            return connection
        raise ConnectionError("it has no address")

    def _reply(self, connection: socket.socket) -> tuple[int, bytearray]:
        while True:
            status, length = _REPLY.unpack(receive(connection, _REPLY.size))
            self._answered_at = time.monotonic()
            if length > BLOCK + DIGEST or (status == DATA and length < DIGEST):
                raise ConnectionError("it sent an invalid answer")
            if status != WAIT:
                content = receive(connection, length)
                self._answered_at = time.monotonic()
                return status, content


class FromNotebook:
    """Replaces `BlockLink` if the source is the notebook's machine and no rank runs there; shared by several threads.

    The notebook asks which blocks are wanted, and sends them over the lifeline.
    """

    def __init__(self, host: str) -> None:
        self.host = host
        self._changed = threading.Condition()
        self._wanted = dict[WantedBlock, bool]()
        """For each wanted block, whether the notebook has been informed that it is wanted."""
        self._given = dict[WantedBlock, tuple[bytes, bytes]]()
        self._failed = ""
        self._closed = False

    def ask(self, wanted: Sequence[WantedBlock]) -> list[tuple[bytes, bytes]]:
        """Same as `BlockLink.ask`. Raises ReportedByOther, and Stopped."""
        with self._changed:
            self._wanted |= dict.fromkeys(wanted, False)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._given.keys() >= {*wanted} or self._failed or self._closed)
            if self._failed:
                raise ReportedByOther(self.host, self._failed)
            if self._closed:
                raise Stopped
            return [self._given.pop(each) for each in wanted]

    def give(self, given: Mapping[WantedBlock, tuple[bytes, bytes]], failed: str, *, again: bool) -> list[WantedBlock]:
        """Store blocks from the notebook, or why it `failed`; return wanted blocks that were not returned before.

        With `again`, return all wanted blocks. Waits up to `SAYS_WAIT_EVERY` seconds until a block is wanted.
        """
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
        """Unblock every waiting `ask`, which raises Stopped, and every `give`."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
