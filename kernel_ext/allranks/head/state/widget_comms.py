"""The interface through which the monitor uses the code that shows the ranks' widgets in a notebook."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from allranks.messages.events import CommMessages
from allranks.messages.requests import Request
from allranks.messages.wire import Buffer

Tell = Callable[[str, Request, Sequence[Buffer]], None]


class WidgetComms(Protocol):
    """Implemented by `notebook.comm_proxies.ProxiedComms`."""

    tell: Tell
    """Sends a request with buffers to the process with the given uuid; set by `head.world.ranks`."""
    wanted: bool
    """Whether a page that can show widgets has sent a cell."""

    def shows(self, model: str) -> bool:
        """Whether the page has the model with this id."""

    def take(self, uuid: str, event: CommMessages, buffers: Sequence[Buffer], ranks: int) -> None:
        """Handle messages of a process's widgets; `ranks` is the number of living ranks."""

    def told(self, uuid: str) -> int:
        """Return the number of the page's messages that were sent to a process."""

    def gone(self, uuid: str) -> None:
        """Note that a process has ended."""

    def close(self) -> None:
        """Note that all processes have ended."""


class NoComms:
    """Shows no widgets."""

    def __init__(self) -> None:
        self.tell: Tell = lambda _uuid, _message, _buffers: None
        self.wanted = False

    def shows(self, model: str) -> bool:
        return False

    def take(self, uuid: str, event: CommMessages, buffers: Sequence[Buffer], ranks: int) -> None:
        pass

    def told(self, uuid: str) -> int:
        return 0

    def gone(self, uuid: str) -> None:
        pass

    def close(self) -> None:
        pass
