"""What becomes of a cell, rank by rank: from the monitor to whoever follows the cell."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from allranks.messages.events import Event, Item
from allranks.messages.wire import Buffer


@dataclass(frozen=True)
class Died:
    """The rank's process has ended."""

    cause: str


@dataclass(frozen=True)
class CellNews:
    """Something that became of a cell on one rank."""

    rank: int
    event: Event | Died
    buffers: Sequence[Buffer] = ()
    items: Sequence[Item] = ()
    """What an `Output` brings, as a fold takes it."""


News: TypeAlias = "queue.SimpleQueue[CellNews | None]"
"""What becomes of one cell, as it comes; None wakes whoever waits for more."""
