"""Large messages in parts, so that heartbeats, interrupts and output get through while gigabytes are sent.

ZeroMQ answers a heartbeat between two frames, never within one, and treats a few seconds of silence as a lost
connection, so frames must be short. Each part is a message of its own, and only `WINDOW` parts may be unconfirmed. So
other messages pass between the parts, memory is bounded, and either end can stop the transfer. The sender does not copy
the buffers; the receiver copies them once.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from allranks.messages.transfer_steps import TransferSteps
from allranks.messages.wire import Buffer, NotUnderstood, question_number

CHUNK = 2 * 2**20
"""Maximum bytes of a part. A message whose buffers have at most this total is sent whole. Parts of this size stay in a
processor's cache while they are encrypted and copied: they were sent 1.3 times as fast as parts of 8 MiB."""
WINDOW = 16
"""Maximum number of unconfirmed parts of a transfer."""


class CannotHold(Exception):
    """The buffers of `message` could not be received; `question` is the number of its question, or None."""

    def __init__(self, message: bytes, question: int | None, text: str) -> None:
        super().__init__(text)
        self.message, self.question = message, question


def is_large(buffers: Sequence[Buffer]) -> bool:
    """Whether a question, an answer or a `Done` with these buffers is sent in parts; other messages are sent whole."""
    return sum(memoryview(buffer).nbytes for buffer in buffers) > CHUNK


class _Outgoing:
    def __init__(self, buffers: Sequence[Buffer], question: int | None) -> None:
        views = [memoryview(buffer) for buffer in buffers]
        self._left = deque(view if view.format == "B" and view.ndim == 1 else view.cast("B") for view in views)
        self.sizes, self.question = [view.nbytes for view in views], question
        self.total, self.sent, self.under_way = sum(self.sizes), 0, 0

    def next_part(self) -> list[memoryview]:
        """The next slices of the buffers; empty once all bytes are sent."""
        part, room = list[memoryview](), CHUNK
        while self._left and room:
            view = self._left.popleft()
            if len(view) > room:
                self._left.appendleft(view[room:])
                view = view[:room]
            if view:
                part.append(view)
            room -= len(view)
        self.sent += CHUNK - room
        return part


class _Incoming:
    def __init__(self, message: bytes, sizes: Sequence[int]) -> None:
        self.message, self.question = message, question_number(message)
        self.buffers = [bytearray() for _ in sizes]
        self._sizes, self._at = sizes, 0
        self.total, self.received = sum(sizes), 0

    def add(self, frames: Sequence[Buffer]) -> None:
        """Append `frames` to the buffers, which are not allocated in advance. Raises NotUnderstood and MemoryError."""
        for frame in frames:
            while self._at < len(self._sizes) and len(self.buffers[self._at]) == self._sizes[self._at]:
                self._at += 1
            if self._at == len(self._sizes) or len(self.buffers[self._at]) + len(frame) > self._sizes[self._at]:
                raise NotUnderstood("more bytes than were announced")
            self.buffers[self._at] += frame
            self.received += len(frame)


