"""The ssh connection to a host process: logs in again whenever the connection is lost.

Requests are numbered and stored until the host confirms them; after a reconnect, unconfirmed requests are sent again.
"""

from __future__ import annotations

import itertools
import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO

from allranks.messages.host_messages import Alive, Gone, Heard, HostEvent, HostOrder, Present, read_event, to_line
from allranks.messages.wire import NotUnderstood

from .interpreter import Interpreter
from .login import Login
from .ssh_command import CONNECT_WITHIN

ALIVE_EVERY = 1.0
SILENT_AFTER = 4.0
"""Seconds without an answer after which a host counts as out of reach, and login attempts begin."""
RECONNECT_WITHIN = (3, 3, 8)
"""Connection timeouts, in seconds, that reconnect attempts use in turn: a network that is back answers at once, and a
slow network needs a longer timeout now and then."""
ANSWER_WITHIN = 25.0
"""Extra seconds for the host process to answer; after that, something on the host hangs, and the login is repeated."""
FORWARD = "remote port forwarding failed"
PORT_TAKEN = "another program there has a port by which its ranks reach the notebook, which must end first"
_log = logging.getLogger("allranks")


class SshConnection:
    """The connection to one host process over successive logins.

    `hear_all` reads events until a login's output ends, and returns whether the host process announced its end.
    `on_event` gets the first event of each later login, which `hear_all` does not see. `on_away` is called with
    whether the host is away each time that this changes, and after each failed attempt with the reason, as a clause.
    `on_end` is called when the host process is gone, or cannot be reached again.
    """

    def __init__(
        self,
        name: str,
        python: Interpreter,
        tunnels: Mapping[int, int],
        *,
        hear_all: Callable[[IO[bytes]], bool],
        on_event: Callable[[HostEvent], None],
        on_away: Callable[[bool, str], None],
        on_end: Callable[[], None],
    ) -> None:
        self._name, self.python, self.tunnels = name, python, tunnels
        self._hear_all, self._on_event, self._on_away, self._on_end = hear_all, on_event, on_away, on_end
        self.login: Login | None = None
        """The login in use, or the last one used."""
        self.folder: Path | None = None
        """The host process's folder, which a new login needs; None until `keep` is called."""
        self.away_since: float | None = None
        """The `time.monotonic` at which the host went out of reach; None while it is within reach."""
        self.said_gone = False
        """Whether the host process is known to have ended."""
        self._unconfirmed: deque[tuple[int, bytes]] = deque()
        """Numbers and lines of the requests that the host has not confirmed."""
        self._head, self._numbers = secrets.token_hex(8), itertools.count(1)
        self._lock = threading.Lock()
        self._ended = False
        self._attempt: Login | None = None
        """A new login that has not replaced `login` yet."""
        self._heard_at = 0.0
        self._look = threading.Event()

    def begin(self) -> Login:
        """Log in, and start a host process."""
        self.login = self._relay(tunnels=self.tunnels)
        self._follow(self.login)
        return self.login

    def keep(self, folder: Path, *, away: bool = False) -> None:
        """From now on, reconnect to the host process of `folder` when the connection is lost; with `away`, at once."""
        self.folder, self._heard_at = folder, time.monotonic()
        if away:
            self._leave()
        threading.Thread(target=self._keep_reached, name=f"allranks-alive-{self._name}", daemon=True).start()

    def order(self, order: HostOrder, number: int | None = None) -> None:
        """Send a request, now or when the host is reached again."""
        with self._lock:
            serial = next(self._numbers)
            self._unconfirmed.append((serial, to_line(order, number, (self._head, serial))))
            if self.away_since is None:
                self._write(self._unconfirmed[-1][1])

    def heard(self, event: HostEvent) -> None:
        """Note that the host sent `event`: it is within reach, and requests that it confirms are not sent again."""
        self._heard_at = time.monotonic()
        if isinstance(event, Heard | Present) and event.head == self._head:
            with self._lock:
                while self._unconfirmed and self._unconfirmed[0][0] <= event.received:
                    self._unconfirmed.popleft()
        if (attempt := self._attempt) is not None:  # the current login works again, so keep it
            attempt.process.kill()
        self._come_back()

    def end(self, *, there: bool = False) -> None:
        """Close the connection for good. With `there`, first kill the process on the host: it may hang."""
        with self._lock:
            self._ended, login = True, self.login
        self._look.set()
        if (attempt := self._attempt) is not None:
            attempt.process.kill()
        if login is not None:
            (login.end_there if there else login.end)()

    def _write(self, line: bytes) -> None:
        assert self.login is not None
        with suppress(OSError, ValueError):  # requests are sent again after a reconnect
            self.login.writer.write(line + b"\n")
            self.login.writer.flush()

    def _follow(self, login: Login) -> None:
        """Start a thread that handles the host process's events from this login."""

        def listen() -> None:
            gone = self._hear_all(login.reader)
            login.closed = True
            if login is not self.login or (self._attempt is not None and not gone):
                return  # another login has replaced it, or is about to
            if gone or self._ended or self.folder is None:
                self.said_gone = gone
                self._stop()
                login.end()
            else:
                self._leave()
                self._look.set()

        threading.Thread(target=listen, name=f"allranks-host-{self._name}", daemon=True).start()

    def _stop(self) -> None:
        self._ended = True
        self._on_end()

    def _keep_reached(self) -> None:
        """Send the host a sign of life each second; while it is out of reach, log in again until that works."""
        tries, slept_at = 0, time.monotonic()
        while not self._ended:
            if (now := time.monotonic()) - slept_at > 2 * ALIVE_EVERY:  # this process stood still, so it read nothing
                self._heard_at = now
            if self.away_since is None:
                tries = 0
                with self._lock:
                    self._write(to_line(Alive()))
                if now - self._heard_at > SILENT_AFTER:
                    self._leave()
            else:
                try:
                    self._try_again(RECONNECT_WITHIN[tries % len(RECONNECT_WITHIN)])
                except OSError:
                    pass  # this machine has no process or descriptor to spare for ssh at the moment
                except Exception:  # this thread must go on, or the host would never be reached again
                    _log.exception("%s could not be reached again", self._name)
                tries += 1
            if not self._ended:
                slept_at = time.monotonic()
                self._look.wait(ALIVE_EVERY)
                self._look.clear()

    def _relay(self, *arguments: str, tunnels: Mapping[int, int], within: int = CONNECT_WITHIN) -> Login:
        """Start a login that passes lines to and from the host process."""
        command = [*self.python.words(), "-m", "allranks.host_process.login_relay", *arguments]
        return Login(self._name, self.python, command, tunnels=tunnels, within=within)

    def _try_again(self, within: int) -> None:
        """Log in again; the previous login stays in use until a new login has reached the host."""
        try:
            login, event = self._log_in(within)
        finally:
            self._attempt = None
        with self._lock:
            taken = not self._ended and isinstance(event, Present | Gone)
            if taken:
                self.login = login
                self.away_since = self.away_since or time.monotonic()  # requests sent over the old login may be lost
        if not taken or event is None:
            login.end()
            if self.login is not None and self.login.closed:
                self._leave()
            if self.away_since is not None and (why := login.why_not()):
                self._on_away(True, PORT_TAKEN if any(FORWARD in line for line in login.said) else why)
            return
        if isinstance(event, Gone):
            login.end()
            self.said_gone = True
            self._stop()
            return
        self.heard(event)
        self._on_event(event)
        self._follow(login)

    def _log_in(self, within: int) -> tuple[Login, HostEvent | None]:
        """Make one attempt to log in; returns the login and the first event from it, None if none came."""

        def attempt(*more: str, tunnels: Mapping[int, int]) -> tuple[Login, HostEvent | None]:
            self._attempt = login = self._relay(str(self.folder), *more, tunnels=tunnels, within=within)
            limit = threading.Timer(within + ANSWER_WITHIN, login.end_there)
            limit.daemon = True
            limit.start()
            try:
                return login, _first_answer(login)
            finally:
                limit.cancel()

        # First log in without tunnels, to close the old tunnels at both ends. An sshd that has not noticed a lost
        # network still holds the ports, and a controller accepts no second connection under an engine's name.
        login, event = attempt("--free", tunnels={})
        if not isinstance(event, Heard):
            return login, event
        login.end()
        if self.login is not None:
            self.login.end()
        return attempt(tunnels=self.tunnels)

    def _leave(self) -> None:
        with self._lock:
            if self.away_since is not None:
                return
            self.away_since = time.monotonic()
        self._on_away(True, "")

    def _come_back(self) -> None:
        with self._lock:
            if self.away_since is None:
                return
            self.away_since = None
            for _, line in self._unconfirmed:
                self._write(line)
        self._on_away(False, "")


def _first_answer(login: Login) -> HostEvent | None:
    """The first event after the greeting, skipping output of a login shell; None if the output ends before it."""
    for line in login.reader:
        with suppress(NotUnderstood):
            if not login.is_greeting(line):
                return read_event(line)
    return None
