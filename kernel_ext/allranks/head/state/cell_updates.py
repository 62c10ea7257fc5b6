"""Updates on a cell from each rank, which the monitor passes to the thread that follows the cell."""

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
    """The items of an `Output`, as `Fold` takes them."""


CellUpdates: TypeAlias = "queue.SimpleQueue[CellUpdate | None]"
"""The updates on one cell, in order; None wakes the thread that waits for more."""
