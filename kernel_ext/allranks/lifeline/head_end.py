"""The notebook's end of the lifeline.

One thread owns the sockets: the ROUTER to which all ranks connect, and the sockets on which ZeroMQ reports that
connections begin and end (`lifeline.connections`). The system closes the connection of a killed process at once, so
its death is known within milliseconds.

A question fails with ConnectionError if its rank has no connection, loses it, or is known to be stopped, and if the
lifeline is closed. Silence alone proves nothing: a rank that pickles a large value holds the GIL. A lost connection is
proof, since ZeroMQ answers heartbeats in a thread that does not need the GIL. A cell that was lost with a connection is
sent again (`lifeline.delivery`).
"""

from __future__ import annotations

import hmac
import itertools
import logging
import math
import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

import zmq
from msgspec import structs, to_builtins

from allranks.messages.cell_options import CellRequest
from allranks.messages.events import Answered, CellEvent, Done, Event, EventOfTransfer, Failed, Hello, State, TaskHello
from allranks.messages.requests import Acknowledge, Answer, Greet, Question, Request, RunCell
from allranks.messages.requests.transfer_requests import STEPS
from allranks.messages.wire import Buffer, NotUnderstood, Reader, encode

from .connections import Connection, Connections, connection_of
from .delivery import Before, Deliveries
from .open_questions import CLOSED, LOST, STOPPED, Questions, Reply
from .transfers import CannotHold, Transfers, is_large

AT_ONCE = 1000  # maximum number of messages received before requests are sent: output must not delay an interrupt
LOOK_EVERY = 0.25  # seconds between two checks of open questions
READ_WITHIN = 1.0  # seconds until a disconnected rank counts as gone, even if some of its messages are unread
ACKNOWLEDGED_WITHIN = 0.05  # seconds until an `Acknowledge` is sent: the rank may have the next cell by then
AFTER_TROUBLE = 0.05  # seconds that the lifeline's thread pauses after an error
LONGEST_COMPLAINT = 300  # characters logged about a message that was not understood
Handler = Callable[[str, Event, Sequence[Buffer]], None]
"""Called in the lifeline's thread with a rank's uuid, its message and the message's buffers."""
A = TypeVar("A", bound=Answer)
_log = logging.getLogger("allranks")


