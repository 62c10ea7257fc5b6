"""The notebook's end of the lifeline.

One thread owns the sockets: the ROUTER all ranks connect to, and those by which ZeroMQ reports that connections begin
and end (`messages.connections`). A killed process closes its connection at once, so its death is known within
milliseconds.

A question ends with ConnectionError where its rank has no connection, loses it, or is known to be stopped. Silence
alone proves nothing: a rank that pickles a large value holds Python's lock. ZeroMQ answers heartbeats in a thread that
needs no lock, so a lost connection does. A cell that was lost with one is sent again (`messages.delivery`).
"""

from __future__ import annotations

import hmac
import itertools
import logging
import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

import zmq
from msgspec import structs, to_builtins

from .cell_options import CellRequest
from .connections import Connection, Connections, connection_of
from .delivery import Deliveries
from .events import Answered, CellEvent, Done, Event, EventOfTransfer, Failed, Hello, State, TaskHello
from .questions import CLOSED, LOST, STOPPED, Questions, Reply
from .requests import Answer, Greet, Question, Request, RunCell
from .requests.transfers import KINDS
from .transfers import CannotHold, Transfers, is_large
from .wire import Buffer, NotUnderstood, Reader, encode

AT_ONCE = 1000  # messages taken before orders are sent again: endless output must not keep an interrupt from a rank
LOOK_EVERY = 0.25  # seconds between two looks at what ranks have yet to answer
READ_WITHIN = 1.0  # seconds until a rank without a connection counts as gone, though its messages may not all be read
AFTER_TROUBLE = 0.05  # seconds until this thread goes on after an error of its own
LONGEST_COMPLAINT = 300  # characters of the log's line on a message that was not understood
Handler = Callable[[str, Event, Sequence[Buffer]], None]
"""Called with a rank's uuid, its message and the buffers of that, in the lifeline's thread."""
A = TypeVar("A", bound=Answer)
_log = logging.getLogger("allranks")


