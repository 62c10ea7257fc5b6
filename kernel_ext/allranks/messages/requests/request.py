"""The base types of requests and answers."""

from __future__ import annotations

from typing import ClassVar, Generic, Literal, TypeVar, get_args

from msgspec import Struct

from allranks.messages.events import snake

Runs = Literal["main", "thread", "agent"]
"""Where a request is handled: in the main thread once it is idle, in a new thread, or at once in the agent's thread."""


class Answer(Struct):
    """An answer of a rank; raw buffers may follow."""


A = TypeVar("A", bound=Answer)


class Request(Struct, tag_field="request", tag=snake):
    """A request of the head to a rank."""

    runs: ClassVar[Runs] = "agent"
    in_steps: ClassVar[bool] = False
    """Whether the main thread also handles it between two steps of a running cell (`rank.main_thread.steps`)."""


class Question(Request, Generic[A], kw_only=True):
    """A request that the rank answers."""

    number: int = 0
    """Set by the lifeline."""


def answer_type(question: type[Question[A]]) -> type[A]:
    """The type of the answer to this type of question."""
    (base,) = (each for each in question.__orig_bases__ if get_args(each))  # type: ignore[attr-defined]
    kind: type[A] = get_args(base)[0]
    return kind


class Nothing(Answer):
    """An empty answer: the request was carried out."""
