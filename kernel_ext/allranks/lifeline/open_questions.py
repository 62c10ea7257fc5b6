"""Open questions to ranks: each gets its answer, or an error as soon as no answer can arrive."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from allranks.messages.events import Answered, Failed
from allranks.messages.requests import Answer, Question, answer_type
from allranks.messages.wire import Buffer, NotUnderstood, Reader

LOST = "its connection is lost"
STOPPED = "its process is stopped"
CLOSED = "the cluster is down"

A = TypeVar("A", bound=Answer, covariant=True)


@dataclass(frozen=True)
class Reply(Generic[A]):
    """The answer of a rank, with its buffers."""

    answer: A
    buffers: Sequence[Buffer] = ()


class RequestFailed(Exception):
    """The rank raised an exception on a question, or its answer could not be read or held in memory.

    `kind` is the name of the exception's class.
    """

    def __init__(self, kind: str, text: str, traceback: str = "") -> None:
        super().__init__(text)
        self.kind, self.traceback = kind, traceback
        """`traceback` is empty for an error that the rank expected."""


@dataclass
class _Open:
    uuid: str
    reader: Reader[Any]
    future: Future[Reply[Any]]


@functools.cache
def _reader_of(question: type[Question[Any]]) -> Reader[Any]:
    """The reader of the answers to this type of question, created once per type."""
    return Reader(answer_type(question))


class Questions:
    """The open questions. `put` and `give_up` may be called from any thread, other methods from the lifeline's."""

    def __init__(self) -> None:
        self._open: dict[int, _Open] = {}
        self._numbers = itertools.count(1)

    def put(self, uuid: str, question: Question[Any]) -> tuple[int, Future[Reply[Any]]]:
        """Add a question to a rank; return its number and the future of its answer.

        The future may also raise RequestFailed or ConnectionError.
        """
        number, future = next(self._numbers), Future[Reply[Any]]()
        self._open[number] = _Open(uuid, _reader_of(type(question)), future)
        return number, future

    @property
    def asked(self) -> set[str]:
        """The uuids of the ranks with open questions."""
        return {each.uuid for each in list(self._open.values())}

    def is_open(self, number: int) -> bool:
        """Whether a caller still waits for the answer; drops the question if its future was cancelled."""
        each = self._open.get(number)
        if each is not None and each.future.cancelled():
            self._open.pop(number, None)
            return False
        return each is not None

    def answered(self, uuid: str, event: Answered | Failed, buffers: Sequence[Buffer]) -> None:
        """Handle an answer. Drops the answer if this rank has no such open question. Raises NotUnderstood."""
        each = self._open.get(event.number)
        if each is None or each.uuid != uuid or self._open.pop(event.number, None) is None:
            return
        if not each.future.set_running_or_notify_cancel():
            return
        if isinstance(event, Failed):
            each.future.set_exception(RequestFailed(event.kind, event.text, event.traceback))
            return
        try:
            each.future.set_result(Reply(each.reader.read(event.answer), buffers))
        except NotUnderstood as error:
            each.future.set_exception(RequestFailed("NotUnderstood", f"its answer was not understood: {error}"))
            raise

    def give_up(self, number: int, because: str) -> None:
        """Fail this question with ConnectionError: no answer can arrive."""
        each = self._open.pop(number, None)
        if each is not None and each.future.set_running_or_notify_cancel():
            each.future.set_exception(ConnectionError(because))

    def give_up_on(self, uuid: str, because: str) -> None:
        """Fail all open questions to this rank with ConnectionError: no answer can arrive."""
        for number, each in list(self._open.items()):
            if each.uuid == uuid:
                self.give_up(number, because)
