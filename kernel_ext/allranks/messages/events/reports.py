"""The types of events."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from .measures import Compiler, Gpu, LedgerEntry, LinkReading, Machine, Memory, OpTotals
from .output import CellError, Cut, OutputItem, Stream

CommKind = Literal["comm_open", "comm_msg", "comm_close"]


def snake(name: str) -> str:
    """Convert a class name to snake case: ``LookBack`` becomes ``look_back``."""
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")


class Event(Struct, tag_field="event", tag=snake):
    """A message to the head from a rank's agent, or from a process that a scheduler started."""


class CellEvent(Event):
    """An event of one cell on one rank."""

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
    """The last cell that began."""
    open: bool
    """Whether the head has not yet acknowledged the end of that cell."""


class Ready(Event):
    """The engine is ready for cells."""

    memory: Memory
    folder: str = ""
    """The rank's working folder, if its host lacks the intended one."""


class State(Event):
    """The state of the rank.

    Sent 5 times a second while a cell runs, once a second while `tasks` are pending, and otherwise every 2 seconds.
    """

    running: bool = False
    cell: int = 0
    """The last cell that began."""
    entered: int = 0
    """Number of shared collectives that the rank has called (see `LedgerEntry.shared`)."""
    line: int | None = None
    """The current line of the running cell."""
    source: str | None = None
    collective: LedgerEntry | None = None
    """The last collective that the rank called."""
    waiting: bool = False
    """Whether the main thread is blocked in `collective`."""
    in_task: bool = False
    """Whether an asyncio task of an earlier cell is blocked in `collective`."""
    tasks: bool = False
    """Whether asyncio tasks of the user's code are pending while no cell runs."""
    unordered: int = 0
    """Number of collectives that ``--ordered`` could not chain in the last cell."""
    untracked: bool = False
    """Whether evaluation order cannot be tracked with this version of MLX."""
    memory: Memory = Memory()
    cpu: float | None = None
    """Share of one core."""
    effective: float | None = None
    """Bytes a second that the rank's code has recently passed to collectives."""
    ops: tuple[OpTotals, ...] = ()
    links: tuple[LinkReading, ...] = ()
    stalled: float | None = None
    """Seconds for which a transfer has been pending without a byte moving; None if that cannot be determined."""
    compiler: Compiler | None = None
    """The compiler that the main thread seems to wait for."""
    machine: Machine | None = None
    """Reported by one rank of each host."""
    gpu: Gpu | None = None
    """Reported by one rank of each Mac; elsewhere by every rank that computes on a GPU."""
    in_steps: bool = False
    """Whether the cell has completed a step, so that the rank answers questions after the next step."""


class Began(CellEvent):
    """The cell begins. Without late output, it is not sent if `Done` leaves first."""

    late: tuple[OutputItem, ...] = ()
    """Output since the end of the previous cell."""


class Output(CellEvent):
    """Output of the cell since the previous `Output`. The last output may leave in `Done`."""

    items: tuple[OutputItem, ...]
    live: dict[Stream, str] | None
    """The unfinished line of each stream; None if it has not changed."""
    seq: int = 0


MOST_TIMED = 4_000
"""Maximum number of timed collectives that a rank reports for a cell: the last ones."""


class Timed(Struct, array_like=True, frozen=True):
    """A collective that was timed."""

    op: str
    nbytes: int
    seconds: float


class EvaluatedAtOnce(Struct, frozen=True):
    """Concurrently evaluated collectives of two streams or two threads, whose order may differ between ranks."""

    collectives: tuple[LedgerEntry, ...] = ()
    """Collectives of two streams."""
    threads: tuple[str, ...] = ()
    """Names of the two threads."""


class Exchanged(Struct, frozen=True, array_like=True):
    """Messages sent to and received from a peer in a cell: the number of each, and a checksum of dtypes and sizes."""

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
    """Number of the last shared collective that the rank called."""
    shared: tuple[int, int]
    """The number of shared collectives called in the cell, and a checksum of them."""
    pending: tuple[str, ...] = ()
    """Variables that wait for a collective."""
    invalid: tuple[str, ...] = ()
    """Variables that an aborted collective may have made invalid."""
    unmarked: tuple[LedgerEntry, ...] = ()
    """Aborted collectives whose results could not be set to NaN."""
    timed: tuple[Timed, ...] | None = None
    no_value: str | None = None
    """Why the value could not be sent; None if it was sent or not wanted, or if the cell failed first."""
    settled: int = 0
    """Number up to which all shared collectives were evaluated, as far as is known."""
    at_once: EvaluatedAtOnce | None = None
    exchanged: tuple[Exchanged, ...] = ()
    output: tuple[OutputItem, ...] = ()
    """Output of the cell since the last `Output`; empty with a large value, which leaves after its output."""
    seq: int = 0


class Entering(CellEvent):
    """The rank waits at the barrier of ``--check strict`` to enter a collective."""

    collective: LedgerEntry


class Unblocked(CellEvent):
    """A blocked collective, or the wait at a barrier, was aborted; or a collective failed without an error of MLX."""

    collective: LedgerEntry | None
    broke: bool = False
    """Whether the abort broke the world."""
    in_task: bool = False
    """Whether the collective blocked an asyncio task of an earlier cell, while this cell waited for the main thread."""


class AtDebugger(Event):
    """The rank has reached a prompt of its debugger, or left it."""

    cell: int | None
    """None in post-mortem debugging, after the cell."""
    open: bool
    """Whether the debugger waits for a command."""
    stepping: bool
    """Whether the debugger may return to a prompt."""
    text: str
    """Text that pdb has printed."""
    answered: int = 0
    """Number of the last command that the debugger received."""
    line: int | None = None
    source: str | None = None


class Listens(Event):
    """The rank is about to enter ``init``, in which it listens on this port for the other ranks."""

    port: int


class Leaving(Event):
    """The process is about to exit, since its code called ``os._exit``."""

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
    """The total number of steps, if the code states it."""


class LogCalls(Event):
    """Calls of ``log``, starting with call number `first` of this process."""

    first: int
    calls: tuple[LogCall, ...]


class CommRow(Struct, array_like=True, frozen=True):
    """A message of a comm; `data` and `metadata` are JSON, `buffers` is the number of its buffers."""

    kind: CommKind
    comm: str
    data: bytes
    metadata: bytes
    buffers: int


class CommMessages(Event):
    """Messages of the rank's widgets; the head acknowledges the number with `requests.CommsTaken`."""

    number: int
    messages: tuple[CommRow, ...]


class Answered(Event):
    """The answer to question `number`, encoded."""

    number: int
    answer: bytes


class Failed(Event):
    """Question `number` could not be answered."""

    number: int
    kind: str
    """Name of the exception's class."""
    text: str
    traceback: str = ""
    """The traceback of an error that the rank did not expect; otherwise empty."""


class JoinedFrom(Struct, frozen=True):
    """A process started by a scheduler: its location, its number, and the total number of processes started."""

    host: str
    address: str
    """The process's address on the network to the head."""
    url: str
    """The URL at which the process reached the head."""
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
    """An event of the host process that a scheduler's process runs; numbered, and sent again after a reconnect."""

    number: int
    line: bytes
    """The line that the host process wrote."""
