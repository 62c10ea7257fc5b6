"""What is known of one rank's process."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import NamedTuple

import psutil

from allranks.arguments import HERE
from allranks.messages.events import AtDebugger, Item, Leaving, State
from allranks.messages.requests import Saved
from allranks_backends.views import RankState

SILENT_AFTER = 4.0
"""Seconds without a word after which a connected rank is called stopped: it reports at least every 2 s."""

RETURNS_WITHIN = 20.0
"""Seconds in which a rank is heard again once its host is reached again: it tries to connect once a second."""


class Away(NamedTuple):
    """A host that cannot be reached."""

    since: float
    """As `time.monotonic` has it."""
    why: str = ""
    """Why the last login failed, as a clause; empty before the first try."""


@dataclass(frozen=True)
class SavedVariables:
    """What the earlier process of a rank had: saved to a file, and not loaded yet."""

    path: str
    host: str
    saved: Saved


@dataclass
class Rank:
    """What is known of one rank's process."""

    rank: int
    host: str
    uuid: str
    pid: int | None = None
    connected: bool = False
    ready: bool = False
    folder: str = ""
    """Where it began to work, if its host lacked the folder that it was to work in."""
    report: State = field(default_factory=State)
    received_at: float = 0.0
    host_back_at: float = 0.0
    """When its host was reached again."""
    since: float = 0.0
    cell: int | None = None
    """The cell it runs, or was sent."""
    seen: int = 0
    """`seq` of the last message of that cell."""
    failed: str | None = None
    """What it raised in the last cell, if that was an error of its own."""
    unblocked: bool = False
    """Its last cell ended since its collective was aborted."""
    interrupted: bool = False
    """Its last cell, which is the world's last, was interrupted: no failure of its own."""
    dead: str | None = None
    """Why it is dead."""
    entered: int = 0
    """Number of the last collective it asked for."""
    replaying: bool = False
    """It is entering collectives it had missed, to unblock others."""
    invalid: tuple[str, ...] = ()
    """Variables of which an aborted collective was a part, where its cell had been stopped and could not say it."""
    past: set[int] = field(default_factory=set)
    """Numbers of the cells it has finished."""
    listens: int | None = None
    """The port on which it last listened for the other ranks of a world."""
    leaving: Leaving | None = None
    debugger: AtDebugger | None = None
    """What its debugger reported last; None when it has none open, nor one that may come back to its prompt."""
    late: list[Item] = field(default_factory=list)
    """What it printed between cells, not shown yet."""

    @property
    def in_debugger(self) -> bool:
        """Whether it stands at a prompt of its debugger."""
        return self.debugger is not None and self.debugger.open

    @property
    def busy(self) -> bool:
        """Whether it runs a cell, or something for another rank's."""
        return self.cell is not None or self.replaying or self.in_debugger

    @property
    def ends_steps(self) -> bool:
        """Whether the cell that it runs has ended a step, so that it answers questions after the next one."""
        return self.report.in_steps and self.report.cell == self.cell and not self.in_debugger and not self.replaying

    @property
    def silent(self) -> bool:
        """Whether nothing was received from it for too long."""
        return bool(self.received_at) and time.monotonic() - max(self.received_at, self.host_back_at) > SILENT_AFTER

    @property
    def returning(self) -> bool:
        """Whether its host is reached again, and the rank has yet to connect."""
        return self.dead is None and self.received_at < self.host_back_at > time.monotonic() - RETURNS_WITHIN

    def process_is_stopped(self) -> bool:
        """Whether it is silent because its process is stopped, as far as this machine can tell (`kill -STOP`).

        A silent rank may also hold Python's lock, while it pickles a large value for instance.
        """
        if not self.silent or self.pid is None or self.host != HERE.name:
            return False
        try:
            return psutil.Process(self.pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
        except psutil.Error:
            return False

    @property
    def state(self) -> RankState:
        """As it is shown."""
        if self.dead is not None:
            return "dead"
        if not self.ready:
            return "starting"
        if self.silent:
            return "stopped"
        if self.in_debugger:
            return "debugging"
        if self.cell is not None:
            own = self.report.cell == self.cell or not self.report.running  # a task of an earlier cell is in its way
            return "waiting" if self.report.waiting and own else "running"
        return "unblocked" if self.unblocked else "failed" if self.failed else "idle"