class Transfers:
    """All large messages from and to one peer. Used in the lifeline's thread."""

    def __init__(
        self,
        kinds: TransferSteps,
        send: Callable[[Any, Sequence[Buffer]], None],
        is_wanted: Callable[[int], bool] = lambda _question: True,
        numbers: Iterator[int] | None = None,
    ) -> None:
        """`is_wanted` says whether a caller still waits for the answer to a question.

        Pass the same `numbers` for all connections of a peer, so that no late message refers to a newer transfer.
        """
        self._kinds, self._send, self._is_wanted = kinds, send, is_wanted
        self._outgoing: dict[int, _Outgoing] = {}
        self._incoming: dict[int, _Incoming] = {}
        self._numbers = itertools.count(1) if numbers is None else numbers

    def __len__(self) -> int:
        return len(self._outgoing) + len(self._incoming)

    def begin(self, message: bytes, buffers: Sequence[Buffer], question: int | None = None) -> None:
        """Start to send a message; `question` is the number of the question that it asks or answers, if any."""
        number, outgoing = next(self._numbers), _Outgoing(buffers, question)
        self._outgoing[number] = outgoing
        self._send(self._kinds.announced(number, message, outgoing.sizes), ())
        self._go_on(number, outgoing)

    def _go_on(self, number: int, outgoing: _Outgoing) -> None:
        while outgoing.under_way < WINDOW and (part := outgoing.next_part()):
            outgoing.under_way += 1
            self._send(self._kinds.part(number), part)
        if not outgoing.under_way:
            del self._outgoing[number]

    def take(self, about: Any, frames: Sequence[Buffer]) -> tuple[bytes, list[bytearray]] | None:
        """Handle a message of the other end; return a large message once it is complete, else None.

        Raises NotUnderstood and CannotHold.
        """
        match about.__struct_config__.tag:
            case "announced":
                self._announced(about.transfer, about.message, about.sizes)
            case "part":
                return self._part(about.transfer, frames)
            case "taken":
                self._taken(about.transfer)
            case "refused":
                self._outgoing.pop(about.transfer, None)
            case "dropped":
                self._incoming.pop(about.transfer, None)
        return None

    def _announced(self, number: int, message: bytes, sizes: Sequence[int]) -> None:
        if sum(sizes) <= 0 or min(sizes) < 0:
            raise NotUnderstood("a message in parts that announces no bytes")
        self._incoming[number] = _Incoming(message, sizes)

    def _part(self, number: int, frames: Sequence[Buffer]) -> tuple[bytes, list[bytearray]] | None:
        incoming = self._incoming.get(number)
        if incoming is None or not self._wants(incoming):
            self._refuse(number)
            return None
        try:
            incoming.add(frames)
        except (NotUnderstood, MemoryError) as error:
            self._refuse(number)
            what = str(error) or f"there is not enough memory for the {incoming.total:,} bytes of it"
            raise CannotHold(incoming.message, incoming.question, what) from None
        self._send(self._kinds.taken(number), ())
        if incoming.received < incoming.total:
            return None
        del self._incoming[number]
        return incoming.message, incoming.buffers

    def _taken(self, number: int) -> None:
        if (outgoing := self._outgoing.get(number)) is not None:
            outgoing.under_way -= 1
            self._go_on(number, outgoing)

    def drop(self, is_unwanted: Callable[[int | None], bool]) -> None:
        """Stop sending each message for which `is_unwanted` returns True.

        `is_unwanted` gets the number of the message's question, or None.
        """
        for number, outgoing in list(self._outgoing.items()):
            if is_unwanted(outgoing.question):
                del self._outgoing[number]
                self._send(self._kinds.dropped(number), ())

    def drop_unwanted(self) -> None:
        """Drop, in both directions, the messages whose question has no waiting caller, and inform the other end."""
        self.drop(lambda question: question is not None and not self._is_wanted(question))
        for number, incoming in list(self._incoming.items()):
            if not self._wants(incoming):
                self._refuse(number)

    def clear(self) -> None:
        """Forget all transfers: they are lost with the connection."""
        self._outgoing.clear()
        self._incoming.clear()

    @property
    def moved(self) -> tuple[int, int]:
        """Bytes transferred so far in the current transfers, and their total size. May be called from any thread."""
        out, into = list(self._outgoing.values()), list(self._incoming.values())
        sent = sum(each.sent - each.under_way * CHUNK for each in out)
        received = sum(each.received for each in into)
        return max(0, sent) + received, sum(each.total for each in out) + sum(each.total for each in into)

    def _wants(self, incoming: _Incoming) -> bool:
        return incoming.question is None or self._is_wanted(incoming.question)

    def _refuse(self, number: int) -> None:
        self._incoming.pop(number, None)
        self._send(self._kinds.refused(number), ())
