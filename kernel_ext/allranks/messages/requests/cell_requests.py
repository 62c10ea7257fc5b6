"""Requests about cells, the widgets that they show, and the process that runs them."""

from __future__ import annotations

from typing import Any

from allranks.messages.events import CommRow

from .request import Nothing, Question, Request


class RunCell(Request):
    """Run a cell, after all cells and shell messages that arrived before it."""

    runs = "main"
    code: str
    cell: dict[str, Any]
    """A `CellRequest` as plain data: a rank of another version fails the cell, and reports what it cannot read."""
    after: tuple[str, ...] = ()
    """Requests that ipyparallel's client in the notebook sent before the cell; they run before it."""


class Greet(Request):
    """Send `Hello` again: a message of the rank arrived on a connection before any `Hello`."""


class Register(Request):
    """Register the engine again with ipyparallel's controller, which was restarted."""

    runs = "main"


class KeepCall(Question[Nothing]):
    """Keep the function and arguments in the buffers, for cell `cell` to call."""

    cell: int


class Acknowledge(Request):
    """The head has received all events of this cell."""

    cell: int


class Decided(Request):
    """The notebook knows that this rank failed in the cell, and unblocks the ranks that wait for it."""

    cell: int


class Interrupt(Request):
    """Stop a cell: abort the blocked collective if possible, and interrupt Python code with SIGINT.

    If `cell` is None, stop the running cell or the post-mortem debugger. If the cell has ended, stop sending its value.
    If it has not begun, abort the collective of an earlier cell's asyncio task for which it waits.
    """

    cell: int | None


class Unblock(Request):
    """Abort the collective in which the rank is blocked; no effect if it is not in a collective."""

    cell: int


# Widgets


class PageComms(Request):
    """Messages to the rank's widgets, from the user's actions in the page."""

    number: int
    messages: tuple[CommRow, ...]


class CommsTaken(Request):
    """The head has the comm messages up to this `number`, and wants further ones at most every `every` seconds."""

    number: int
    every: float


# Processes


class Exit(Request):
    """End the process at once, even if the main thread is blocked."""


class Welcome(Request):
    """Sent to a process that a scheduler started, once it is accepted. The text is for its log."""

    text: str


class TaskOrder(Request):
    """Sent to a process that a scheduler started: a request, as a line, to the host process that it runs."""

    line: bytes
