"""The connections of the notebook's end: which of them a message came by, and which have ended.

ZeroMQ names a connection by its descriptor, both with a message and in the event of its end. The system gives the
descriptor to another connection at once, and the event may be read later: after a notebook was stopped for minutes,
many connections end and begin between two looks. So each connection also gets a number, which is never used again:
ZeroMQ asks, by ZAP (https://rfc.zeromq.org/spec/27/), whether to accept a connection, and passes the user id of the
answer on with every message.
"""

from __future__ import annotations

from typing import NamedTuple

import zmq
from zmq.utils.monitor import parse_monitor_message

ZAP = "inproc://zeromq.zap.01"


class Connection(NamedTuple):
    descriptor: int
    number: int


class Connections:
    """Of one ROUTER; belongs to the thread that reads it."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], router: zmq.Socket[bytes]) -> None:
        self._ends = router.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._begins = context.socket(zmq.REP)
        self._begins.bind(ZAP)
        self._newest = 0
        self._ended: dict[int, int] = {}
        """For each descriptor the highest number that a connection with it had and that has ended."""

    @property
    def sockets(self) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes]]:
        """`update` is due when one of them can be read."""
        return self._begins, self._ends

    def update(self) -> None:
        """Accept the connections that begin, and note those that have ended."""
        while (request := _received(self._begins)) is not None:
            # ZeroMQ has told of the end of a descriptor's last owner before it asks about the next: both in one thread.
            self._note_ends()
            self._newest += 1
            version, number = request[:2]
            self._begins.send_multipart([version, number, b"200", b"", str(self._newest).encode(), b""])
        self._note_ends()

    def _note_ends(self) -> None:
        while (event := _received(self._ends)) is not None:
            self._ended[parse_monitor_message(event)["value"]] = self._newest

    def is_open(self, connection: Connection) -> bool:
        """Whether it had not ended at the last update."""
        return connection.number > self._ended.get(connection.descriptor, 0)


def connection_of(frame: zmq.Frame) -> Connection:
    """The connection by which a message came."""
    return Connection(int(frame.get(zmq.SRCFD)), int(frame.get("User-Id")))


def _received(socket: zmq.Socket[bytes]) -> list[bytes] | None:
    try:
        return socket.recv_multipart(zmq.NOBLOCK)
    except zmq.Again:
        return None