class Lifeline:
    """Takes connections from the moment it is made; messages are handled once `listen` is called."""

    _on_message: Handler
    _on_gone: Callable[[str], None]
    _is_stopped: Callable[[str], bool]

    def __init__(self, token: str, *, url: str = "tcp://127.0.0.1:*", keys: tuple[str, str] | None = None) -> None:
        """Bind to `url`; `keys` are the public and secret CurveZMQ key, new ones if not given.

        Raises zmq.ZMQError where the address is taken.
        """
        self._token = token
        public, secret = zmq.curve_keypair()
        self.keys = keys or (public.decode(), secret.decode())
        self._context = zmq.Context()
        try:
            self._bind(url)
        except BaseException:
            self._context.destroy(linger=0)  # what stays open would block the interpreter when it is collected
            raise
        self._connected: set[bytes] = set()
        """Ranks that have said hello on a connection that has not ended."""
        self._greeted: dict[bytes, Connection] = {}
        """The connection on which each rank said hello last: its messages are those that come by it."""
        self._routes: dict[bytes, bytes] = {}
        """The routing id of that connection."""
        self._unknown: dict[bytes, Connection] = {}
        """The last connection by which a rank sent messages without a hello, and on which it was asked for one."""
        self._ended_at: dict[bytes, float] = {}
        """When the connections ended of ranks that are not yet reported as gone."""
        self._outbox: deque[tuple[list[Any], int | None]] = deque()
        """Messages, each with the number of the question that it asks."""
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        self._sender = secrets.token_hex(8)
        self._questions, self._deliveries = Questions(), Deliveries(self._send)
        self._transfers: dict[bytes, Transfers] = {}
        self._looked_at = 0.0
        self._transfer_numbers = itertools.count(1)
        self._reader = Reader(Event)
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="allranks-lifeline", daemon=True)

    def listen(
        self,
        *,
        on_message: Handler,
        on_gone: Callable[[str], None],
        is_stopped: Callable[[str], bool] = lambda _uuid: False,
    ) -> None:
        """Handle what ranks send, from now on.

        `is_stopped` says whether a rank's process is known to be stopped, so that no answer can come.
        """
        self._on_message, self._on_gone, self._is_stopped = on_message, on_gone, is_stopped
        self._thread.start()

    def _bind(self, url: str) -> None:
        self._router = self._context.socket(zmq.ROUTER)
        self._connections = Connections(self._context, self._router)
        self._router.curve_server = True
        self._router.curve_secretkey = self.keys[1].encode()
        # Each connection has a routing id of ZeroMQ's own. If ranks chose theirs, one that connects again would have to
        # take it over from the connection before (ROUTER_HANDOVER), and the heartbeats on that one could end this
        # process: "Assertion failed: !_io_error (src/stream_engine_base.cpp:310)" (libzmq 4.3.5).
        for option, value in ((zmq.SNDHWM, 0), (zmq.RCVHWM, 0), (zmq.LINGER, 200)):
            self._router.setsockopt(option, value)
        for option, value in ((zmq.HEARTBEAT_IVL, 2000), (zmq.HEARTBEAT_TIMEOUT, 6000)):  # as in `rank_lifeline`
            self._router.setsockopt(option, value)
        self._router.bind(url)
        self.url = str(self._router.get_string(zmq.LAST_ENDPOINT))

    def execute(self, uuid: str, code: str, cell: CellRequest, after: Sequence[str] = ()) -> None:
        """Send a cell to a rank, again where it gets lost; it runs `after` these requests of ipyparallel's client."""
        cell = structs.replace(cell, sender=self._sender)
        request = RunCell(code, to_builtins(cell), tuple(after))
        self._deliveries.add(uuid, cell.number, request)
        self._send(uuid, request)

    def tell(self, uuid: str, request: Request, buffers: Sequence[Buffer] = ()) -> None:
        """Send a request that needs no answer. A stop reaches a rank without a connection when it has one again."""
        self._deliveries.told(uuid, request)
        self._send(uuid, request, buffers)

    def ask(self, uuid: str, question: Question[A], buffers: Sequence[Buffer] = ()) -> Future[Reply[A]]:
        """Send a question; the future has the answer, or RequestFailed, or ConnectionError where none can come."""
        number, future = self._questions.put(uuid, question)
        self._send(uuid, structs.replace(question, number=number), buffers, number)
        if self._closing:  # the thread that sends it may have ended
            self._questions.give_up(number, CLOSED)
        return future

    def moved(self, uuid: str) -> tuple[int, int]:
        """How many bytes of large messages have moved from and to a rank, and of how many."""
        return transfers.moved if (transfers := self._transfers.get(uuid.encode())) is not None else (0, 0)

    def _send(self, uuid: str, request: Request, buffers: Sequence[Buffer] = (), question: int | None = None) -> None:
        self._outbox.append(([uuid.encode(), encode(request), *buffers], question))
        self._wake()

    def close(self, *, deliver: bool = False) -> None:
        """Stop listening, once ranks have the cells that they were sent (`deliver`); questions get ConnectionError."""
        if deliver:
            self._deliveries.wait(self._connected)
        self._closing = True
        if self._thread.ident is None:  # it has never listened
            return self._shut()
        self._wake()
        self._thread.join(5)

    def _wake(self) -> None:
        with suppress(OSError):  # it has been woken often enough, or is closed
            os.write(self._wake_write, b"!")

    def _run(self) -> None:
        poller = zmq.Poller()
        for socket in (self._router, *self._connections.sockets, self._wake_read):
            poller.register(socket, zmq.POLLIN)
        while not self._closing:
            try:
                self._turn(poller)
            except Exception:  # without this thread all ranks would be lost
                _log.exception("what a rank sent could not be handled")
                time.sleep(AFTER_TROUBLE)
        self._shut()

    def _turn(self, poller: zmq.Poller) -> None:
        ready = dict(poller.poll(int(LOOK_EVERY * 1000) if self._waited_for() else None))
        if self._wake_read in ready:
            os.read(self._wake_read, 4096)
        self._send_queued()
        self._connections.update()
        all_read = self._receive_all()
        self._report_gone(all_read, time.monotonic())
        self._look(time.monotonic())
        for transfers in self._transfers.values():
            transfers.drop_unwanted()

    def _send_queued(self) -> None:
        while self._outbox:
            frames, question = self._outbox.popleft()
            if question is not None and frames[0] not in self._connected:  # ZeroMQ would drop it
                self._questions.give_up(question, LOST)
                continue
            try:
                if question is not None and is_large(frames[2:]):
                    self._transfers_with(frames[0]).begin(frames[1], frames[2:], question)
                else:
                    self._send_to(frames[0], frames[1:])
            except Exception as error:
                if question is not None:
                    self._questions.give_up(question, f"it could not be sent: {error}")
                raise

    def _send_to(self, identity: bytes, frames: Sequence[Buffer]) -> None:
        """Send to a rank; ZeroMQ drops it where the rank's connection has ended."""
        if (route := self._routes.get(identity)) is not None:
            self._router.send_multipart([route, *frames], copy=len(frames) < 2)

    def _transfers_with(self, identity: bytes) -> Transfers:
        def send(request: Request, buffers: Sequence[Buffer]) -> None:
            self._send_to(identity, [encode(request), *buffers])

        if identity not in self._transfers:
            self._transfers[identity] = Transfers(KINDS, send, self._questions.is_open, self._transfer_numbers)
        return self._transfers[identity]

    def _lost(self, identity: bytes) -> None:
        """What was under way on a connection is lost with it."""
        self._transfers.pop(identity, None)
        self._questions.give_up_on(identity.decode(), LOST)

    def _waited_for(self) -> set[str]:
        """The ranks that have yet to answer something, and that are there to do it."""
        return {uuid for uuid in self._questions.asked if uuid.encode() in self._connected}

    def _look(self, now: float) -> None:
        """Give up what cannot come."""
        if now - self._looked_at < LOOK_EVERY:
            return
        self._looked_at = now
        for uuid in self._waited_for():
            if self._is_stopped(uuid):
                self._questions.give_up_on(uuid, STOPPED)

    def _shut(self) -> None:
        for uuid in self._questions.asked:
            self._questions.give_up_on(uuid, CLOSED)
        self._router.disable_monitor()
        self._context.destroy(linger=200)
        # Whoever tells something later must not write into what has this number then.
        wake, self._wake_write = self._wake_write, -1
        os.close(self._wake_read)
        os.close(wake)

    def _receive_all(self) -> bool:
        """Take the messages that are there, up to a limit; returns whether there are no more."""
        for _ in range(AT_ONCE):
            try:
                route, identity, first, *rest = self._router.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return True
            except ValueError:
                continue  # too short: a stranger's
            try:
                uuid = identity.bytes.decode()
            except UnicodeDecodeError:
                continue
            try:
                self._receive(route.bytes, uuid, first, [frame.buffer for frame in rest])
            except NotUnderstood as error:
                if self._greeted.get(identity.bytes) == connection_of(first):  # strangers are not worth a line
                    _log.warning("a message of %s was dropped: %s", uuid, str(error)[:LONGEST_COMPLAINT])
            except Exception:  # this thread must go on whatever one rank sends
                _log.exception("a message of %s could not be handled", uuid)
        return not self._router.poll(0)

    def _receive(self, route: bytes, uuid: str, first: zmq.Frame, buffers: list[Buffer]) -> None:
        identity, connection = uuid.encode(), connection_of(first)
        event = self._reader.read(first.buffer)
        if isinstance(event, (Hello, TaskHello)):
            if not hmac.compare_digest(event.token.encode(errors="replace"), self._token.encode()):
                return
            before = self._greeted.get(identity, connection)
            if before.number > connection.number:  # read late: it has ended
                return
            if identity in self._connected and before != connection:
                self._lost(identity)  # answers, too, may be lost with the connection that was there before
            self._greeted[identity], self._routes[identity] = connection, route
            self._connected.add(identity)
            self._ended_at.pop(identity, None)
        elif self._greeted.get(identity) != connection:
            self._ask_for_hello(route, identity, connection)
            return
        if isinstance(event, EventOfTransfer):
            self._receive_transferred(uuid, event, buffers)
        else:
            self._handle(uuid, event, buffers)

    def _receive_transferred(self, uuid: str, about: EventOfTransfer, frames: Sequence[Buffer]) -> None:
        try:
            whole = self._transfers_with(uuid.encode()).take(about, frames)
        except CannotHold as error:
            if error.question is not None:
                self._questions.answered(uuid, Failed(error.question, "MemoryError", str(error), ""), ())
            elif isinstance(done := self._reader.read(error.message), Done):  # the cell has ended all the same
                self._handle(uuid, structs.replace(done, no_value=str(error)), ())
            return
        if whole is not None and not isinstance(event := self._reader.read(whole[0]), EventOfTransfer):
            self._handle(uuid, event, whole[1])

    def _handle(self, uuid: str, event: Event, buffers: Sequence[Buffer]) -> None:
        if isinstance(event, (Answered, Failed)):
            self._questions.answered(uuid, event, buffers)
            return
        if isinstance(event, (CellEvent, Hello, State)):
            self._deliveries.begun(uuid, event.cell)
        if isinstance(event, Hello):
            self._deliveries.back(uuid)
        self._on_message(uuid, event, buffers)

    def _ask_for_hello(self, route: bytes, identity: bytes, connection: Connection) -> None:
        """A message of a rank, or of a stranger under its name: only a rank can say hello. Asks once a connection."""
        if identity in self._greeted and self._unknown.get(identity) != connection:
            self._unknown[identity] = connection
            self._router.send_multipart([route, encode(Greet())])

    def _report_gone(self, all_read: bool, now: float) -> None:
        """Report the ranks whose connection has ended, once their messages are read."""
        for identity in [each for each in self._connected if not self._connections.is_open(self._greeted[each])]:
            if all_read or now - self._ended_at.setdefault(identity, now) > READ_WITHIN:
                self._connected.remove(identity)
                self._ended_at.pop(identity, None)
                self._lost(identity)
                self._on_gone(identity.decode())
