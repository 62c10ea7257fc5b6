"""Looks into a rank: completion, the debugger, a console, clocks and recordings."""

from __future__ import annotations

from msgspec import Struct

from .base import Answer, Nothing, Question, Request


class Completed(Answer):
    start: int
    end: int
    names: list[str]


class Complete(Question[Completed]):
    """Names that continue `code` at `cursor`; evaluates nothing."""

    code: str
    cursor: int


class Inspected(Answer):
    found: dict[str, str] | None
    """A MIME bundle; None for a name that the rank does not know."""


class Inspect(Question[Inspected]):
    """What there is to say of a name; evaluates nothing."""

    name: str
    detail: int


class PlainValues(Answer):
    values: dict[str, bool | int | float | str]


class ReadValues(Question[PlainValues]):
    """Numbers, text and truth values that code reads, but for the names `without`; evaluates nothing."""

    names: list[str]
    without: list[str]


class ConsoleFile(Answer):
    file: str


class Console(Question[ConsoleFile]):
    """Listen for a console on the rank's host; the answer names the connection file."""

    runs = "main"


class LookBack(Question[Nothing]):
    """Stay in the frames of what the last cell raised; answered when that is over."""

    runs = "main"


class Debug(Request):
    """A command for the debugger."""

    number: int
    command: str


class PrintedPart(Answer):
    """The buffer has the part, in UTF-8."""

    nbytes: int
    """Of the whole text."""
    incomplete: str
    """Why the text is incomplete; empty if it is complete."""


class ReadPrinted(Question[PrintedPart]):
    """What a cell printed on this rank, from this byte on, also what was not sent."""

    runs = "thread"
    cell: int
    offset: int


class Time(Answer):
    now: float


class Clock(Question[Time]):
    """What ``time.perf_counter`` says on the rank's host."""


class TracedCall(Struct, array_like=True, frozen=True):
    """A collective of a recorded cell; times are seconds of the host's ``time.perf_counter``."""

    number: int
    op: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    shared: bool
    source: int
    """Index in `CellTrace.sources`."""
    asked: float
    began: float | None
    """When its input was there; None where it was not evaluated at once."""
    ended: float | None
    """None where it was aborted, or not evaluated at once."""


class TracedMark(Struct, array_like=True, frozen=True):
    """What the user marked."""

    name: str
    thread: str
    """Empty for the main thread."""
    began: float
    ended: float | None


class CellTrace(Struct, frozen=True):
    """What a rank recorded of a cell."""

    began: float
    ended: float
    dropped: int
    """Events beyond those that are kept."""
    collectives: list[TracedCall]
    sources: list[tuple[int | None, str, str]]
    """Line of the cell, None for code that stands elsewhere, its text, and where it is in that case."""
    evaluations: list[tuple[float, float]]
    marks: list[TracedMark]


class Traced(Answer):
    trace: CellTrace | None
    """None where another cell was recorded since."""


class Trace(Question[Traced]):
    """What was recorded of this cell."""

    cell: int
