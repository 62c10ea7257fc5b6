"""Introspection of a rank: completion, the debugger, a console, the printed text, clocks and traces."""

from __future__ import annotations

from msgspec import Struct

from allranks.messages.events import LedgerEntry

from .request import Answer, Nothing, Question, Request


class Completed(Answer):
    start: int
    end: int
    names: list[str]


class Complete(Question[Completed]):
    """Find names that complete `code` at `cursor`; evaluates nothing."""

    code: str
    cursor: int


class Inspected(Answer):
    found: dict[str, str] | None
    """A MIME bundle; None for a name that the rank does not know."""


class Inspect(Question[Inspected]):
    """Describe a name; evaluates nothing."""

    name: str
    detail: int


class PlainValues(Answer):
    values: dict[str, bool | int | float | str]


class ReadValues(Question[PlainValues]):
    """Read the numbers, texts and truth values among `names`, and among the variables that functions in `names` read.

    The user's functions and classes are returned as checksums of their code. Leaves out the names in `without`.
    Evaluates nothing.
    """

    names: list[str]
    without: list[str]


class ConsoleFile(Answer):
    file: str


class Console(Question[ConsoleFile]):
    """Listen for a console on the rank's host; the answer names the connection file."""

    runs = "main"


class LookBack(Question[Nothing]):
    """Start a post-mortem debugger for the error of the last cell; answered when the user quits it."""

    runs = "main"


class Debug(Request):
    """A command for the debugger."""

    number: int
    command: str


class PrintedPart(Answer):
    """The buffer holds the part, in UTF-8."""

    nbytes: int
    """Bytes of the whole text."""
    incomplete: str
    """Why the text is incomplete; empty if it is complete."""


class ReadPrinted(Question[PrintedPart]):
    """Read what a cell printed on this rank, from byte `offset` on, including text that was not sent."""

    runs = "thread"
    cell: int
    offset: int


class Time(Answer):
    now: float


class Clock(Question[Time]):
    """Read ``time.perf_counter`` on the rank's host."""


class TracedCall(LedgerEntry, array_like=True, frozen=True, kw_only=True):
    """A collective of a traced cell; times are seconds of the host's ``time.perf_counter``."""

    source: int
    """Index in `CellTrace.sources`."""
    asked: float
    began: float | None
    """When its input was computed; None if the collective was not evaluated at once."""
    ended: float | None
    """None if the collective was aborted, or not evaluated at once."""


class TracedMark(Struct, array_like=True, frozen=True):
    """A moment or a span that the user marked."""

    name: str
    thread: str
    """Empty for the main thread."""
    began: float
    ended: float | None


class CellTrace(Struct, frozen=True):
    """The trace of a cell on one rank."""

    began: float
    ended: float
    dropped: int
    """Number of events beyond the limit, which were not kept."""
    collectives: list[TracedCall]
    sources: list[tuple[str, str]]
    """Text of each line that called, and its location if it is outside the cell."""
    evaluations: list[tuple[float, float]]
    marks: list[TracedMark]


class Traced(Answer):
    trace: CellTrace | None
    """The trace of the requested cell; None if it is not the last cell that was traced."""


class ReadTrace(Question[Traced]):
    """Read the trace of this cell."""

    cell: int
