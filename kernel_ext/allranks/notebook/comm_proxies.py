"""Widgets of ranks, live in the page: the notebook's kernel opens a comm with the same id for each of their comms.

To the page they are widgets of its kernel. Their messages come from the ranks over the lifeline, and the page's
messages go back over it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from allranks.head.state.widget_comms import Tell
from allranks.lifeline.outbox import EVERY, CommMessage, pack, unpack
from allranks.messages.events import CommMessages
from allranks.messages.requests import CommsTaken, PageComms
from allranks.messages.wire import Buffer

if TYPE_CHECKING:
    from .proxy import WidgetProxy

MOST = 1_000
"""Limit for the comms of one rank, and for the comms of all ended ranks together; beyond it, the oldest are closed. A
slider has 3 comms, a bar of tqdm 11."""
MESSAGES_A_SECOND = 500
"""Limit for all ranks together, since Jupyter's server drops output beyond 1,000 messages a second."""
SLOWEST = 2.0
"""Maximum time, in seconds, between two states of a widget, however many widgets there are."""


def page_has_widgets(shell: object) -> bool:
    """Whether the running cell came from a page that can show widgets.

    JupyterLab sends the cell's id (``cellId``); nbclient, papermill and consoles do not.
    """
    kernel = getattr(shell, "kernel", None)
    return kernel is not None and "cellId" in kernel.get_parent("shell").get("metadata", {})


class ProxiedComms:
    """The proxies of the ranks' widgets. `take` is called in the lifeline's thread, other methods in any thread."""

    def __init__(self) -> None:
        self.tell: Tell = lambda _uuid, _request, _buffers: None
        self.wanted = False
        """Whether a page has sent a cell; without a page, states of widgets would only be written into notebooks."""
        self._lock = threading.RLock()
        self._of: dict[str, dict[str, WidgetProxy]] = {}
        """Proxies by process and id."""
        self._deaf: dict[str, WidgetProxy] = {}
        """Proxies of ranks that are gone, by id. Their widgets stay in the page, which may still send messages."""
        self._told: dict[str, int] = {}
        self._closed = False

    def shows(self, model: str) -> bool:
        """Whether the page has the model with the id `model`, so that its views are live."""
        with self._lock:
            return any(model in mirrors for mirrors in self._of.values())

    def take(self, uuid: str, event: CommMessages, buffers: Sequence[Buffer], ranks: int) -> None:
        """Pass messages of a process's widgets to the page, and tell the process how long to wait before it sends more.

        `ranks` is the number of ranks that share `MESSAGES_A_SECOND`.
        """
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
        """Send a message of the page, such as a user's input, to the rank's process."""
        rows, buffers = pack([said])
        with self._lock:
            if said.kind == "comm_close":
                self._of.get(uuid, {}).pop(said.comm, None)
            number = self._told[uuid] = self.told(uuid) + 1
            self.tell(uuid, PageComms(number, rows), buffers)

    def told(self, uuid: str) -> int:
        """Number of page messages that were sent to a process."""
        return self._told.get(uuid, 0)

    def gone(self, uuid: str) -> None:
        """Handle the end of a process: its widgets stay on the page, disabled if they have that state."""
        with self._lock:
            self._told.pop(uuid, None)
            for comm, mirror in self._of.pop(uuid, {}).items():
                mirror.end()
                self._deaf[comm] = mirror
            while len(self._deaf) > MOST:
                self._deaf.pop(next(iter(self._deaf))).close()

    def close(self) -> None:
        """Handle the end of all processes."""
        with self._lock:
            self._closed = True
            for uuid in list(self._of):
                self.gone(uuid)


def _in_kernel() -> bool:
    base = sys.modules.get("ipykernel.kernelbase")
    return base is not None and bool(base.Kernel.initialized())
