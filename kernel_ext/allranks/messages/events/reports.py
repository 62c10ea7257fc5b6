"""The events themselves."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from .measures import Compiler, Gpu, LedgerEntry, LinkReading, Machine, Memory, OpTotals
from .output import CellError, Cut, OutputItem, Stream

CommKind = Literal["comm_open", "comm_msg", "comm_close"]


def snake(name: str) -> str:
    """``LookBack`` as ``look_back``."""
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")


class Event(Struct, tag_field="event", tag=snake):
    """From a rank's agent, or from a process that has joined."""


class CellEvent(Event):
    """Of one cell on one rank."""

    cell: int


class Hello(Event):
    """The first message of every connection, also after a reconnect."""

    token: str
    """The cluster's secret."""
    rank: int
    pid: int
    host: str
    ready: bool
    cell: int
    """The last that began."""
    open: bool
    """Whether its end has yet to be acknowledged."""


class Ready(Event):
    """The engine can take cells."""

    memory: Memory
    folder: str = ""
    """Where it works, if its host lacks the folder that it was to work in."""


class State(Event):
    """Where the rank stands: several times a second while a cell runs, every two seconds at rest."""

    running: bool = False
    cell: int = 0
    """The last that began."""
    entered: int = 0
    """How many collectives that all ranks share it has asked for."""
    line: int | None = None
    """Of the running cell."""
    source: str | None = None
    collective: LedgerEntry | None = None
    """The last it asked for."""
    waiting: bool = False
    """Whether the main thread is blocked in it."""
    in_task: bool = False
    """Whether it is an asyncio task of an earlier cell that waits in it."""
    tasks: bool = False
    """Whether asyncio tasks that the user's code has started are pending, while no cell runs."""
    unordered: int = 0
    """Collectives that ``--ordered`` could not chain in the last cell."""
    untracked: bool = False
    """Whether evaluation order cannot be tracked with this version of MLX."""
    memory: Memory = Memory()
    cpu: float | None = None
    """Share of one core."""
    effective: float | None = None
    """Bytes a second that its code handed to collectives lately."""
    ops: tuple[OpTotals, ...] = ()
    links: tuple[LinkReading, ...] = ()
    stalled: float | None = None
    """Seconds in which a transfer was pending and no byte moved; None where that cannot be known."""
    compiler: Compiler | None = None
    """Which the main thread seems to wait for."""
    machine: Machine | None = None
    """From one rank of each host."""
    gpu: Gpu | None = None
    """From one rank of each Mac; elsewhere from every rank that computes on one."""
    in_steps: bool = False
    """Whether its cell has ended a step, so that it answers questions after the next one."""


class Began(CellEvent):
    """The cell begins."""

    late: tuple[OutputItem, ...] = ()
    """What was printed since the one before."""


class Output(CellEvent):
    """What the cell has put out since the last such event."""

    items: tuple[OutputItem, ...]
    live: dict[Stream, str] | None
    """The unfinished line of each stream; None where that has not changed."""
    seq: int = 0


MOST_TIMED = 4_000
"""Timed collectives of a cell that a rank tells of: the last ones."""


class Timed(Struct, array_like=True, frozen=True):
    """A collective that was timed."""

    op: str
    nbytes: int
    seconds: float


class EvaluatedAtOnce(Struct, frozen=True):
    """Collectives of two streams or two threads that a rank evaluated at once: in no order that ranks could share."""

    collectives: tuple[LedgerEntry, ...] = ()
    """Of two streams."""
    threads: tuple[str, ...] = ()
    """Names of two threads."""


class Exchanged(Struct, frozen=True, array_like=True):
    """What a rank sent to another and received from it in a cell: how often, and a checksum of dtypes and sizes."""

    peer: int
    sent: tuple[int, int]
    received: tuple[int, int]


class Done(CellEvent):
    """The cell is over; the value of its last expression follows in the buffers."""

    ok: bool
    error: CellError | None
    lines: int
    nbytes: int
    cut: Cut
    entered: int
    """Number of the last collective it asked for."""
    shared: tuple[int, int]
    """How many collectives of the whole world it asked for, and a checksum of them."""
    pending: tuple[str, ...] = ()
    """Variables that wait for a collective."""
    invalid: tuple[str, ...] = ()
    """Variables of which an aborted collective was a part."""
    unmarked: tuple[LedgerEntry, ...] = ()
    """Aborted collectives whose results could not be set to NaN."""
    timed: tuple[Timed, ...] | None = None
    no_value: str | None = None
    """Why the value is not there."""
    settled: int = 0
    """All collectives up to this number were evaluated, as far as it is known."""
    at_once: EvaluatedAtOnce | None = None
    exchanged: tuple[Exchanged, ...] = ()
    seq: int = 0


class Entering(CellEvent):
    """The rank waits at the barrier of ``--check strict`` to enter a collective."""

    collective: LedgerEntry


class Unblocked(CellEvent):
    """A blocked collective was made to return."""

    collective: LedgerEntry | None
    broke: bool = False
    """Whether the world is broken by it."""
    in_task: bool = False
    """Whether an asyncio task of an earlier cell waited in it, while this cell waited for the main thread."""


class AtDebugger(Event):
    """The rank has come to a prompt of its debugger, or left it."""

    cell: int | None
    """None for a look back after the cell."""
    open: bool
    """Whether it waits for a command."""
    stepping: bool
    """Whether it may come back to a prompt."""
    text: str
    """What pdb has printed."""
    answered: int = 0
    """Number of the last command it was given."""
    line: int | None = None
    source: str | None = None


class Listens(Event):
    """The rank enters ``init`` now, in which it listens on this port for the others."""

    port: int


class Leaving(Event):
    """The process is about to end by itself."""

    call: str
    line: int | None


class LogCall(Struct, array_like=True, frozen=True):
    """One call of ``log``."""

    cell: int
    step: float
    at: float
    """Unix time in seconds."""
    values: dict[str, float]
    of: float | None = None
    """How many steps there will be, where the code says so."""


class LogCalls(Event):
    """Calls of ``log``, from number `first` of this process on."""

    first: int
    calls: tuple[LogCall, ...]


class CommRow(Struct, array_like=True, frozen=True):
    """A message of a comm; `data` and `metadata` are JSON, and so many of the buffers that follow are its own."""

    kind: CommKind
    comm: str
    data: bytes
    metadata: bytes
    buffers: int


class CommMessages(Event):
    """What the comms of the rank's widgets said; the head acknowledges the number with `requests.CommsTaken`."""

    number: int
    messages: tuple[CommRow, ...]


class Answered(Event):
    """The answer to question `number`: its own type, encoded."""

    number: int
    answer: bytes


class Failed(Event):
    """Question `number` could not be answered."""

    number: int
    kind: str
    """Name of the exception's class."""
    text: str
    traceback: str = ""
    """Where the error was not foreseen."""


class JoinedFrom(Struct, frozen=True):
    """Where a process that a scheduler started runs, and as which of how many."""

    host: str
    address: str
    """At which it reaches the head."""
    url: str
    """At which it found the head."""
    number: int | None
    size: int | None
    python: str
    cuda: str
    """Its ``CUDA_VISIBLE_DEVICES``."""


class TaskHello(Event):
    """The first message of a process that a scheduler started."""

    token: str
    place: JoinedFrom


class TaskEvent(Event):
    """An event of the host process in such a process; numbered, and sent again after a reconnect."""

    number: int
    line: bytes
    """As the host process wrote it."""
