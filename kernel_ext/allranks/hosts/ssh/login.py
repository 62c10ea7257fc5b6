"""One ssh connection to a host: the input and output of a program there, and tunnels from there to this machine."""

from __future__ import annotations

import re
import shlex
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple
from types import MappingProxyType
from typing import Any

from allranks.messages.host_messages import Greeting, read_event, to_line
from allranks.messages.wire import NotUnderstood

from .command import CONNECT_WITHIN, SSH_OPTIONS, destination, explained, ssh_options
from .interpreter import Interpreter

_ALLOCATED = re.compile(r"Allocated port (\d+) for remote forward to 127\.0\.0\.1:(\d+)")
_NOISE = ("Warning: Permanently added", "Allocated port")
_GREETING = to_line(Greeting(0, 0)).decode().replace(": 0", ": %d")
_GREET = 'printf "$1\\n" "$$" "$PPID"; shift; exec "$@"'
"""Greets, and becomes the command. For `sh`: some login shells lack these variables."""
# Children are listed without pgrep, too, on Linux. They are ended after their parent, which could start others.
_END = """\
children() { pgrep -P "$1" 2>/dev/null || grep -lsx "PPid:[[:blank:]]*$1" /proc/[0-9]*/status | cut -d/ -f3; }; \
end() { set -- "$1" $(children "$1"); kill -KILL "$1" 2>/dev/null; shift; for c; do end "$c"; done; }; \
for c in $(children "$2"); do [ "$c" != "$1" ] || end "$c"; done"""
"""Ends process $1 and all that it has started, if it is a child of process $2: a name may lead to several hosts."""
END_THERE_WITHIN = 20.0
"""Seconds for the login that runs this."""
ENDS_WITHIN = 2.0
"""Seconds ssh gets to end."""


class Login:
    """Begins to log in when it is made."""

    def __init__(
        self,
        name: str,
        python: Interpreter,
        command: Sequence[str],
        *,
        tunnels: Mapping[int, int] = MappingProxyType({}),
        within: int = CONNECT_WITHIN,
    ) -> None:
        """`command` runs there, and is about `python`: that is named in advice. First comes a `Greeting`.

        `tunnels` gives for a port here the one there; 0 for any. `within`: seconds to connect. Raises OSError.
        """
        self._name, self._python = name, python
        self.tunnels = {here: there for here, there in tunnels.items() if there}
        """The port there for each port here, as far as they are known."""
        self._wanted = len(tunnels)
        self.said: list[str] = []
        """The last lines that ssh, or the host's shell, complained with."""
        self.greeting: Greeting | None = None
        """Set by the reader of what the shell there prints, once it has run its start-up files."""
        self.runs = False
        """Whether the Python there has run its first lines: set likewise."""
        self.closed = False
        """Whether all has been read of it."""
        self.on_tunnel: Callable[[], None] = lambda: None
        """Called when there is another tunnel."""
        forwards = [word for here, there in tunnels.items() for word in ("-R", f"127.0.0.1:{there}:127.0.0.1:{here}")]
        line = shlex.join(["exec", "/bin/sh", "-c", _GREET, "sh", _GREETING, *command])
        self.process = subprocess.Popen(
            ["ssh", *ssh_options(within), *forwards, *destination(name), line],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C in a terminal is for the notebook
        )
        assert self.process.stdin is not None and self.process.stdout is not None
        self.reader, self.writer = self.process.stdout, self.process.stdin
        self._complaints = threading.Thread(target=self._read_complaints, name=f"allranks-ssh-{name}", daemon=True)
        self._complaints.start()

    def is_greeting(self, line: bytes) -> bool:
        """Whether this is the line by which the shell greets; it is noted then."""
        with suppress(NotUnderstood):
            if isinstance(event := read_event(line), Greeting):
                self.greeting = event
                return True
        return False

    @property
    def greeted(self) -> bool:
        """Whether the shell there has run a command."""
        return self.greeting is not None

    @property
    def has_tunnels(self) -> bool:
        """Whether all of them are there."""
        return len(self.tunnels) >= self._wanted

    def why_not(self, more: Sequence[str] = ()) -> str:
        """What ssh, the host's shell, or `more` complained of, in words; empty where nothing did."""
        # The last ones may still be on their way; from an ssh that ends, all of them come.
        self._complaints.join(ENDS_WITHIN if self.closed else 0.05)
        said = [*self.said, *more]
        if not said:
            return ""
        set_up = bool(self._python.private)
        return explained(said, self._name, self._python.path, may_set_up=set_up, logged_in=self.greeted)

    def end(self) -> None:
        """Close the connection, and wait until ssh has ended."""
        with suppress(OSError):
            self.writer.close()
        self.process.terminate()
        try:
            self.process.wait(ENDS_WITHIN)
        except subprocess.TimeoutExpired:  # it waits for its tunnels
            self.process.kill()
            self.process.wait()

    def end_there(self) -> None:
        """End what this login has started there, by another one, and then this one.

        For a Python that hangs: it does not notice that the connection is closed.
        """
        # While this connection is open, the process is a child of its sshd.
        if self.greeting is not None and self.process.poll() is None:
            line = shlex.join(["exec", "/bin/sh", "-c", _END, "sh", *map(str, astuple(self.greeting))])
            nothing = subprocess.DEVNULL
            with suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run(
                    ["ssh", *SSH_OPTIONS, *destination(self._name), line],
                    stdin=nothing,
                    stdout=nothing,
                    stderr=nothing,
                    timeout=END_THERE_WITHIN,
                    start_new_session=True,
                )
        self.end()

    def _read_complaints(self) -> None:
        assert self.process.stderr is not None
        for raw in self.process.stderr:
            line = raw.decode(errors="replace").strip()
            if found := _ALLOCATED.search(line):
                self.tunnels[int(found[2])] = int(found[1])
                self.on_tunnel()
            elif line and not line.startswith(_NOISE):
                self.said = [*self.said[-30:], line]


def engine_ports(info: Mapping[str, Any]) -> list[int]:
    """The ports that an engine connects to, by its connection info."""
    return [*(port for port in info.values() if isinstance(port, int)), *info["broadcast"]]


def through(info: Mapping[str, Any], tunnels: Mapping[int, int]) -> dict[str, Any]:
    """Connection info for an engine at the other end of the tunnels."""
    mapped = {key: tunnels[value] if isinstance(value, int) else value for key, value in info.items()}
    return mapped | {"broadcast": [tunnels[port] for port in info["broadcast"]]}


def port_of(url: str) -> int:
    """Of ``tcp://127.0.0.1:5000``."""
    return int(url.rpartition(":")[2])
