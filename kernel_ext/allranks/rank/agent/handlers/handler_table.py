"""Maps each type of request to the function that handles it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

from allranks.lifeline.open_questions import Reply
from allranks.messages.requests import Answer, Nothing, Question, Request
from allranks.messages.wire import Buffer

Buffers: TypeAlias = Sequence[Buffer]
R = TypeVar("R", bound=Request)
Q = TypeVar("Q", bound=Question[Any])
N = TypeVar("N", bound=Question[Nothing])


class RequestTable:
    """Handlers by type of request. A handler gets the request and its buffers; if it raises, the agent reports it."""

    def __init__(self, *tables: RequestTable) -> None:
        self.handlers: dict[type[Request], Callable[[Any, Buffers], Reply[Answer] | None]] = {}
        for table in tables:
            self.add(table)

    def add(self, table: RequestTable) -> None:
        self.handlers |= table.handlers

    def accept(self, request: type[R], handler: Callable[[R, Buffers], None]) -> None:
        """Register the handler of a request that has no answer."""
        self.handlers[request] = handler

    def confirm(self, question: type[N], handler: Callable[[N, Buffers], None]) -> None:
        """Register the handler of a question whose answer only confirms that the handler has returned."""

        def handle(request: N, buffers: Buffers) -> Reply[Nothing]:
            handler(request, buffers)
            return Reply(Nothing())

        self.handlers[question] = handle

    def answer(self, question: type[Q], handler: Callable[[Q, Buffers], Reply[Answer]]) -> None:
        """Register a handler that returns the answer to this question."""
        self.handlers[question] = handler

    def handle(self, request: Request, buffers: Buffers) -> Reply[Answer] | None:
        """Call the handler and return its answer, None if the request has no answer; raises what the handler raises."""
        return self.handlers[type(request)](request, buffers)
