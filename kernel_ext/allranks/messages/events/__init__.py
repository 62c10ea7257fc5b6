"""Events: reports to the head, from a rank or from a process that a scheduler started.

Each type says when it is sent. Events of a cell contain its number. `Output` and `Done` also contain `seq`: the rank
keeps them until the head acknowledges the cell, and sends them again after a reconnect. `CommMessages`, `LogCalls` and
`TaskEvent` are sent again by numbers of their own. `probe_answers` has the answers to the probe's questions.

Runs in: every process of allranks.
Called by: ``rank`` and ``lifeline``, which send them; ``head``, ``hosts``, ``cluster``, ``notebook`` and ``timeline``,
which handle them; ``probe`` for `probe_answers`.
May call: ``messages``.
"""

from __future__ import annotations

from .measures import Compiler, Gpu, LedgerEntry, LinkReading, Machine, Memory, OpTotals
from .output import Bundle, BundleKind, CellError, Clear, Cut, Item, OutputItem, Raised, Stream, Text, packed, unpacked
from .reports import (
    MOST_TIMED,
    Answered,
    AtDebugger,
    Began,
    CellEvent,
    CommKind,
    CommMessages,
    CommRow,
    Done,
    Entering,
    EvaluatedAtOnce,
    Event,
    Exchanged,
    Failed,
    Hello,
    JoinedFrom,
    Leaving,
    Listens,
    LogCall,
    LogCalls,
    Output,
    Ready,
    State,
    TaskEvent,
    TaskHello,
    Timed,
    Unblocked,
    snake,
)
from .transfer_events import EventOfTransfer

__all__ = [
    "MOST_TIMED",
    "Answered",
    "AtDebugger",
    "Began",
    "Bundle",
    "BundleKind",
    "CellError",
    "CellEvent",
    "Clear",
    "CommKind",
    "CommMessages",
    "CommRow",
    "Compiler",
    "Cut",
    "Done",
    "Entering",
    "EvaluatedAtOnce",
    "Event",
    "EventOfTransfer",
    "Exchanged",
    "Failed",
    "Gpu",
    "Hello",
    "Item",
    "JoinedFrom",
    "Leaving",
    "LedgerEntry",
    "LinkReading",
    "Listens",
    "LogCall",
    "LogCalls",
    "Machine",
    "Memory",
    "OpTotals",
    "Output",
    "OutputItem",
    "Raised",
    "Ready",
    "State",
    "Stream",
    "TaskEvent",
    "TaskHello",
    "Text",
    "Timed",
    "Unblocked",
    "packed",
    "snake",
    "unpacked",
]
