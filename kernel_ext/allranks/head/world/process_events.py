"""What becomes of the ranks' processes, as their hosts tell it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Sequence

from allranks.head.state.known_rank import Rank
from allranks.head.state.monitor import Monitor
from allranks.hosts.host_process import HostAway, HostBack, HostEnd, HostGone, HostReport, OnEvent, RankLost
from allranks.hosts.local import LocalHost
from allranks.messages.host_messages import Ended, Launched, Present, Started
from allranks.messages.requests import Refuse, Register, Request

WATCHED_FOR = 2.0
"""Seconds in which a rank of mpirun, whose connection closed, is seen to have ended."""

BY_CONNECTION = "its process ended (mpirun does not report why)"
"""The cause of death of a rank of mpirun whose connection closed."""
CLOSES_WITHIN = 2.0
"""Seconds in which the connection of a rank whose process has ended is seen to close: as a rule, it was before."""


class ProcessEvents:
    """Hears the events of all hosts, and tells the monitor of each death, with its cause."""

    def __init__(
        self,
        monitor: Monitor,
        *,
        end_at: Callable[[str], HostEnd],
        tell: Callable[[str, Request], None],
        python_here: str,
    ) -> None:
        """`end_at` gives a host's end by its name; `tell` sends a request to the rank of that uuid."""
        self._monitor, self._end_at, self._tell, self._python_here = monitor, end_at, tell, python_here
        self.launcher: int | None = None
        """The pid of mpirun, where that started the ranks."""
        self._controller_ended: Ended | None = None
        self.no_controller = ""
        """Why plain ipyparallel cannot reach the ranks any more, as a clause."""

    def of(self, name: str) -> OnEvent:
        """What receives the events of the host of that name."""
        return lambda event: self.receive(event, name)

    def receive(self, event: HostReport, name: str) -> None:
        """A report of the host of that name."""
        match event:
            case Started(number, pid):
                if number < len(self._monitor.ranks):  # it may be of a world that has shrunk since
                    self._monitor.ranks[number].pid = pid
            case Present(processes):
                self.launcher = processes.get("launcher")
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

    def repeat(self, others: Iterable[HostEnd]) -> None:
        """Tell new ranks of what had ended before there was a rank to tell of; `others` are the other hosts' ends."""
        for ended in (self._end_at(LocalHost.NAME).ended, self._controller_ended):
            if ended is not None:
                self.receive(ended, LocalHost.NAME)
        for end in others:
            if end.ended is not None:
                self.receive(end.ended, end.name)

    def died(self, number: int, cause: str) -> None:
        """A rank is dead: the others are told, and to refuse what needs it."""
        self._monitor.died(number, cause)
        self._forget([self._monitor.ranks[number]])
        because = f"the world is broken: rank {number} is dead. %distributed heal replaces it"
        for rank in self._monitor.alive():
            self._tell(rank.uuid, Refuse(because))

    def disconnected(self, uuid: str, *, by_mpirun: bool) -> None:
        """A rank's connection closed. Its parent tells how it ended; a rank of mpirun has a parent that does not."""
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
                if rank.connected:  # what it said last is yet to be read by the lifeline's thread
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
            self._monitor.explain(BY_CONNECTION, how)  # of ranks whose connection closed a moment before
            self._forget(alive)
        elif kind == "controller" and event.replaced:
            for rank in self._monitor.alive():
                self._tell(rank.uuid, Register())
        elif kind == "controller":
            self._controller_ended = event
            how = ended_because(event.code, event.log, out_of_memory=event.out_of_memory)
            self.no_controller = f"ipyparallel's controller {_clause(how)}"
            for rank in self._monitor.alive():
                if not rank.ready:  # an engine must register there once, and cells do not go there
                    self._monitor.died(rank.rank, f"cannot start: {self.no_controller}")

    def _died_later(self, rank: Rank, pid: int, cause: str) -> None:
        self._monitor.wait(lambda: not rank.connected, CLOSES_WITHIN)
        if self._is_rank(rank.rank, pid, rank.host):
            self.died(rank.rank, cause)

    def _is_rank(self, number: int, pid: int, name: str) -> bool:
        """Whether that process of the host of that name is the rank: one that was replaced meanwhile is none."""
        rank = self._monitor.ranks[number] if number < len(self._monitor.ranks) else None
        return rank is not None and rank.pid == pid and rank.host == name

    def _forget(self, ranks: Sequence[Rank]) -> None:
        self._end_at(LocalHost.NAME).forget([rank.uuid for rank in ranks])

    def _watch_end(self, rank: Rank, pid: int) -> None:
        ended = self._end_at(rank.host).wait_ended(pid, WATCHED_FOR)
        if ended and self._monitor.ranks[rank.rank] is rank and rank.pid == pid:
            self.died(rank.rank, BY_CONNECTION)


def _clause(how: str) -> str:
    """``killed by SIGKILL`` behind a subject."""
    return f"was {how}" if how.startswith("killed") else how


def ended_because(code: int, log: str = "", *, out_of_memory: bool = False) -> str:
    """A dead process's cause in words: signal, exit code or out of memory, with its last crash report.

    `code` is as in `subprocess.Popen.returncode`.
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
