"""Keeps the events of a cell until the head acknowledges them, to send them again after a reconnect."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from allranks.lifeline.rank_end import RankLifeline
from allranks.lifeline.transfers import is_large
from allranks.messages.events import Done, Output
from allranks.messages.wire import Buffer


class KeptEvents:
    """One cell's output and its end, numbered in order: the notebook drops events whose numbers it already has."""

    def __init__(self, lifeline: RankLifeline) -> None:
        self._lifeline = lifeline
        self._events: list[tuple[Output | Done, Sequence[Buffer]]] = []
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._events)

    def begin_cell(self) -> None:
        """Forget the events of the previous cell."""
        self._events.clear()
        self._sequence = 0

    def acknowledged(self) -> None:
        """Forget all events, since the notebook has the whole cell."""
        self._events.clear()

    def send(self, event: Output | Done, buffers: Sequence[Buffer] = ()) -> None:
        """Number the event, send it now, and keep it; drop the last kept event if the new one makes it superfluous."""
        self._sequence += 1
        event = structs.replace(event, seq=self._sequence)
        if self._events and _replaces(event, self._events[-1][0]):
            self._events.pop()
        self._events.append((event, buffers))
        self._lifeline.send(event, buffers)

    def drop_value(self, because: str) -> None:
        """If the cell's value is large and not acknowledged yet, stop sending it, and send the cell's end without it.

        `because` is the reason that the notebook gets instead of the value.
        """
        event, buffers = self._events[-1] if self._events else (None, ())
        if isinstance(event, Done) and is_large(buffers):
            self._lifeline.drop_values()
            self._events[-1] = structs.replace(event, no_value=because), ()
            self._lifeline.send(*self._events[-1])

    def resend(self) -> None:
        """Send all kept events again."""
        for event, buffers in self._events:
            self._lifeline.send(event, buffers)


def _replaces(event: Output | Done, before: Output | Done) -> bool:
    """Whether `event` makes `before` superfluous. Otherwise, the updates of a progress bar would pile up."""
    if not isinstance(before, Output) or before.items:
        return False
    return isinstance(event, Done) or event.live is not None
