"""The notebook's end of the lifeline, and of the way cells take to the engines.

One thread owns three sockets: the ROUTER all ranks connect to, the DEALER through which ipyparallel's controller passes
``execute_request`` to an engine, and the monitor that tells when a rank's connection closed. A killed process closes
its connection at once, so its death is known within milliseconds.
"""

from __future__ import annotations

import hmac
import itertools
import json
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import zmq
from jupyter_client.session import Session
from zmq.utils.monitor import parse_monitor_message

AT_ONCE = 1000
"""Messages taken before orders are sent again: ranks that print without end must not keep an interrupt from them."""
Header = dict[str, Any]
Handler = Callable[[str, Header, Sequence[Any]], None]
"""Called with a rank's uuid, the message's header and its buffers, in the lifeline's thread."""


class Lifeline:
    """Listens from the moment it is made."""

    def __init__(
        self,
        token: str,
        *,
        on_message: Handler,
        on_gone: Callable[[str], None],
        url: str = "tcp://127.0.0.1:*",
        keys: tuple[str, str] | None = None,
    ) -> None:
        """Bind to `url`; `keys` are the public and secret CurveZMQ key, made anew where not given.

        Raises zmq.ZMQError where the address is taken.
        """
        self._token, self._on_message, self._on_gone = token, on_message, on_gone
        self._context = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        public, secret = zmq.curve_keypair()
        self.keys = keys or (public.decode(), secret.decode())
        self._router.curve_server = True
        self._router.curve_secretkey = self.keys[1].encode()
        for option, value in ((zmq.ROUTER_HANDOVER, 1), (zmq.SNDHWM, 0), (zmq.RCVHWM, 0), (zmq.LINGER, 200)):
            self._router.setsockopt(option, value)
        self._router.setsockopt(zmq.HEARTBEAT_IVL, 2000)
        self._router.setsockopt(zmq.HEARTBEAT_TIMEOUT, 6000)
        self._events = self._router.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._router.bind(url)
        self.url = str(self._router.get_string(zmq.LAST_ENDPOINT))
        self._mux: zmq.Socket[bytes] | None = None
        self._session: Session | None = None
        self._peers: dict[bytes, int] = {}
        self._greeted: dict[bytes, int] = {}
        self._outbox: deque[tuple[zmq.Socket[bytes], list[Any]]] = deque()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        self._questions: dict[int, tuple[str, Future[tuple[Header, list[Any]]]]] = {}
        self._numbers = itertools.count(1)
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="allranks-lifeline", daemon=True)
        self._thread.start()

    def connect_engines(self, info: Mapping[str, Any]) -> None:
        """Learn the way to the engines from the controller's client connection info."""
        from ipyparallel.util import _disable_session_extract_dates

        _disable_session_extract_dates()
        session = Session(key=info["key"].encode(), signature_scheme=info["signature_scheme"])
        mux = self._context.socket(zmq.DEALER)
        mux.setsockopt(zmq.LINGER, 200)
        if info.get("curve_serverkey"):
            mux.curve_serverkey = info["curve_serverkey"].encode()
            mux.curve_publickey, mux.curve_secretkey = zmq.curve_keypair()
        mux.connect(f"{info['interface']}:{info['mux']}")
        self._session, self._mux = session, mux
        self._wake()

    def execute(self, uuid: str, code: str, options: Header) -> None:
        """Send a cell to one engine: an ordinary ``execute_request``, marked as ours in its metadata."""
        assert self._session is not None and self._mux is not None
        content = {
            "code": code,
            "silent": False,
            "store_history": True,
            "user_expressions": {},
            "allow_stdin": False,
            "stop_on_error": False,
        }
        message = self._session.msg("execute_request", content=content, metadata={"allranks": options})
        self._outbox.append((self._mux, self._session.serialize(message, ident=uuid.encode())))
        self._wake()

    def tell(self, uuid: str, order: Header, buffers: Sequence[Any] = ()) -> None:
        """Send an order that needs no answer."""
        self._outbox.append((self._router, [uuid.encode(), json.dumps(order).encode(), *buffers]))
        self._wake()

    def ask(self, uuid: str, order: Header, buffers: Sequence[Any] = ()) -> Future[tuple[Header, list[Any]]]:
        """Send an order; the future has the answer's header and buffers, or ConnectionError if the rank goes away."""
        number = next(self._numbers)
        future: Future[tuple[Header, list[Any]]] = Future()
        self._questions[number] = (uuid, future)
        self.tell(uuid, {**order, "ask": number}, buffers)
        return future

    def close(self) -> None:
        """Stop listening; open questions end with ConnectionError."""
        self._closing = True
        self._wake()
        self._thread.join(5)

    def _wake(self) -> None:
        try:
            os.write(self._wake_write, b"!")
        except (BlockingIOError, OSError):
            pass

    def _run(self) -> None:
        poller = zmq.Poller()
        for socket in (self._router, self._events, self._wake_read):
            poller.register(socket, zmq.POLLIN)
        mux = None
        while not self._closing:
            ready = dict(poller.poll())
            if mux is not self._mux and self._mux is not None:
                mux = self._mux
                poller.register(mux, zmq.POLLIN)
            if self._wake_read in ready:
                os.read(self._wake_read, 4096)
            while self._outbox:
                socket, frames = self._outbox.popleft()
                socket.send_multipart(frames, copy=len(frames) < 3 or socket is mux)
            if self._events in ready:
                self._handle_disconnect()
            if self._router in ready:
                self._receive_all()
            if mux is not None and mux in ready:
                mux.recv_multipart()  # the engine's reply repeats what the rank's agent tells
        self._shut()

    def _shut(self) -> None:
        for uuid in list({uuid for uuid, _ in self._questions.values()}):
            self._fail_questions(uuid)
        self._router.disable_monitor()
        self._context.destroy(linger=200)
        # Whoever tells something later must not write into what has this number then.
        wake, self._wake_write = self._wake_write, -1
        os.close(self._wake_read)
        os.close(wake)

    def _receive_all(self) -> None:
        for _ in range(AT_ONCE):
            try:
                identity, first, *rest = self._router.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            except ValueError:
                continue  # an empty message of a stranger
            try:
                header, uuid = json.loads(first.bytes), identity.bytes.decode()
            except ValueError:
                # When a rank connects anew, ZeroMQ gives what its old connection still held a name of random bytes.
                continue
            if not isinstance(header, dict):
                continue
            connection = first.get(zmq.SRCFD)
            if header.get("say") == "hello":
                if not hmac.compare_digest(str(header.pop("token", "")).encode(), self._token.encode()):
                    continue
                self._peers[identity.bytes] = connection
                self._greeted[identity.bytes] = next(self._numbers)
            elif self._peers.get(identity.bytes) != connection:  # a stranger, perhaps under a rank's name
                continue
            try:
                self._dispatch(uuid, header, [frame.buffer for frame in rest])
            except Exception:  # this thread must go on whatever one rank says
                logging.getLogger("allranks").exception("a rank's message could not be understood")

    def _dispatch(self, uuid: str, header: Header, buffers: list[Any]) -> None:
        if header.get("say") == "answer":
            _, future = self._questions.pop(header["ask"], (None, None))
            if future is not None and not future.done():
                future.set_result((header, buffers))
        else:
            self._on_message(uuid, header, buffers)

    def _handle_disconnect(self) -> None:
        descriptor = parse_monitor_message(self._events.recv_multipart())["value"]
        gone = {identity: self._greeted[identity] for identity, known in self._peers.items() if known == descriptor}
        self._receive_all()  # what the rank said before it went
        for identity, greeted in gone.items():
            # One that connects anew may be given the same descriptor; it has said hello again and is not gone.
            if self._greeted[identity] == greeted:
                del self._peers[identity], self._greeted[identity]
                self._fail_questions(identity.decode())
                self._on_gone(identity.decode())

    def _fail_questions(self, uuid: str) -> None:
        for number, (asked, future) in list(self._questions.items()):
            if asked == uuid:
                del self._questions[number]
                if not future.done():
                    future.set_exception(ConnectionError("the rank is gone"))
