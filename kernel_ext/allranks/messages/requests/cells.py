"""About cells, the widgets that they show, and the process that runs them."""

from __future__ import annotations

from typing import Any

from allranks.messages.events import CommRow

from .base import Nothing, Question, Request


class RunCell(Request):
    """Run a cell, after everything that came before it."""

    runs = "main"
    code: str
    cell: dict[str, Any]
    """A `CellRequest` as plain data: a rank of another version fails the cell, and says what it cannot read."""
    after: tuple[str, ...] = ()
    """Requests of ipyparallel's client in the notebook that were sent before the cell, and that run before it."""


class Greet(Request):
    """Say hello again: a message of the rank came by a connection on which it had not."""


class Register(Request):
    """Register the engine with ipyparallel's controller again, which is another process now."""

    runs = "main"


class KeepCall(Question[Nothing]):
    """The buffers hold a function and its arguments, which cell `cell` is to call."""

    cell: int


class Acknowledge(Request):
    """The head has everything of this cell."""

    cell: int


class Decided(Request):
    """The notebook knows that this rank failed in the cell, and unblocks those that wait for it."""

    cell: int


class Interrupt(Request):
    """Stop a cell: a blocked collective is aborted where that is possible, Python code gets a SIGINT.

    Without a number, whatever runs: a cell, or a look back in the debugger.
    """

    cell: int | None


class Unblock(Request):
    """Make the collective return that the rank is blocked in; nothing happens if it is in none."""

    cell: int


# Widgets


class PageComms(Request):
    """What the user did to the rank's widgets in the page."""

    number: int
    messages: tuple[CommRow, ...]


class CommsTaken(Request):
    """The head has what the comms said up to this `number`, and wants no more for `every` seconds."""

    number: int
    every: float


# Processes


class Exit(Request):
    """End at once, whatever the main thread is blocked in."""


class Welcome(Request):
    """For a process that a scheduler started: it is in. The text is for its log."""

    text: str


class TaskOrder(Request):
    """For such a process: an order for the host process in it, as that reads it."""

    line: bytes
