"""The rank's end of the lifeline: an authenticated, encrypted channel that works while the main thread is blocked.

One ZeroMQ DEALER connects out to the notebook, so no rank listens on a port. CurveZMQ encrypts it, and the first
message contains the cluster's secret, without which the notebook ignores the peer. ZeroMQ reconnects automatically,
also to a new notebook at the same address. `on_connect` is called after each connect, and when the notebook sends
`Greet`.

A message is one of `messages.requests` or `messages.events`, followed by raw buffers. Messages to the notebook begin
with the rank's uuid.
"""

from __future__ import annotations

import math
import os
import socket
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

import zmq
from zmq.utils.monitor import parse_monitor_message

from allranks.messages.events import Answered, Done, Event, Failed
from allranks.messages.events.transfer_events import STEPS
from allranks.messages.requests import Greet, Request, RequestOfTransfer
from allranks.messages.wire import Buffer, NotUnderstood, Reader, encode, question_number

from .transfers import CannotHold, Transfers, is_large

AT_ONCE = 64
"""Maximum number of messages received in one turn of the loop: parts of a large value may arrive without a pause."""
SOON = 0.01
"""Maximum seconds for which `on_tick` and messages that can wait are put off: a cell that has just arrived runs first,
and the beginning, output and end of a short cell leave together."""
AFTER_TROUBLE = 0.2
"""Seconds until the next turn of the loop after one that raised."""

_reader = Reader(Request)
"""Made at import: ranks are forked after it, and it takes several milliseconds."""


class _Queued(NamedTuple):
    """A message that waits to be sent."""

    frames: list[Buffer]
    in_parts: bool
    question: int | None
    """The number of the question, for an `Answered`; None for all other messages."""


