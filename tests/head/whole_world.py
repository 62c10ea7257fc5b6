"""A monitor that knows two ranks, without processes, and messages for it."""

from __future__ import annotations

import queue
from contextlib import suppress
from typing import Any

from allranks.head.state.cell_updates import CellUpdates
from allranks.head.state.known_rank import Rank
from allranks.head.state.monitor import Monitor
from allranks.head.state.widget_comms import NoComms
from allranks.messages.events import (
    CellError,
    CommMessages,
    Cut,
    Done,
    Hello,
    LedgerEntry,
    Output,
    Text,
)

CELL = 7
WITHIN = 60.0
ENTRY = LedgerEntry(4, "all_sum", (10,), "float32", 40, 3, True)
HELLO = Hello("secret", 0, pid=40, host="localhost", ready=False, cell=CELL, open=False)
BOOM = CellError("ValueError", "boom", [], 3)


class Comms(NoComms):
    """Writes down what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[tuple[str, int]] = []
        self.ended: list[str] = []

    def take(self, uuid: str, event: CommMessages, buffers: Any, ranks: int) -> None:
        self.taken.append((uuid, ranks))

    def gone(self, uuid: str) -> None:
        self.ended.append(uuid)


def known(number: int, **fields: Any) -> Rank:
    return Rank(number, "localhost", f"rank-{number}", ready=True, connected=True, **fields)


def whole_world() -> Monitor:
    """Of two idle ranks."""
    monitor = Monitor("main", Comms())
    monitor.put(known(0))
    monitor.put(known(1))
    monitor.state = "whole"
    return monitor


def ended_comms(monitor: Monitor) -> list[str]:
    assert isinstance(monitor.comms, Comms)
    return monitor.comms.ended


def put_out(text: str, seq: int, cell: int = CELL) -> Output:
    return Output(cell, (Text("stdout", [text]),), None, seq)


def done(cell: int = CELL, seq: int = 9, **fields: Any) -> Done:
    base: dict[str, Any] = {"ok": True, "error": None, "lines": 0, "nbytes": 0, "cut": Cut(0, 0), "entered": 4}
    return Done(cell=cell, seq=seq, **{**base, "shared": (0, 0), **fields})


def came(updates: CellUpdates) -> list[tuple[int, Any]]:
    found = []
    with suppress(queue.Empty):
        while True:
            update = updates.get_nowait()
            assert update is not None
            found.append((update.rank, update.event))
    return found
