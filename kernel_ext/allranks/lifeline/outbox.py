"""A bounded queue of comm messages to send: state updates are merged, and only recent other messages are kept.

A comm connects a widget on a rank to its counterpart in the page (target ``jupyter.widget``). It is opened with a
state, then sends ``update`` with the changed part of the state, and a few other messages.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from allranks.messages.events import CommKind, CommRow
from allranks.messages.wire import Buffer, NotUnderstood, dict_from_json, to_json

TARGET = "jupyter.widget"
"""The comm target of widgets."""
EVERY = 0.05
"""Minimum seconds between two sends, except of messages that open comms; the notebook may ask for longer pauses."""
OTHERS_KEPT = 100
"""Maximum number of messages other than state updates that are kept for each comm; the oldest are dropped first."""


class CommMessage(NamedTuple):
    """One message of a comm."""

    kind: CommKind
    comm: str
    data: dict[str, Any]
    metadata: dict[str, Any]
    buffers: Sequence[bytes] = ()

    @property
    def is_state(self) -> bool:
        return self.kind == "comm_msg" and self.data.get("method") == "update"


@dataclass
class _Waiting:
    opening: CommMessage | None = None
    state: CommMessage | None = None
    others: deque[CommMessage] = field(default_factory=lambda: deque(maxlen=OTHERS_KEPT))

    def rest(self) -> list[CommMessage]:
        return [*([self.state] if self.state is not None else []), *self.others]


class Outbox:
    """The queue of messages; may be used by any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, _Waiting] = {}
        self.opens = 0
        """Number of comms whose opening message waits to be sent."""

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def put(self, message: CommMessage) -> None:
        """Queue a message. A state update is merged with the queued state of its comm.

        A message that closes a comm replaces all queued messages of the comm. If the comm's opening message is still
        queued, no message of the comm is sent.
        """
        with self._lock:
            waiting = self._waiting.setdefault(message.comm, _Waiting())
            if message.kind == "comm_open":
                waiting.opening = message
                self.opens += 1
            elif message.kind == "comm_close" and waiting.opening is not None:
                del self._waiting[message.comm]
                self.opens -= 1
            elif message.kind == "comm_close":
                self._waiting[message.comm] = _Waiting(others=deque([message]))
            elif not message.is_state:
                waiting.others.append(message)
            elif waiting.opening is not None:
                waiting.opening = merged(waiting.opening, message)
            else:
                waiting.state = message if waiting.state is None else merged(waiting.state, message)

    def take_opens(self) -> list[CommMessage]:
        """Remove and return the messages that open comms, in order."""
        if not self.opens:
            return []
        with self._lock:
            self.opens = 0
            opened = [waiting.opening for waiting in self._waiting.values() if waiting.opening is not None]
            for message in opened:
                self._waiting[message.comm].opening = None
                if not self._waiting[message.comm].others:
                    del self._waiting[message.comm]
        return opened

    def take(self) -> list[CommMessage]:
        """Remove and return all messages; comms are opened first, since a state may refer to other comms."""
        opened = self.take_opens()
        with self._lock:
            waiting, self._waiting = self._waiting, {}
            # A comm that was opened meanwhile waits for the next call.
            self._waiting = {comm: each for comm, each in waiting.items() if each.opening is not None}
            return opened + [message for each in waiting.values() if each.opening is None for message in each.rest()]


def merged(old: CommMessage, new: CommMessage) -> CommMessage:
    """Return `old` with its state updated by the state of `new`."""
    fresh = new.data.get("state") or {}
    changed = set(fresh) | {path[0] for path in new.data.get("buffer_paths", ())}
    kept = [pair for pair in _buffers(old) if pair[0][0] not in changed]
    pairs = kept + _buffers(new)
    state = {name: value for name, value in (old.data.get("state") or {}).items() if name not in changed}
    data = {**old.data, "state": {**state, **fresh}, "buffer_paths": [path for path, _ in pairs]}
    return old._replace(data=data, buffers=[buffer for _, buffer in pairs])


def _buffers(message: CommMessage) -> list[tuple[list[str | int], bytes]]:
    return list(zip(message.data.get("buffer_paths", ()), message.buffers, strict=False))


def pack(messages: Sequence[CommMessage]) -> tuple[tuple[CommRow, ...], list[bytes]]:
    """Convert messages to rows; return the rows, and all buffers in one list."""
    rows = tuple(
        CommRow(each.kind, each.comm, to_json(each.data), to_json(each.metadata), len(each.buffers))
        for each in messages
    )
    return rows, [buffer for each in messages for buffer in each.buffers]


def unpack(rows: Sequence[CommRow], buffers: Sequence[Buffer]) -> list[CommMessage]:
    """Restore the messages of `pack`; buffers are copied. Raises NotUnderstood."""
    if sum(row.buffers for row in rows) != len(buffers) or any(row.buffers < 0 for row in rows):
        raise NotUnderstood(f"comms that announce other buffers than the {len(buffers)} that came")
    messages, left = [], iter(buffers)
    for row in rows:
        own = [bytes(next(left)) for _ in range(row.buffers)]
        messages.append(CommMessage(row.kind, row.comm, dict_from_json(row.data), dict_from_json(row.metadata), own))
    return messages
