"""Widgets of ranks, live in the page: the notebook's kernel opens each of their comms again, under the same id.

To the page they are widgets of its kernel. What they say comes up the lifeline; what the user does to them goes down.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from allranks.head.state.widget_comms import Tell
from allranks.messages.events import CommMessages
from allranks.messages.outbox import EVERY, CommMessage, pack, unpack
from allranks.messages.requests import CommsTaken, PageComms
from allranks.messages.wire import Buffer

if TYPE_CHECKING:
    from .proxy import WidgetProxy

MOST = 1_000
"""Comms mirrored of one rank, and of all that are gone (a slider has 3, a bar of tqdm 11); the oldest are closed."""
MESSAGES_A_SECOND = 500
"""From all ranks together: Jupyter's server drops output beyond 1,000 messages a second."""
SLOWEST = 2.0
"""Seconds between two states of a widget, however many there are."""


def page_has_widgets(shell: Any) -> bool:
    """Whether the cell that runs came from a page that can show widgets.

    JupyterLab names the cell it sends (``cellId``); nbclient, papermill and consoles do not.
    """
    kernel = getattr(shell, "kernel", None)
    return kernel is not None and "cellId" in kernel.get_parent("shell").get("metadata", {})


class ProxiedComms:
    """Fed by the monitor in the lifeline's thread; asked, and told that ranks are gone, from any."""

    def __init__(self) -> None:
        self.tell: Tell = lambda _uuid, _request, _buffers: None
        self.wanted = False
        """Whether a page has sent a cell. Without one the states of widgets would only be written into notebooks."""
        self._lock = threading.RLock()
        self._of: dict[str, dict[str, WidgetProxy]] = {}
        """By process and id."""
        self._deaf: dict[str, WidgetProxy] = {}
        """Those of ranks that are gone. Their widgets stay in the page, and may go on talking."""
        self._told: dict[str, int] = {}
        self._closed = False

    def shows(self, model: str) -> bool:
        """Whether the page has the model of this id, so that its views are alive."""
        with self._lock:
            return any(model in mirrors for mirrors in self._of.values())

    def take(self, uuid: str, event: CommMessages, buffers: Sequence[Buffer], ranks: int) -> None:
        """What the widgets of a process say; it is told when more may come, of so many `ranks` alike."""
        rows = event.messages
        every = min(SLOWEST, max(EVERY, len(rows) * ranks / MESSAGES_A_SECOND))
        try:
            if self.wanted and _in_kernel():
                with self._lock:
                    for message in unpack(rows, buffers):
                        self._pass_on(uuid, message)
        finally:
            self.tell(uuid, CommsTaken(event.number, every), ())

    def _pass_on(self, uuid: str, message: CommMessage) -> None:
        mirrors = self._of.setdefault(uuid, {})
        if message.kind == "comm_open" and message.comm not in mirrors and not self._closed:
            from .proxy import WidgetProxy

            mirrors[message.comm] = WidgetProxy(message, partial(self._hand_down, uuid))
            if len(mirrors) > MOST:
                mirrors.pop(next(iter(mirrors))).close()
        elif message.kind == "comm_msg" and message.comm in mirrors:
            mirrors[message.comm].say(message)
        elif message.kind == "comm_close" and message.comm in mirrors:
            mirrors.pop(message.comm).close()

    def _hand_down(self, uuid: str, said: CommMessage) -> None:
        """The user did something in the page: for the rank."""
        rows, buffers = pack([said])
        with self._lock:
            if said.kind == "comm_close":
                self._of.get(uuid, {}).pop(said.comm, None)
            number = self._told[uuid] = self.told(uuid) + 1
            self.tell(uuid, PageComms(number, rows), buffers)

    def told(self, uuid: str) -> int:
        """How often a process was told what the user did."""
        return self._told.get(uuid, 0)

    def gone(self, uuid: str) -> None:
        """A process has ended: its widgets stay where they are shown, and those that can look it are disabled."""
        with self._lock:
            self._told.pop(uuid, None)
            for comm, mirror in self._of.pop(uuid, {}).items():
                mirror.end()
                self._deaf[comm] = mirror
            while len(self._deaf) > MOST:
                self._deaf.pop(next(iter(self._deaf))).close()

    def close(self) -> None:
        """All are gone."""
        with self._lock:
            self._closed = True
            for uuid in list(self._of):
                self.gone(uuid)


def _in_kernel() -> bool:
    base: Any = sys.modules.get("ipykernel.kernelbase")
    return base is not None and bool(base.Kernel.initialized())
