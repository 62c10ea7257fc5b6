"""The rank's end of its widgets' comms. For each comm, the notebook opens a proxy comm to the notebook's page.

Widgets' messages are sent over the lifeline in batches, at most one every `EVERY` seconds, with only the last state of
each widget. The next batch is sent once the notebook has taken the previous one, so that messages do not pile up. Only
messages that open comms do not wait: they are sent before the next output, which may refer to the comms. Messages from
the page arrive over the lifeline, too, and are handled in the main thread once that thread is idle.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from allranks.lifeline.outbox import EVERY, TARGET, CommMessage, Outbox, pack, unpack
from allranks.lifeline.rank_end import RankLifeline
from allranks.messages.events import CommKind, CommMessages, CommRow
from allranks.messages.wire import Buffer
from allranks.rank.main_thread.main_thread_calls import MainThread

if TYPE_CHECKING:
    from ipykernel.zmqshell import ZMQInteractiveShell

CATCH_UP_WITHIN = 1.0
"""Maximum seconds that a cell waits for messages that the page sent before the cell."""
MOST_OPENED = 1_000
"""Maximum number of opened comms that the notebook has yet to take; the widgets of further comms show as text."""


class _SentMessage(NamedTuple):
    event: CommMessages
    buffers: list[bytes]
    opens: int


class Comms:
    """Queues the messages that widgets send, in whichever thread the user's code runs.

    The agent's thread sends the queue. As a cell begins, the main thread sends the messages that open comms.
    """

    def __init__(self, main: MainThread, shell: Callable[[], ZMQInteractiveShell], lifeline: RankLifeline) -> None:
        self._main, self._shell, self._lifeline = main, shell, lifeline
        self._up, self._down = Outbox(), Outbox()
        self._mirrored: set[str] = set()
        self._sending = threading.RLock()
        self._sent: deque[_SentMessage] = deque()
        """Batches that the notebook has not taken yet; they are sent again when a notebook connects."""
        self._number = 0
        self._sent_at, self._every = 0.0, EVERY
        self._handling = False
        self._came = threading.Condition()
        self._delivered = 0

    def publish(
        self,
        kind: str,
        content: Mapping[str, Any],
        metadata: Mapping[str, object],
        buffers: Sequence[Buffer],
        ours: bool,
    ) -> bool:
        """Queue a message of a comm for the notebook. Returns False if the comm does not belong to the notebook.

        `ours` says whether a comm that is opened now belongs to the notebook, and not to plain ipyparallel.
        """
        comm, data = content["comm_id"], content.get("data") or {}
        if kind == "comm_open":
            if not ours or content.get("target_name") != TARGET:
                return False
            if self._up.opens + sum(sent.opens for sent in list(self._sent)) >= MOST_OPENED:
                return True
            self._mirrored.add(comm)
        elif comm not in self._mirrored:
            return False
        if kind == "comm_close":
            self._mirrored.discard(comm)
        if data.get("method") == "echo_update":  # the page in which the user made the change shows it already
            return True
        first = not self._up
        # Copies, since the user's code may go on writing to a buffer's memory.
        own = [bytes(buffer) for buffer in buffers]
        self._up.put(CommMessage(cast(CommKind, kind), comm, data, dict(metadata), own))
        if first:
            self._lifeline.wake()
        return True

    def tick(self, now: float) -> float:
        """Send queued messages that are due, in the agent's thread.

        Returns the seconds until the queue is due; infinity if it is empty or cannot be sent yet.
        """
        if not self._up or self._sent or not self._lifeline.connected:
            return float("inf")
        due = self._sent_at + self._every
        if now < due:
            return max(0.001, due - now)
        self._sent_at = now
        with self._sending:
            self._send(self._up.take())
        return float("inf")

    def send_opens(self) -> None:
        """Send the notebook every comm that the next output refers to."""
        with self._sending:
            self._send(self._up.take_opens())

    def _send(self, messages: Sequence[CommMessage]) -> None:
        if not messages:
            return
        self._number += 1
        rows, buffers = pack(messages)
        event = CommMessages(self._number, rows)
        self._sent.append(_SentMessage(event, buffers, sum(each.kind == "comm_open" for each in messages)))
        self._lifeline.send(event, buffers)

    def taken(self, number: int, every: float) -> None:
        """Note that the notebook has taken batches up to `number`, and wants one at most every `every` seconds."""
        self._every = max(EVERY, every)
        with self._sending:
            while self._sent and self._sent[0].event.number <= number:
                self._sent.popleft()

    def resend(self) -> None:
        """Send again, after a reconnect, the batches that may be lost."""
        with self._sending:
            for sent in self._sent:
                self._lifeline.send(sent.event, sent.buffers)

    def deliver(self, number: int, rows: Sequence[CommRow], buffers: Sequence[Buffer]) -> None:
        """Queue the page's messages, in the agent's thread; the main thread handles them once it is idle."""
        for message in unpack(rows, buffers):
            self._down.put(message)
        with self._came:
            self._delivered = number
            self._came.notify()
        if not self._handling:
            self._handling = True
            self._main.call(self._handle)

    def catch_up(self, number: int) -> None:
        """Handle the page's messages up to `number`, which were sent before the cell that is about to run.

        In the main thread. Waits up to `CATCH_UP_WITHIN` seconds: messages and cells are sent separately, and the cell
        may arrive first.
        """
        with self._came:
            if not self._came.wait_for(lambda: self._delivered >= number, CATCH_UP_WITHIN):
                self._delivered = number  # lost with a connection
        self._handle()

    def _handle(self) -> None:
        self._handling = False
        manager = self._shell().kernel.comm_manager
        handlers: Mapping[CommKind, Callable[..., None]] = {
            "comm_open": manager.comm_open,
            "comm_msg": manager.comm_msg,
            "comm_close": manager.comm_close,
        }
        for each in self._down.take():
            if each.comm not in manager.comms:  # the rank has closed the comm meanwhile
                continue
            message = {
                "header": {"msg_type": each.kind, "date": time.time()},
                "parent_header": {},
                "metadata": each.metadata,
                "content": {"comm_id": each.comm, "data": each.data},
                "buffers": list(each.buffers),
            }
            if each.kind == "comm_close":
                self._mirrored.discard(each.comm)
            handlers[each.kind](None, None, message)
