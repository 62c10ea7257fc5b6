"""Questions that ranks have yet to answer: each gets its answer, or an error as soon as none can come."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from .events import Answered, Failed
from .requests import Answer, Question, answer_type
from .wire import Buffer, NotUnderstood, Reader

LOST = "its connection is lost"
STOPPED = "its process is stopped"
CLOSED = "the cluster is down"

A = TypeVar("A", bound=Answer, covariant=True)


@dataclass(frozen=True)
class Reply(Generic[A]):
    """What a rank answered."""

    answer: A
    buffers: Sequence[Buffer] = ()


class RequestFailed(Exception):
    """What a rank was asked raised there: `kind` is the name of the exception's class."""

    def __init__(self, kind: str, text: str, traceback: str = "") -> None:
        super().__init__(text)
        self.kind, self.traceback = kind, traceback
        """The traceback, where the error was not foreseen."""


@dataclass
class _Open:
    uuid: str
    reader: Reader[Any]
    future: Future[Reply[Any]]


@functools.cache
def _reader_of(question: type[Question[Any]]) -> Reader[Any]:
    """What reads the answers to such questions: made once."""
    return Reader(answer_type(question))


class Questions:
    """`put` may be called from any thread, the rest from the lifeline's."""

    def __init__(self) -> None:
        self._open: dict[int, _Open] = {}
        self._numbers = itertools.count(1)

    def put(self, uuid: str, question: Question[Any]) -> tuple[int, Future[Reply[Any]]]:
        """A new question to a rank: its number, and what will have the answer, or RequestFailed or ConnectionError."""
        number, future = next(self._numbers), Future[Reply[Any]]()
        self._open[number] = _Open(uuid, _reader_of(type(question)), future)
        return number, future

    @property
    def asked(self) -> set[str]:
        """The ranks that have a question open."""
        return {each.uuid for each in list(self._open.values())}

    def is_open(self, number: int) -> bool:
        """Whether somebody waits for the answer: one whose future is cancelled is given up."""
        each = self._open.get(number)
        if each is not None and each.future.cancelled():
            self._open.pop(number, None)
            return False
        return each is not None

    def answered(self, uuid: str, event: Answered | Failed, buffers: Sequence[Buffer]) -> None:
        """A rank has answered. What it was not asked, or is asked no more, is dropped. Raises NotUnderstood."""
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
        """No answer can come to this question."""
        each = self._open.pop(number, None)
        if each is not None and each.future.set_running_or_notify_cancel():
            each.future.set_exception(ConnectionError(because))

    def give_up_on(self, uuid: str, because: str) -> None:
        """No answer can come from this rank to what it was asked so far."""
        for number, each in list(self._open.items()):
            if each.uuid == uuid:
                self.give_up(number, because)