class Lifeline:
    """The notebook's end. It accepts connections once constructed, and handles messages once `listen` is called."""

    _on_message: Handler
    _on_gone: Callable[[str], None]
    _is_stopped: Callable[[str], bool]

    def __init__(self, token: str, *, url: str = "tcp://127.0.0.1:*", keys: tuple[str, str] | None = None) -> None:
        """Bind to `url`. `keys` are the public and the secret CurveZMQ key, by default a new pair.

        Raises zmq.ZMQError if the address is in use.
        """
        self._token = token
        public, secret = zmq.curve_keypair()
        self.keys = keys or (public.decode(), secret.decode())
        self._context = zmq.Context()
        try:
            self._bind(url)
        except BaseException:
            self._context.destroy(linger=0)  # a socket left open would block the interpreter when collected
            raise
        self._connected: set[bytes] = set()
        """Ranks that have sent a hello on a connection that is still open."""
        self._greeted: dict[bytes, Connection] = {}
        """The connection of each rank's last hello: only messages on it are handled."""
        self._routes: dict[bytes, bytes] = {}
        """The routing id of each rank's connection in `_greeted`."""
        self._unknown: dict[bytes, Connection] = {}
        """The last connection on which each rank sent a message without a hello, and was asked for a hello."""
        self._ended_at: dict[bytes, float] = {}
        """By rank, the `time.monotonic` at which its connection ended, until it reconnects or is reported as gone."""
        self._some_may_be_gone = False
        """Whether connections may have ended that are not reported yet."""
        self._outbox: deque[tuple[list[Any], int | None]] = deque()
        """Messages to send, each with the number of its question, or None."""
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        self._acknowledged: dict[bytes, tuple[float, Acknowledge]] = {}
        """By rank, an acknowledgement that waits, and the `time.monotonic` at which it is sent; the earliest first."""
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
        """Start to handle messages of ranks.

        `on_gone` is called with the uuid of each rank whose connection has ended. `is_stopped` says whether a rank's
        process is known to be stopped, so that it cannot answer.
        """
        self._on_message, self._on_gone, self._is_stopped = on_message, on_gone, is_stopped
        self._thread.start()

    def _bind(self, url: str) -> None:
        self._router = self._context.socket(zmq.ROUTER)
        self._connections = Connections(self._context, self._router)
        self._router.curve_server = True
        self._router.curve_secretkey = self.keys[1].encode()
        # ZeroMQ chooses the routing id of each connection. If ranks chose it, a rank that reconnects would have to take
        # it over from its previous connection (ROUTER_HANDOVER), and heartbeats on that connection could end this
        # process: "Assertion failed: !_io_error (src/stream_engine_base.cpp:310)" (libzmq 4.3.5).
        for option, value in ((zmq.SNDHWM, 0), (zmq.RCVHWM, 0), (zmq.LINGER, 200)):
            self._router.setsockopt(option, value)
        for option, value in ((zmq.HEARTBEAT_IVL, 2000), (zmq.HEARTBEAT_TIMEOUT, 6000)):  # as in `rank_end`
            self._router.setsockopt(option, value)
        self._router.bind(url)
        self.url = str(self._router.get_string(zmq.LAST_ENDPOINT))

    def execute(self, code: str, cell: CellRequest, ranks: Mapping[str, Before]) -> None:
        """Send a cell to `ranks`, given by uuid, and again to a rank for which it gets lost."""
        sent = to_builtins(structs.replace(cell, sender=self._sender))
        messages: dict[Before, tuple[RunCell, bytes]] = {}
        for uuid, each in ranks.items():
            before = Before(each.comms, tuple(each.after))
            if before not in messages:
                request = RunCell(code, {**sent, "comms": before.comms}, tuple(before.after))
                messages[before] = request, encode(request)
            request, message = messages[before]
            self._deliveries.add(uuid, cell.number, request)
            self._queue(uuid, request, (), None, message)
        self._wake()

    def tell(self, uuid: str, request: Request, buffers: Sequence[Buffer] = ()) -> None:
        """Send a request without an answer. An `Interrupt` to a disconnected rank is sent when it reconnects.

        An `Acknowledge` is sent after `ACKNOWLEDGED_WITHIN` seconds, and replaces an earlier one that still waits.
        """
        if isinstance(request, Acknowledge):
            identity = uuid.encode()
            self._acknowledged.pop(identity, None)  # the new one goes to the end
            self._acknowledged[identity] = time.monotonic() + ACKNOWLEDGED_WITHIN, request
            self._wake()
            return
        self._deliveries.told(uuid, request)
        self._send(uuid, request, buffers)

    def ask(self, uuid: str, question: Question[A], buffers: Sequence[Buffer] = ()) -> Future[Reply[A]]:
        """Send a question; return the future of its answer, which may raise RequestFailed or ConnectionError."""
        number, future = self._questions.put(uuid, question)
        self._send(uuid, structs.replace(question, number=number), buffers, number)
        if self._closing:  # the thread that sends it may have ended
            self._questions.give_up(number, CLOSED)
        return future

    def forget(self, uuid: str) -> None:
        """Drop the cells and the stop kept for a rank that was replaced: it must not run them if it connects again."""
        self._deliveries.forget(uuid)

    def moved(self, uuid: str) -> tuple[int, int]:
        """Bytes transferred so far of the large messages now under way from and to a rank, and their total size."""
        return transfers.moved if (transfers := self._transfers.get(uuid.encode())) is not None else (0, 0)

    def _send(self, uuid: str, request: Request, buffers: Sequence[Buffer] = (), question: int | None = None) -> None:
        self._queue(uuid, request, buffers, question)
        self._wake()

    def _queue(
        self,
        uuid: str,
        request: Request,
        buffers: Sequence[Buffer] = (),
        question: int | None = None,
        encoded: bytes | None = None,
    ) -> None:
        """Queue a request; `encoded` is its message, if that is known."""
        self._outbox.append(([uuid.encode(), encode(request) if encoded is None else encoded, *buffers], question))

    def close(self, *, deliver: bool = False) -> None:
        """Stop listening; open questions fail with ConnectionError.

        With `deliver`, first wait until the connected ranks have begun their cells, for at most `BEGUN_WITHIN` seconds.
        """
        if deliver:
            self._deliveries.wait(self._connected)
        self._closing = True
        if self._thread.ident is None:  # `listen` was never called
            return self._shut()
        self._wake()
        self._thread.join(5)

    def _wake(self) -> None:
        """Wake the lifeline's thread, which itself looks at its queue before it waits."""
        if threading.get_ident() != self._thread.ident:
            with suppress(OSError):  # the pipe is full or closed
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
        self._send_acknowledged(math.inf)
        self._shut()

    def _turn(self, poller: zmq.Poller) -> None:
        ready = dict(poller.poll(self._pause()))
        if self._wake_read in ready:
            os.read(self._wake_read, 4096)
        self._send_queued()
        self._send_acknowledged(time.monotonic())
        if any(socket in ready for socket in self._connections.sockets):
            self._connections.update()
            self._some_may_be_gone = True
        all_read = self._receive_all()
        if self._some_may_be_gone:
            self._report_gone(all_read, time.monotonic())
        self._look(time.monotonic())
        for transfers in self._transfers.values():
            transfers.drop_unwanted()

    def _pause(self) -> int | None:
        """Maximum milliseconds to wait for a message; None if there is no maximum."""
        if self._outbox or self._some_may_be_gone:
            return 0
        looks = [LOOK_EVERY] if self._waited_for() else []
        looks += [max(0.0, due - time.monotonic()) for due, _ in [*self._acknowledged.values()][:1]]
        return math.ceil(1000 * min(looks)) if looks else None

    def _send_acknowledged(self, until: float) -> None:
        """Send the acknowledgements that are due by `until`."""
        for identity, (due, _) in [*self._acknowledged.items()]:
            if due > until:
                break
            if (waits := self._acknowledged.pop(identity, None)) is not None:  # another thread may have replaced it
                self._send_to(identity, [encode(waits[1])])

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
        """Send a message to a rank; ZeroMQ drops it if the rank's connection has ended."""
        if (route := self._routes.get(identity)) is not None:
            self._router.send_multipart([route, *frames], copy=len(frames) < 2)

    def _transfers_with(self, identity: bytes) -> Transfers:
        def send(request: Request, buffers: Sequence[Buffer]) -> None:
            self._send_to(identity, [encode(request), *buffers])

        if identity not in self._transfers:
            self._transfers[identity] = Transfers(STEPS, send, self._questions.is_open, self._transfer_numbers)
        return self._transfers[identity]

    def _lost(self, identity: bytes) -> None:
        """Drop the transfers and fail the questions that were lost with a rank's connection."""
        self._transfers.pop(identity, None)
        self._questions.give_up_on(identity.decode(), LOST)

    def _waited_for(self) -> set[str]:
        """The connected ranks that have not answered a question yet."""
        return {uuid for uuid in self._questions.asked if uuid.encode() in self._connected}

    def _look(self, now: float) -> None:
        """Fail the questions to ranks that are stopped, every `LOOK_EVERY` seconds."""
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
        # A later `_wake` must not write to another file with the same descriptor.
        wake, self._wake_write = self._wake_write, -1
        os.close(self._wake_read)
        os.close(wake)

    def _receive_all(self) -> bool:
        """Receive the waiting messages, at most `AT_ONCE`; return whether all were read."""
        for _ in range(AT_ONCE):
            if not self._router.poll(0):
                return True
            route, identity = self._router.recv(), self._router.recv()
            if not self._router.get(zmq.RCVMORE):
                continue  # too short, so from an unknown peer
            first, *rest = self._router.recv_multipart(copy=False)
            try:
                uuid = identity.decode()
            except UnicodeDecodeError:
                continue
            try:
                self._receive(route, uuid, first, [frame.buffer for frame in rest])
            except NotUnderstood as error:
                if self._greeted.get(identity) == connection_of(first):  # unknown peers are not logged
                    _log.warning("a message of %s was dropped: %s", uuid, str(error)[:LONGEST_COMPLAINT])
            except Exception:  # this thread must go on, whatever a rank sends
                _log.exception("a message of %s could not be handled", uuid)
        return not self._router.poll(0)

    def _receive(self, route: bytes, uuid: str, first: zmq.Frame, buffers: list[Buffer]) -> None:
        identity, connection = uuid.encode(), connection_of(first)
        event = self._reader.read(first.buffer)
        if isinstance(event, (Hello, TaskHello)):
            if not hmac.compare_digest(event.token.encode(errors="replace"), self._token.encode()):
                return
            before = self._greeted.get(identity, connection)
            if before.number > connection.number:  # a late hello of a connection that has ended
                return
            if identity in self._connected and before != connection:
                self._lost(identity)  # answers may be lost with the previous connection
            self._greeted[identity], self._routes[identity] = connection, route
            self._connected.add(identity)
            self._ended_at.pop(identity, None)
            self._some_may_be_gone = True  # the connection may have ended before its hello was read
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
            elif isinstance(done := self._reader.read(error.message), Done):  # only the value of the cell is lost
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
        """Ask the sender for a hello, once for each connection; only the rank itself can send one, not an impostor.

        If no rank with this uuid has greeted before, the sender is ignored.
        """
        if identity in self._greeted and self._unknown.get(identity) != connection:
            self._unknown[identity] = connection
            self._router.send_multipart([route, encode(Greet())])

    def _report_gone(self, all_read: bool, now: float) -> None:
        """Report the ranks whose connection has ended, once their messages are read or `READ_WITHIN` has passed."""
        for identity in [each for each in self._connected if not self._connections.is_open(self._greeted[each])]:
            if all_read or now - self._ended_at.setdefault(identity, now) > READ_WITHIN:
                self._connected.remove(identity)
                self._ended_at.pop(identity, None)
                self._lost(identity)
                self._on_gone(identity.decode())
        self._some_may_be_gone = not all_read
