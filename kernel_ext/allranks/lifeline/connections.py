"""The connections of the notebook's end: the connection of each message, and the connections that have ended.

ZeroMQ identifies a connection by its file descriptor, both with a message and in the event that reports the
connection's end. The system may reuse the descriptor for another connection before the event is read: if a notebook was
stopped for minutes, many connections end and begin between two reads. So each connection also gets a number that is
never reused. ZeroMQ asks by ZAP (https://rfc.zeromq.org/spec/27/) whether to accept a connection. The answer has this
number as its user id, which ZeroMQ passes with every message of the connection.
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
    """The connections of one ROUTER; used in the thread that reads this socket."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], router: zmq.Socket[bytes]) -> None:
        self._ends = router.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._begins = context.socket(zmq.REP)
        self._begins.bind(ZAP)
        self._newest = 0
        self._ended: dict[int, int] = {}
        """Maps a descriptor to the newest connection number at the moment when a connection with it last ended."""

    @property
    def sockets(self) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes]]:
        """The sockets to poll; call `update` when one of them is readable."""
        return self._begins, self._ends

    def update(self) -> None:
        """Accept new connections, and note the connections that have ended."""
        while (request := _received(self._begins)) is not None:
            # The same thread of ZeroMQ reports the end of a descriptor's last connection, then asks about its next one.
            self._note_ends()
            self._newest += 1
            version, number = request[:2]
            self._begins.send_multipart([version, number, b"200", b"", str(self._newest).encode(), b""])
        self._note_ends()

    def _note_ends(self) -> None:
        while (event := _received(self._ends)) is not None:
            self._ended[parse_monitor_message(event)["value"]] = self._newest

    def is_open(self, connection: Connection) -> bool:
        """Whether the connection had not ended at the last `update`."""
        return connection.number > self._ended.get(connection.descriptor, 0)


def connection_of(frame: zmq.Frame) -> Connection:
    """The connection on which a message arrived."""
    return Connection(int(frame.get(zmq.SRCFD)), int(frame.get("User-Id")))


def _received(socket: zmq.Socket[bytes]) -> list[bytes] | None:
    try:
        return socket.recv_multipart(zmq.NOBLOCK)
    except zmq.Again:
        return None
