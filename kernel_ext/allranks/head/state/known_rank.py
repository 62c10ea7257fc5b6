"""The state of one rank's process, as far as the head knows it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import NamedTuple

import psutil

from allranks.hosts_from_options import HERE
from allranks.messages.events import AtDebugger, Item, Leaving, State
from allranks.messages.requests import Saved
from allranks_backends.views import RankState

SILENT_AFTER = 4.0
"""A rank counts as silent after this many seconds without a message: a rank reports at least every 2 s."""

IN_FLIGHT = 1.0
"""Seconds for which messages may still arrive that a rank had sent before its process was suspended."""
RETURNS_WITHIN = 20.0
"""Seconds a rank gets to reconnect once its host is reached again: the rank tries once a second."""


class Away(NamedTuple):
    """A host that cannot be reached."""

    since: float
    """The `time.monotonic` at which the host was lost."""
    why: str = ""
    """Why the last login failed, as a clause; empty before the first attempt."""


@dataclass(frozen=True)
class SavedVariables:
    """Variables of a rank's earlier process, saved to a file and not loaded yet."""

    path: str
    host: str
    saved: Saved


@dataclass
class Rank:
    """The state of one rank's process, as far as the head knows it."""

    rank: int
    host: str
    uuid: str
    pid: int | None = None
    connected: bool = False
    connected_at: float = 0.0
    """The `time.monotonic` of its first connection; 0 before."""
    ready: bool = False
    folder: str = ""
    """The folder in which it started, if its host lacked the intended folder; otherwise empty."""
    report: State = field(default_factory=State)
    received_at: float = 0.0
    host_back_at: float = 0.0
    """The `time.monotonic` at which its host was last reached again; 0 if the host was never away, or is away now."""
    since: float = 0.0
    cell: int | None = None
    """Number of the cell that it runs, or that was sent to it; None if there is none."""
    seen: int = 0
    """`seq` of the last message received about its `cell`."""
    failed: str | None = None
    """Class name of the error that its last cell raised; None also if the cell was interrupted or unblocked."""
    unblocked: bool = False
    """Whether its last cell ended because its collective was aborted."""
    interrupted: bool = False
    """Whether its last cell was interrupted, which is not a failure; False once any rank gets another cell."""
    suspended_since: float | None = None
    """The `time.monotonic` at which its host process reported that its process is suspended (SIGSTOP); else None."""
    dead: str | None = None
    """Why it is dead; None while it is alive."""
    entered: int = 0
    """Number of the last shared collective that it called."""
    replaying: bool = False
    """Whether it is entering collectives that it had missed, to unblock others."""
    invalid: tuple[str, ...] = ()
    """Variables that an aborted collective made invalid, if no thread tracked the cell when it ended."""
    past: set[int] = field(default_factory=set)
    """Numbers of the cells it has finished."""
    listens: int | None = None
    """The port on which it last listened for the other ranks of a world."""
    leaving: Leaving | None = None
    debugger: AtDebugger | None = None
    """The last report of its debugger; None unless the debugger is at its prompt or may come back to it."""
    late: list[Item] = field(default_factory=list)
    """Output that it printed between cells and that has not been shown yet."""

    @property
    def in_debugger(self) -> bool:
        """Whether its debugger waits at a prompt."""
        return self.debugger is not None and self.debugger.open

    @property
    def busy(self) -> bool:
        """Whether it runs a cell, enters collectives to unblock others, or waits in its debugger."""
        return self.cell is not None or self.replaying or self.in_debugger

    @property
    def ends_steps(self) -> bool:
        """Whether the cell that it runs has ended a step, so that the rank answers questions after the next step."""
        return self.report.in_steps and self.report.cell == self.cell and not self.in_debugger and not self.replaying

    @property
    def silent(self) -> bool:
        """Whether it has sent nothing for `SILENT_AFTER` seconds (see `silent_for`)."""
        return self.silent_for > SILENT_AFTER

    @property
    def silent_for(self) -> float:
        """Seconds since its last message, or since its host's return if that is later; 0 before its first message."""
        return time.monotonic() - max(self.received_at, self.host_back_at) if self.received_at else 0.0

    @property
    def returning(self) -> bool:
        """Whether its host was reached again in the last `RETURNS_WITHIN` seconds and the rank has yet to reconnect."""
        return self.dead is None and self.received_at < self.host_back_at > time.monotonic() - RETURNS_WITHIN

    @property
    def suspended(self) -> bool:
        """Whether its process is suspended, as its host process has reported.

        A message that came `IN_FLIGHT` seconds after that report shows that the process runs again.
        """
        return self.suspended_since is not None and self.received_at < self.suspended_since + IN_FLIGHT

    def process_is_stopped(self) -> bool:
        """Whether its process is suspended (`kill -STOP`), as far as is known.

        Ranks of `mpirun` have no host process as their parent: that they are suspended is known only on this machine,
        once they are silent. A silent rank may also hold the GIL, for instance while it pickles a large value.
        """
        if self.suspended:
            return True
        if not self.silent or self.pid is None or self.host != HERE.name:
            return False
        try:
            return psutil.Process(self.pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
        except psutil.Error:
            return False

    @property
    def state(self) -> RankState:
        """The state as it is shown."""
        if self.dead is not None:
            return "dead"
        if not self.ready:
            return "starting"
        if self.silent or self.suspended:
            return "suspended" if self.process_is_stopped() else "silent"
        if self.in_debugger:
            return "debugging"
        if self.cell is not None:
            own = self.report.cell == self.cell or not self.report.running  # or a task of an earlier cell is in its way
            return "waiting" if self.report.waiting and own else "running"
        return "unblocked" if self.unblocked else "failed" if self.failed else "idle"
