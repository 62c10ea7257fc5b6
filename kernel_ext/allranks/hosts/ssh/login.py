"""One ssh connection to a host: input and output of a program there, and tunnels from the host to this machine."""

from __future__ import annotations

import re
import shlex
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple
from types import MappingProxyType

from allranks.hosts.host_end import ConnectionInfo
from allranks.messages.host_messages import Greeting, read_event, to_line
from allranks.messages.wire import NotUnderstood

from .interpreter import Interpreter
from .ssh_command import CONNECT_WITHIN, SSH_OPTIONS, destination, ssh_options
from .ssh_failures import explained

_ALLOCATED = re.compile(r"Allocated port (\d+) for remote forward to 127\.0\.0\.1:(\d+)")
_NOISE = ("Warning: Permanently added", "Allocated port")
_GREETING = to_line(Greeting(0, 0)).decode().replace(": 0", ": %d")
_GREET = 'printf "$1\\n" "$$" "$PPID"; shift; exec "$@"'
"""Prints the greeting, then executes the command. Run by `sh`, since some login shells lack ``$$`` or ``$PPID``."""
# On Linux this works without pgrep too. A process is killed before its children, since it could start others.
_END = """\
children() { pgrep -P "$1" 2>/dev/null || grep -lsx "PPid:[[:blank:]]*$1" /proc/[0-9]*/status | cut -d/ -f3; }; \
end() { set -- "$1" $(children "$1"); kill -KILL "$1" 2>/dev/null; shift; for c; do end "$c"; done; }; \
for c in $(children "$2"); do [ "$c" != "$1" ] || end "$c"; done"""
"""Kills process $1 and its descendants if $1 is a child of process $2; if not, the host name may have led to another
machine, where process $1 is a different one."""
END_THERE_WITHIN = 20.0
"""Timeout, in seconds, for the login that runs `_END`."""
ENDS_WITHIN = 2.0
"""Timeout, in seconds, for ssh to exit."""


class Login:
    """One run of ssh, which starts in the constructor."""

    def __init__(
        self,
        name: str,
        python: Interpreter,
        command: Sequence[str],
        *,
        tunnels: Mapping[int, int] = MappingProxyType({}),
        within: int = CONNECT_WITHIN,
    ) -> None:
        """Start ssh; on the host, `sh` prints a `Greeting` and then runs `command`. Advice on failures names `python`.

        `tunnels` maps ports here to ports there, 0 for any port. `within`: seconds to connect. Raises OSError.
        """
        self._name, self._python = name, python
        self.tunnels = {here: there for here, there in tunnels.items() if there}
        """The port there for each port here, for tunnels whose ports are known."""
        self._wanted = len(tunnels)
        self.said: list[str] = []
        """The last lines of standard error, from ssh or the host's shell."""
        self.greeting: Greeting | None = None
        """The host shell's greeting, set by the code that reads `reader`; None until the start-up files have run."""
        self.runs = False
        """Whether the Python there has run its first lines; set by the code that reads `reader`."""
        self.closed = False
        """Whether its output has been read to the end."""
        self.on_tunnel: Callable[[], None] = lambda: None
        """Called whenever the port of a tunnel becomes known."""
        forwards = [word for here, there in tunnels.items() for word in ("-R", f"127.0.0.1:{there}:127.0.0.1:{here}")]
        line = shlex.join(["exec", "/bin/sh", "-c", _GREET, "sh", _GREETING, *command])
        self.process = subprocess.Popen(
            ["ssh", *ssh_options(within), *forwards, *destination(name), line],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C in a terminal must not reach ssh
        )
        assert self.process.stdin is not None and self.process.stdout is not None
        self.reader, self.writer = self.process.stdout, self.process.stdin
        self._complaints = threading.Thread(target=self._read_complaints, name=f"allranks-ssh-{name}", daemon=True)
        self._complaints.start()

    def is_greeting(self, line: bytes) -> bool:
        """Whether `line` is the shell's greeting; stores it if so."""
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
        """Whether the ports of all tunnels are known."""
        return len(self.tunnels) >= self._wanted

    def why_not(self, more: Sequence[str] = ()) -> str:
        """Explain the errors of ssh or the host's shell, and the lines in `more`; empty if there are none."""
        # The last lines may not have arrived yet. Once ssh's output has ended, wait for all of them.
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
        except subprocess.TimeoutExpired:  # ssh waits for its tunnels to close
            self.process.kill()
            self.process.wait()

    def end_there(self) -> None:
        """Kill the process that this login started on the host, through another login, then end this login.

        Needed for a Python that hangs, since it does not notice that the connection is closed.
        """
        # While this connection is open, the process is a child of the connection's sshd.
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


def engine_ports(info: ConnectionInfo) -> list[int]:
    """The ports that an engine connects to, from its connection info."""
    return [*(port for port in info.values() if isinstance(port, int)), *info["broadcast"]]


def through(info: ConnectionInfo, tunnels: Mapping[int, int]) -> ConnectionInfo:
    """Convert connection info for an engine at the other end of the tunnels."""
    mapped = {key: tunnels[value] if isinstance(value, int) else value for key, value in info.items()}
    return mapped | {"broadcast": [tunnels[port] for port in info["broadcast"]]}


def port_of(url: str) -> int:
    """The port of a URL such as ``tcp://127.0.0.1:5000``."""
    return int(url.rpartition(":")[2])