class RankLifeline:
    """Owns the socket. `send` may be called from any thread; the callbacks run in the lifeline's own thread.

    `on_tick` returns the seconds until it must be called again; it is called earlier if something happens.
    """

    def __init__(
        self,
        url: str,
        server_key: bytes,
        identity: bytes,
        *,
        on_connect: Callable[[], None],
        on_message: Callable[[Request, Sequence[Buffer]], None],
        on_tick: Callable[[], float],
    ) -> None:
        self._on_connect, self._on_message = on_connect, on_message
        self._on_tick, self._identity = on_tick, identity
        self._outbox: deque[_Queued] = deque()
        self._transfers = Transfers(STEPS, self._send_part)
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        os.set_blocking(self._wake_read, False)
        self._woken = False
        self._looks_at = math.inf
        """The latest `time.monotonic` at which `on_tick` is called; infinity from this call until the thread waits.

        So a thread that queues something and then finds a finite time knows that `on_tick` has yet to be called.
        """
        self._put_off_until: float | None = None
        """The `time.monotonic` until which `on_tick` is put off, or None. Used in the lifeline's thread only."""
        self._again = False
        """Whether another turn must follow at once. Used in the lifeline's thread only."""
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 500)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.RECONNECT_IVL, 50)
        self._socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
        # A vanished network closes no connection: send heartbeats, and have both ends give up after 6 s of silence.
        self._socket.setsockopt(zmq.HEARTBEAT_IVL, 2000)
        self._socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 6000)
        self._socket.setsockopt(zmq.HEARTBEAT_TTL, 6000)
        # While not connected, messages are dropped rather than queued: on_connect sends again whatever still matters.
        self._socket.setsockopt(zmq.IMMEDIATE, 1)
        self._socket.curve_serverkey = server_key
        self._socket.curve_publickey, self._socket.curve_secretkey = zmq.curve_keypair()
        self._events = self._socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        self._poller = zmq.Poller()
        for each in (self._socket, self._events, self._wake_read):
            self._poller.register(each, zmq.POLLIN)
        self._watched: list[tuple[socket.socket, socket.socket | None]] = []
        self._url = url
        self.connected = False
        self._thread = threading.Thread(target=self._run, name="allranks-agent", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def send(self, event: Event, buffers: Sequence[Buffer] = (), *, can_wait: bool = False) -> None:
        """Queue a message; if connected, it is sent at once, or within `SOON` seconds if it `can_wait`."""
        # Messages sent later may overtake a message in parts; none relies on arriving after it.
        in_parts = isinstance(event, (Answered, Done)) and is_large(buffers)
        question = event.number if isinstance(event, Answered) else None
        self._outbox.append(_Queued([encode(event), *buffers], in_parts, question))
        if not self._is_current():  # each turn of the thread ends by sending the queue
            self.wake_soon() if can_wait else self.wake()

    def drop_values(self) -> None:
        """Stop sending cells' large values, but not answers to questions. Must be called in the lifeline's thread."""
        for each in list(self._outbox):
            if each.in_parts and each.question is None:
                self._outbox.remove(each)
        self._transfers.drop(lambda question: question is None)

    def watch(self, opened: socket.socket, before: socket.socket | None = None) -> None:
        """Also call `on_tick` when the socket `opened` is readable. Closes `before`, the socket that it replaces."""
        self._watched.append((opened, before))
        self.wake()

    def wake(self) -> None:
        """Wake the thread, so that it calls `on_tick` at once."""
        if self._is_current():
            self._again = True
        elif not self._woken:
            self._woken = True
            try:
                os.write(self._wake_write, b"!")
            except BlockingIOError:
                pass

    def wake_soon(self) -> None:
        """Have `on_tick` called within about `SOON` seconds; does nothing if it is due by then anyway.

        Waking the thread has a cost: the caller may then have to wait for the GIL.
        """
        if self._looks_at > time.monotonic() + SOON:
            self.wake()

    def tick_later(self) -> None:
        """Put `on_tick` off by up to `SOON` seconds, unless `wake` is called: the main thread goes first.

        Must be called in the lifeline's thread, before the main thread gets the work that goes first: otherwise the
        first message of that work would wake this thread.
        """
        if self._put_off_until is None:
            self._put_off_until = self._looks_at = time.monotonic() + SOON

    def _is_current(self) -> bool:
        return threading.get_ident() == self._thread.ident

    def close(self, timeout: float) -> bool:
        """Send the queue, close the socket and end the thread, for a process that is about to exit.

        Waits at most `timeout` seconds; returns False if that was not enough.
        """
        self._closes = True
        return self.flushed(timeout)

    def flushed(self, timeout: float) -> bool:
        """Wait until the queue has been handed to ZeroMQ's thread, or dropped for lack of a connection.

        Returns False if that takes more than `timeout` seconds.
        """
        done = threading.Event()
        self._flush_waiter = done
        self.wake()
        return done.wait(timeout)

    _flush_waiter: threading.Event | None = None
    _closes = False

    def _run(self) -> None:
        self._socket.connect(self._url)
        wait = 0.0
        while True:
            try:
                self._looks_at = time.monotonic() + wait
                self._again = False
                wait = self._turn(dict(self._poller.poll(max(1, math.ceil(wait * 1000)))))
                if self._again:
                    wait = 0.0
            except Exception:  # the rank needs its agent: go on, and show this in the next cell
                traceback.print_exc()
                wait = AFTER_TROUBLE

    def _turn(self, ready: dict[object, int]) -> float:
        if woken := self._wake_read in ready:
            os.read(self._wake_read, 4096)
        self._woken = False  # in every turn: Ctrl-C may end `wake` before it writes
        while self._watched:
            opened, before = self._watched.pop(0)
            self._poller.register(opened, zmq.POLLIN)
            if before is not None:
                self._poller.unregister(before)
                before.close()
        if self._events in ready:
            self._handle_event()
        for _ in range(AT_ONCE if self._socket in ready else 0):
            self._receive()
            if not self._socket.poll(0):  # an attempt that finds nothing takes twice as long
                break
        wait = 0.0 if woken or self._put_off_until is None else self._put_off_until - time.monotonic()
        if wait <= 0:
            self._put_off_until, self._looks_at = None, math.inf
            wait = self._on_tick()
        self._send_queued()
        return wait

    def _handle_event(self) -> None:
        event = parse_monitor_message(self._events.recv_multipart())["event"]
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self.connected = True
            self._forget_unsent()
            self._on_connect()
        elif self.connected:
            self.connected = False

    def _receive(self) -> None:
        try:
            first, *buffers = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return
        self._take(first.buffer, [buffer.buffer for buffer in buffers])

    def _take(self, message: Buffer, buffers: Sequence[Buffer]) -> None:
        try:
            request = _reader.read(message)
            if isinstance(request, Greet):
                self._on_connect()
            elif not isinstance(request, RequestOfTransfer):
                self._on_message(request, buffers)
            elif (whole := self._transfers.take(request, buffers)) is not None:
                self._take(*whole)
        except NotUnderstood as error:
            print(f"allranks: a message to this rank was dropped: {error}", file=sys.stderr)
            if (number := question_number(message)) is not None:
                self.send(
                    Failed(number, "NotUnderstood", f"this rank, of another version perhaps, cannot read: {error}")
                )
        except CannotHold as error:
            if error.question is not None:
                self.send(Failed(error.question, "MemoryError", str(error)))

    def _send_part(self, event: Event, buffers: Sequence[Buffer]) -> None:
        with suppress(zmq.Again):  # the connection is lost, which clears the transfer, too
            self._send_frames([encode(event), *buffers])

    def _send_frames(self, frames: Sequence[Buffer]) -> None:
        self._socket.send_multipart([self._identity, *frames], zmq.NOBLOCK, copy=len(frames) == 1)

    def _forget_unsent(self) -> None:
        self._outbox.clear()
        self._transfers.clear()

    def _send_queued(self) -> None:
        waiter, self._flush_waiter = self._flush_waiter, None
        if not self.connected:
            self._forget_unsent()
        while self._outbox:
            frames, in_parts, question = self._outbox[0]  # stays queued if it cannot be sent now
            try:
                if in_parts:
                    self._transfers.begin(bytes(frames[0]), frames[1:], question)
                else:
                    self._send_frames(frames)
            except zmq.Again:
                break
            self._outbox.popleft()
        if waiter is None:
            return
        if self._closes:
            self._shut()
        waiter.set()
        if self._closes:
            raise SystemExit  # ends this thread only

    def _shut(self) -> None:
        self._socket.disable_monitor()
        self._events.close()
        self._socket.close()
        self._context.term()  # waits until all messages are sent (see LINGER)
