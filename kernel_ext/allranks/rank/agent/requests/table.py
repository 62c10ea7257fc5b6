"""Maps each type of request to the function that handles it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

from allranks.messages.questions import Reply
from allranks.messages.requests import Answer, Nothing, Question, Request
from allranks.messages.wire import Buffer

Buffers: TypeAlias = Sequence[Buffer]
R = TypeVar("R", bound=Request)
Q = TypeVar("Q", bound=Question[Any])
N = TypeVar("N", bound=Question[Nothing])


class RequestTable:
    """A handler is called with the request and the buffers that came with it; what it raises becomes the answer."""

    def __init__(self, *tables: RequestTable) -> None:
        self.handlers: dict[type[Request], Callable[[Any, Buffers], Reply[Answer] | None]] = {}
        for table in tables:
            self.add(table)

    def add(self, table: RequestTable) -> None:
        self.handlers |= table.handlers

    def accept(self, request: type[R], handler: Callable[[R, Buffers], None]) -> None:
        """This request has no answer."""
        self.handlers[request] = handler

    def confirm(self, question: type[N], handler: Callable[[N, Buffers], None]) -> None:
        """The answer to this question is that it was done."""

        def handle(request: N, buffers: Buffers) -> Reply[Nothing]:
            handler(request, buffers)
            return Reply(Nothing())

        self.handlers[question] = handle

    def answer(self, question: type[Q], handler: Callable[[Q, Buffers], Reply[Answer]]) -> None:
        """The handler returns the answer to this question."""
        self.handlers[question] = handler

    def handle(self, request: Request, buffers: Buffers) -> Reply[Answer] | None:
        """Returns the answer, if there is one; raises what the handler raises."""
        return self.handlers[type(request)](request, buffers)
