"""Handles what hosts report about the ranks' processes: starts, deaths and their causes."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from allranks.head.state.known_rank import Rank
from allranks.head.state.monitor import Monitor
from allranks.hosts.host_end import HostAway, HostBack, HostEnd, HostGone, HostReport, OnEvent, RankLost
from allranks.hosts.local import LocalHost
from allranks.messages.host_messages import Ended, Launched, Present, Started, Suspended
from allranks.messages.requests import Refuse, Register, Request

WATCHED_FOR = 2.0
"""Seconds for which a rank of mpirun is watched after its connection closed, to see whether it has ended."""

BY_CONNECTION = "its process ended (mpirun does not report why)"
"""Cause of death of a rank of mpirun that ended after its connection closed."""
CLOSES_WITHIN = 2.0
"""Seconds to wait for the connection of an ended process to close; usually it has closed already."""


class ProcessEvents:
    """Handles the events of all hosts, and reports each death to the monitor, with its cause."""

    def __init__(
        self,
        monitor: Monitor,
        *,
        end_at: Callable[[str], HostEnd],
        tell: Callable[[str, Request], None],
        python_here: str,
    ) -> None:
        """`end_at` returns the `HostEnd` of a host by its name; `tell` sends a request to a rank by its uuid."""
        self._monitor, self._end_at, self._tell, self._python_here = monitor, end_at, tell, python_here
        self.launcher: int | None = None
        """The pid of mpirun, if it started the ranks."""
        self._controller_ended: Ended | None = None
        self.no_controller = ""
        """Why plain ipyparallel cannot reach the ranks any more, as a clause; empty if it can."""

    def of(self, name: str) -> OnEvent:
        """Return the function that handles the events of the host called `name`."""
        return lambda event: self.receive(event, name)

    def receive(self, event: HostReport, name: str) -> None:
        """Handle a report of the host called `name`."""
        match event:
            case Started(number, pid):
                if number < len(self._monitor.ranks):  # the world may have shrunk since
                    self._monitor.ranks[number].pid = pid
            case Suspended(pid, suspended):
                self._suspended(name, {pid: suspended})
            case Present(processes):
                self.launcher = processes.get("launcher")
                self._suspended(name, {pid: pid in event.suspended for pid in processes.values()})
            case Launched(pid):
                self.launcher = pid
            case Ended():
                self._on_ended(event, name)
            case RankLost(number, pid, because):
                if self._is_rank(number, pid, name):
                    self.died(number, f"lost on {name}: {because}")
            case HostAway(why):
                self._monitor.host_away(name, away=True, why=why)
            case HostBack():
                self._monitor.host_away(name, away=False)
            case HostGone(because=because) if name != LocalHost.NAME:
                self._monitor.host_away(name, away=False)
                for rank in self._monitor.alive():
                    if rank.host == name:
                        self.died(rank.rank, f"lost with its host {name}: {because}")
            case HostGone(code=code):
                how = f"ended with the host process ({self._python_here}), which {_clause(ended_because(code))}"
                for rank in self._monitor.alive():
                    self._monitor.died(rank.rank, how)

    def _suspended(self, name: str, pids: Mapping[int, bool]) -> None:
        """Note which of the processes `pids` of a host are suspended."""
        for rank in self._monitor.ranks:
            if rank.host == name and rank.pid is not None:
                suspended = pids.get(rank.pid, rank.suspended)
                rank.suspended_since = (rank.suspended_since or time.monotonic()) if suspended else None

    def repeat(self, others: Iterable[HostEnd]) -> None:
        """For new ranks, handle again that a host process or the controller has ended; `others` are the other hosts."""
        for ended in (self._end_at(LocalHost.NAME).ended, self._controller_ended):
            if ended is not None:
                self.receive(ended, LocalHost.NAME)
        for end in others:
            if end.ended is not None:
                self.receive(end.ended, end.name)

    def died(self, number: int, cause: str) -> None:
        """Mark a rank as dead, and have the living ranks refuse collectives of the broken world."""
        self._monitor.died(number, cause)
        self._forget([self._monitor.ranks[number]])
        because = f"the world is broken: rank {number} is dead. %distributed heal replaces it"
        for rank in self._monitor.alive():
            self._tell(rank.uuid, Refuse(because))

    def disconnected(self, uuid: str, *, by_mpirun: bool) -> None:
        """Note that a rank's connection closed.

        With `by_mpirun`, also watch whether its process ends, since mpirun reports no deaths.
        """
        self._monitor.disconnected(uuid)
        rank = next((rank for rank in self._monitor.ranks if rank.uuid == uuid), None)
        if rank is not None and rank.pid and by_mpirun:
            threading.Thread(target=self._watch_end, args=(rank, rank.pid), daemon=True).start()

    def _on_ended(self, event: Ended, name: str) -> None:
        kind, _, number = event.name.partition(" ")
        if kind == "rank":
            if self._is_rank(int(number), event.pid, name):
                rank = self._monitor.ranks[int(number)]
                cause = ended_because(event.code, event.log, out_of_memory=event.out_of_memory)
                if rank.connected:  # the lifeline's thread has yet to read its last messages
                    threading.Thread(target=self._died_later, args=(rank, event.pid, cause), daemon=True).start()
                else:
                    self.died(rank.rank, cause)
        elif kind == "launcher" and event.pid == self.launcher:
            said = "\n".join(line for line in event.log.splitlines() if line.strip("-"))
            how = ended_because(event.code, out_of_memory=event.out_of_memory)
            how = f"ended by mpirun, which {_clause(how)}" + (f":\n{said}" if said else "")
            alive = self._monitor.alive()
            for rank in alive:
                self._monitor.died(rank.rank, how)
            self._monitor.explain(BY_CONNECTION, how)  # for ranks whose connection closed a moment before
            self._forget(alive)
        elif kind == "controller" and event.replaced:
            for rank in self._monitor.alive():
                self._tell(rank.uuid, Register())
        elif kind == "controller":
            self._controller_ended = event
            how = ended_because(event.code, event.log, out_of_memory=event.out_of_memory)
            self.no_controller = f"ipyparallel's controller {_clause(how)}"
            for rank in self._monitor.alive():
                if not rank.ready:  # an engine must register with the controller once; cells do not go through it
                    self._monitor.died(rank.rank, f"cannot start: {self.no_controller}")

    def _died_later(self, rank: Rank, pid: int, cause: str) -> None:
        self._monitor.wait(lambda: not rank.connected, CLOSES_WITHIN)
        if self._is_rank(rank.rank, pid, rank.host):
            self.died(rank.rank, cause)

    def _is_rank(self, number: int, pid: int, name: str) -> bool:
        """Whether rank `number` still is process `pid` on host `name`, and has not been replaced."""
        rank = self._monitor.ranks[number] if number < len(self._monitor.ranks) else None
        return rank is not None and rank.pid == pid and rank.host == name

    def _forget(self, ranks: Sequence[Rank]) -> None:
        self._end_at(LocalHost.NAME).forget([rank.uuid for rank in ranks])

    def _watch_end(self, rank: Rank, pid: int) -> None:
        ended = self._end_at(rank.host).wait_ended(pid, WATCHED_FOR)
        if ended and self._monitor.ranks[rank.rank] is rank and rank.pid == pid:
            self.died(rank.rank, BY_CONNECTION)


def _clause(how: str) -> str:
    """Return `how` as the predicate of a sentence: ``was killed by SIGKILL``, ``exited with code 1``."""
    return f"was {how}" if how.startswith("killed") else how


def ended_because(code: int, log: str = "", *, out_of_memory: bool = False) -> str:
    """Return why a process ended, in words: signal, exit code or out of memory, with a line of its `log`.

    The line is Python's ``Fatal Python error`` or, without one, the last line if the exit code is above 0. `code` is as
    in `subprocess.Popen.returncode`.
    """
    if out_of_memory:
        cause = "killed by the kernel: out of memory"
    elif code < 0:
        try:
            cause = f"killed by {signal.Signals(-code).name}"
        except ValueError:
            cause = f"killed by signal {-code}"
    else:
        cause = f"exited with code {code}"
    lines = log.splitlines()
    said = lines[-1] if lines and code > 0 else ""
    crash = next((line for line in lines if line.startswith("Fatal Python error")), said)
    return f"{cause} ({crash})" if crash else cause
