"""Hosts over ssh. One login to each host transfers requests and events, and tunnels the connections of the ranks.

Controller and lifeline listen on the notebook's loopback only, and at the other end of the tunnels on the host's
loopback, where CurveZMQ keeps other users out. So no address has to be known, and firewalls and NAT between the
notebook and a host do not matter. Collectives go directly from host to host.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from allranks.errors import CannotStart, HostCause
from allranks.hosts.host_end import ConnectionInfo, HostAway, HostBack, HostEnd, HostGone, OnEvent
from allranks.hosts.reachable_addresses import HostNetwork
from allranks.messages.host_messages import (
    Greeting,
    Heard,
    HostEvent,
    HostOrder,
    Prepare,
    Prepared,
    read_event,
    to_line,
)
from allranks_backends.plan import Host, Platform
from allranks_backends.runtimes.nccl import visible_devices

from .differences import differing, listing
from .interpreter import Interpreter
from .login import engine_ports, port_of, through
from .ssh_command import typed
from .ssh_connection import SshConnection
from .ssh_failures import setup_advice

READY_WITHIN = 25.0
"""Timeout, in seconds, for a host process to answer; its Python may load from a cold disk. ssh has its own timeouts."""
GREETS_WITHIN = 7.0
"""Timeout, in seconds, from the login until its shell runs a command: a shell may block in a start-up file."""
STARTS_WITHIN = 6.0
"""Timeout, in seconds, from the greeting until Python runs our first lines there, which import little."""
PATIENCE = 16.0
"""Seconds without a message from the notebook after which the notebook counts as gone, and the lease begins."""


@dataclass(frozen=True)
class SavedHost:
    """The information with which a head can reach a host process that another head started."""

    directory: str
    tunnels: dict[str, int]
    """The port there for each port here."""
    prepared: str
    """The host's `Prepared` event as JSON."""
    python: str
    """Path of the Python on the host."""


