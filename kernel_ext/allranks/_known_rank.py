"""What is known of one rank's process."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from allranks_backends._plan import RankState

Header = dict[str, Any]

SILENT_AFTER = 4.0
"""Seconds without a word after which a connected rank is called stopped: it reports at least every 2 s."""


@dataclass
class Rank:
    """What is known of one rank's process."""

    rank: int
    host: str
    uuid: str
    pid: int | None = None
    connected: bool = False
    ready: bool = False
    report: Header = field(default_factory=dict)
    heard: float = 0.0
    since: float = 0.0
    cell: int | None = None
    """The cell it runs, or was sent."""
    seen: int = 0
    """`seq` of the last message of that cell."""
    failed: str | None = None
    """What it raised in the last cell."""
    dead: str | None = None
    """Why it is dead."""
    seq: int = 0
    """Number of the last collective it asked for."""
    replaying: bool = False
    """It is entering collectives it had missed, to free others."""
    past: set[int] = field(default_factory=set)
    """Numbers of the cells it has finished."""
    leaving: Header | None = None
    debugger: Header | None = None
    """What its debugger said last; None when it has none open, nor one that may come back to its prompt."""
    late: list[Any] = field(default_factory=list)
    """What it printed between cells, not shown yet."""

    @property
    def in_debugger(self) -> bool:
        """Whether it stands at a prompt of its debugger."""
        return self.debugger is not None and bool(self.debugger["open"])

    @property
    def busy(self) -> bool:
        """Whether it runs a cell, or something for another rank's."""
        return self.cell is not None or self.replaying or self.in_debugger

    @property
    def state(self) -> RankState:
        """As it is shown."""
        if self.dead is not None:
            return "dead"
        if not self.ready:
            return "starting"
        if self.heard and time.monotonic() - self.heard > SILENT_AFTER:
            return "stopped"
        if self.in_debugger:
            return "debugging"
        if self.cell is not None:
            return "waiting" if self.report.get("waiting") and self.report.get("cell") == self.cell else "running"
        return "failed" if self.failed else "idle"
