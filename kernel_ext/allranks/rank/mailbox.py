"""What comms have yet to say, bounded: of each the last state, however often that changes before it can go.

A comm is a widget's line to its other half (target ``jupyter.widget``): it is opened with a state, says ``update`` with
what has changed of it, and a few things besides.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

OTHERS_KEPT = 100
"""Messages of one comm kept that are no states; the oldest go first."""


class Letter(NamedTuple):
    """One message of a comm."""

    kind: str
    """``comm_open``, ``comm_msg`` or ``comm_close``."""
    comm: str
    data: dict[str, Any]
    metadata: dict[str, Any]
    buffers: Sequence[bytes] = ()

    @property
    def is_state(self) -> bool:
        return self.kind == "comm_msg" and self.data.get("method") == "update"


@dataclass
class _Waiting:
    opening: Letter | None = None
    state: Letter | None = None
    others: deque[Letter] = field(default_factory=lambda: deque(maxlen=OTHERS_KEPT))

    def rest(self) -> list[Letter]:
        return [*([self.state] if self.state is not None else []), *self.others]


class Mailbox:
    """Filled and emptied by any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, _Waiting] = {}
        self.opens = 0
        """Comms in it that have yet to be opened."""

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def put(self, letter: Letter) -> None:
        """Keep a message, in place of what it makes needless."""
        with self._lock:
            waiting = self._waiting.setdefault(letter.comm, _Waiting())
            if letter.kind == "comm_open":
                waiting.opening = letter
                self.opens += 1
            elif letter.kind == "comm_close" and waiting.opening is not None:
                del self._waiting[letter.comm]
                self.opens -= 1
            elif letter.kind == "comm_close":
                self._waiting[letter.comm] = _Waiting(others=deque([letter]))
            elif not letter.is_state:
                waiting.others.append(letter)
            elif waiting.opening is not None:
                waiting.opening = merged(waiting.opening, letter)
            else:
                waiting.state = letter if waiting.state is None else merged(waiting.state, letter)

    def take_opens(self) -> list[Letter]:
        """Those that open a comm, in their order; what else there is stays."""
        if not self.opens:
            return []
        with self._lock:
            self.opens = 0
            opened = [waiting.opening for waiting in self._waiting.values() if waiting.opening is not None]
            for letter in opened:
                self._waiting[letter.comm].opening = None
                if not self._waiting[letter.comm].others:
                    del self._waiting[letter.comm]
        return opened

    def take(self) -> list[Letter]:
        """All there is; comms are opened first, since a state may name others' comms."""
        opened = self.take_opens()
        with self._lock:
            waiting, self._waiting = self._waiting, {}
            # One that was opened meanwhile waits for the next call.
            self._waiting = {comm: each for comm, each in waiting.items() if each.opening is not None}
            return opened + [letter for each in waiting.values() if each.opening is None for letter in each.rest()]


def merged(old: Letter, new: Letter) -> Letter:
    """``old`` with the state of ``new`` over its own."""
    fresh = new.data.get("state") or {}
    changed = set(fresh) | {path[0] for path in new.data.get("buffer_paths", ())}
    kept = [pair for pair in _buffers(old) if pair[0][0] not in changed]
    pairs = kept + _buffers(new)
    state = {name: value for name, value in (old.data.get("state") or {}).items() if name not in changed}
    data = {**old.data, "state": {**state, **fresh}, "buffer_paths": [path for path, _ in pairs]}
    return old._replace(data=data, buffers=[buffer for _, buffer in pairs])


def _buffers(letter: Letter) -> list[tuple[list[Any], bytes]]:
    return list(zip(letter.data.get("buffer_paths", ()), letter.buffers, strict=False))


def pack(letters: Sequence[Letter]) -> tuple[list[list[Any]], list[bytes]]:
    """As a header can carry them, and their buffers in one row."""
    rows = [[each.kind, each.comm, each.data, each.metadata, len(each.buffers)] for each in letters]
    return rows, [buffer for each in letters for buffer in each.buffers]


def unpack(rows: Sequence[Sequence[Any]], buffers: Sequence[Any]) -> list[Letter]:
    """The letters that `pack` was given; buffers are copied."""
    letters, left = [], iter(buffers)
    for kind, comm, data, metadata, count in rows:
        letters.append(Letter(kind, comm, data, metadata, [bytes(next(left)) for _ in range(count)]))
    return letters