class RemoteHost(HostEnd):
    """A host process reached over an ssh connection, which is made again whenever it is lost.

    The host process and its ranks do not depend on the connection: they stay until their lease has expired.
    """

    def __init__(
        self,
        host: Host,
        *,
        python: Interpreter,
        tunnels: Mapping[int, int],
        engine_info: ConnectionInfo,
        lifeline_url: str,
        on_event: OnEvent,
        forks: bool = True,
    ) -> None:
        """`tunnels` maps ports here to ports there, 0 for any port. `forks` is passed to the host (see `Prepare`)."""
        super().__init__(host.name, on_event)
        self.host = host
        self._forks = forks
        self._engine_info_here, self._lifeline_here = engine_info, lifeline_url
        self._connection = SshConnection(
            host.name,
            python,
            tunnels,
            hear_all=self._hear_all,
            on_event=self._hear,
            on_away=self._went,
            on_end=self._has_gone,
        )
        self._ended_orderly = False
        self.prepared: Prepared | None = None
        """What the host reported about itself; None until then."""

    @classmethod
    def begin(
        cls,
        host: Host,
        *,
        python: Interpreter,
        engine_info: ConnectionInfo,
        lifeline_url: str,
        on_event: OnEvent,
        forks: bool = True,
    ) -> RemoteHost:
        """Log in and start a host process; does not wait for it (see `ready`)."""
        ports = sorted({*engine_ports(engine_info), port_of(lifeline_url)})
        end = cls(
            host,
            python=python,
            tunnels=dict.fromkeys(ports, 0),
            engine_info=engine_info,
            lifeline_url=lifeline_url,
            on_event=on_event,
            forks=forks,
        )
        end._speaks = False  # until its shell has run its start-up files
        login = end._connection.begin()
        login.on_tunnel = end._notice
        return end

    @classmethod
    def again(
        cls,
        host: Host,
        saved: SavedHost,
        *,
        engine_info: ConnectionInfo,
        lifeline_url: str,
        on_event: OnEvent,
    ) -> RemoteHost:
        """Reconnect to a host that another head logged in to; it counts as away until reached (see `wait_reached`)."""
        tunnels = {int(here): there for here, there in saved.tunnels.items()}
        end = cls(
            host,
            python=Interpreter(saved.python),
            tunnels=tunnels,
            engine_info=engine_info,
            lifeline_url=lifeline_url,
            on_event=on_event,
        )
        prepared = read_event(saved.prepared.encode())
        assert isinstance(prepared, Prepared)
        end.prepared = prepared
        end._use(Path(saved.directory))
        end._connection.keep(end.directory, away=True)
        return end

    def saved(self) -> SavedHost:
        """The information with which `again`, in another process, reconnects."""
        assert self.prepared is not None
        tunnels = {str(here): there for here, there in self._connection.tunnels.items()}
        return SavedHost(str(self.directory), tunnels, to_line(self.prepared).decode(), self.python)

    def ready(self, deadline: float) -> None:
        """Wait until the host can start ranks. Raises CannotStart."""
        login = self._connection.login
        assert login is not None

        def settled() -> bool:
            there = self.prepared is not None and login.has_tunnels
            return self._gone.is_set() or bool(self.trouble) or there

        with self._changed:
            # The tunnels are open once ssh has logged in, which may take long through several jump hosts.
            self._changed.wait_for(lambda: login.has_tunnels or settled(), max(0.0, deadline - time.monotonic()))
            until = min(deadline, time.monotonic() + GREETS_WITHIN)
            self._changed.wait_for(lambda: login.greeted or settled(), max(0.0, until - time.monotonic()))
            if login.greeted:
                until = min(deadline, time.monotonic() + STARTS_WITHIN)
                self._changed.wait_for(lambda: login.runs or settled(), max(0.0, until - time.monotonic()))
            if login.runs:
                self._changed.wait_for(settled, max(0.0, deadline - time.monotonic()))
        if self.prepared is None or self.trouble or not login.has_tunnels:
            why = f"{self._why_not()}."
            cause = HostCause(self.name, why, login.greeted, tuple(login.said), self._hangs)
            raise CannotStart(f"{self.name}: {why}", causes=[cause])
        if differs := differing(self.prepared.versions):
            raise self._differs(differs)
        login.said.clear()  # nothing that ssh printed so far was an error
        self._connection.tunnels = dict(login.tunnels)
        self._connection.python = Interpreter(self.python)
        self._use(Path(self.prepared.directory))
        self._connection.keep(self.directory)

    def _differs(self, differs: Sequence[tuple[str, str, str]]) -> CannotStart:
        called = self._connection.python
        if called.made_by_setup(self.prepared.python if self.prepared is not None else ""):
            table = listing(differs)
            advice = f"\n%distributed setup --hosts {shlex.quote(self.name)} makes it match again."
        else:
            table = listing(differs, self.python)
            advice = f"\n{setup_advice(self.name)}, which matches." if called.private else ""
        why = f"differs from this notebook:\n{table}{advice}"
        return CannotStart(f"{self.name} {why}", causes=[HostCause(self.name, why)])

    def wait_reached(self, deadline: float) -> bool:
        """Wait until the host is reached, its host process has ended, or `deadline`; returns whether it is reached."""
        with self._changed:
            self._changed.wait_for(lambda: not self.away or self._gone.is_set(), max(0.0, deadline - time.monotonic()))
        return not self.away

    @property
    def away(self) -> bool:
        """See `HostEnd.away`."""
        return self._connection.away_since is not None

    @property
    def python(self) -> str:
        """Path of the Python on the host."""
        called = self._connection.python
        made = self.prepared is not None and called.made_by_setup(self.prepared.python)
        return self.prepared.python if self.prepared is not None and made else called.path

    @property
    def network(self) -> HostNetwork:
        """The network as the host reports it."""
        seen, own = self._seen, self.prepared.addresses if self.prepared is not None else ()
        return HostNetwork(own, seen[2] if seen else None)

    @property
    def sees_notebook_at(self) -> str | None:
        """The notebook's address as this host sees it; None if the host did not report it."""
        return self._seen[0] if self._seen else None

    @property
    def _seen(self) -> list[str]:
        """Address and port of ssh's two ends, the notebook's (or a jump host's) first; empty if not reported."""
        seen = self.prepared.ssh.split() if self.prepared else []
        return seen if len(seen) == 4 else []

    @property
    def platform(self) -> Platform:
        """The platform that the host reports."""
        assert self.prepared is not None
        return Platform(**asdict(self.prepared.platform))

    @property
    def cuda(self) -> tuple[str, ...]:
        """The CUDA devices that the host's environment selects; empty for all."""
        assert self.prepared is not None
        return visible_devices({"CUDA_VISIBLE_DEVICES": self.prepared.cuda})

    def end(self) -> None:
        """See `HostEnd.end`; attempts to reach a host that is away go on, to end its ranks once it is reached."""
        self._ended_orderly = True
        if self._speaks and (self.prepared is not None or self.trouble):  # else no host process is up
            super().end()
        if self.alive and self.away:
            return
        hangs = self.alive and self.prepared is None
        self._gone.set()  # so `wait_end` does not wait while a hanging process is killed
        self._connection.end(there=hangs)

    def _use(self, directory: Path) -> None:
        """Set the host process's folder, and how engines and ranks there connect."""
        self.directory = directory
        self.engine_info = through(self._engine_info_here, self._connection.tunnels)
        self.lifeline_url = f"tcp://127.0.0.1:{self._connection.tunnels[port_of(self._lifeline_here)]}"

    def _order(self, order: HostOrder, number: int | None = None) -> None:
        self._connection.order(order, number)

    def _hear(self, event: HostEvent) -> None:
        self._connection.heard(event)
        login = self._connection.login
        match event:
            case Prepared():
                self.prepared = event
                self._notice()
            case Greeting():
                if login is not None and not login.greeted:
                    login.greeting, self._speaks = event, True
                    # Not earlier, or a `read` in a start-up file would take it.
                    self._order(Prepare(patience=PATIENCE, forks=self._forks))
                    self._notice()
            case Heard():
                if login is not None and not login.runs:  # only the first event of the first login
                    login.runs = True
                    self._notice()
            case _:
                super()._hear(event)

    def _notice(self) -> None:
        """Wake all threads that wait for a change of this host."""
        with self._changed:
            self._changed.notify_all()

    def _went(self, away: bool, why: str = "") -> None:
        self._notice()
        self._on_event(HostAway(why) if away else HostBack())

    @property
    def _hangs(self) -> bool:
        """Whether the first login started the host's Python, which has not run its first lines yet."""
        login = self._connection.login
        return self.alive and not self.trouble and login is not None and login.greeted and not login.runs

    def _why_not(self) -> str:
        """Explain what went wrong, and what to do, from the output of ssh and of the host."""
        login, more = self._connection.login, [self.trouble] if self.trouble else []
        timed_out = self.alive and not self.trouble
        if not self.alive:  # else the printed lines may be a login shell's usual output
            more = [*self.printed, *more]
        if login is not None and not timed_out and (said := login.why_not(more)):
            return said
        printed = f"; what it printed ends with {self.printed[-1]!r}" if self.printed else ""
        words = typed(self.name)
        if login is not None and not login.greeted:
            if not login.has_tunnels and self.alive:
                return f"it does not answer. Check that it is on, and on this network: ssh {words} true"
            how = f"ran no command within {GREETS_WITHIN:g} s" if self.alive else "ended before it ran a command"
            return f"its login shell {how}{printed}. See what its start-up files (~/.bashrc, say) do: ssh {words} true"
        if self._hangs:
            tried = f"Try: ssh {words} {shlex.quote(self.python)} -V"
            return f"its Python did not start within {STARTS_WITHIN:g} s{printed}. {tried}"
        if self.alive:
            return f"it accepted the connection but did not answer within {READY_WITHIN:g} s{printed}"
        return f"its Python ended without an error message. Try: ssh {words} {shlex.quote(self.python)} -V"

    def _how_ended(self) -> HostGone:
        if self._ended_orderly:
            return HostGone()
        if self.directory.name and self._connection.said_gone:
            return HostGone("its host process has ended")
        return HostGone(self._why_not())
