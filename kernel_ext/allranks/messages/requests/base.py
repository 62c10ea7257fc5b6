"""What every request and every answer is made of."""

from __future__ import annotations

from typing import ClassVar, Generic, Literal, TypeVar, get_args

from msgspec import Struct

from allranks.messages.events import snake

Runs = Literal["main", "thread", "agent"]
"""In the main thread once that is idle; in a thread of its own; in the agent's thread, at once."""


class Answer(Struct):
    """What a rank answers; raw buffers may follow."""


A = TypeVar("A", bound=Answer)


class Request(Struct, tag_field="request", tag=snake):
    """From the head to a rank."""

    runs: ClassVar[Runs] = "agent"
    in_steps: ClassVar[bool] = False
    """Whether the main thread handles it also between two steps of a running cell (`rank.main_thread.steps`)."""


class Question(Request, Generic[A], kw_only=True):
    """One that is answered."""

    number: int = 0
    """Set by the lifeline."""


def answer_type(question: type[Question[A]]) -> type[A]:
    """What is answered to it."""
    (base,) = (each for each in question.__orig_bases__ if get_args(each))  # type: ignore[attr-defined]
    kind: type[A] = get_args(base)[0]
    return kind


class Nothing(Answer):
    """It is done."""
