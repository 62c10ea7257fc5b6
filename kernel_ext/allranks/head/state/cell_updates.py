"""Updates on a cell from each rank. The monitor passes them to the thread that tracks the cell."""

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
    """The output in an `Output` or `Done`, as `Fold` takes it; empty for other events."""


CellUpdates: TypeAlias = "queue.SimpleQueue[CellUpdate | None]"
"""The updates on one cell, in order; None wakes the thread that waits for more."""
