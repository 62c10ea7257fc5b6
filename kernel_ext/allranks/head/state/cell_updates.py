"""What happens to a cell on each rank, from the monitor to the cell that is followed."""

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
class CellUpdate:
    """Something that happened to a cell on one rank."""

    rank: int
    event: Event | Died
    buffers: Sequence[Buffer] = ()
    items: Sequence[Item] = ()
    """What an `Output` brings, as a fold takes it."""


CellUpdates: TypeAlias = "queue.SimpleQueue[CellUpdate | None]"
"""What happens to one cell, in order; None wakes the thread that waits for more."""
