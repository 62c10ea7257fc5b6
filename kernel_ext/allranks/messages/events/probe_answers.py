"""What the processes of ``python -m allranks probe`` answer, as JSON lines; a report consists of these."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Given = Literal["yes", "no", "not asked"]
Result = Literal["passed", "failed", "not available"]
Fact = int | float | bool | str


class Answer(Struct, frozen=True):
    """The answer to one question on a machine."""

    question: str
    """Its name: see `allranks.probe.questions`."""
    given: Given
    detail: str = ""
    """What was seen, or why it could not be asked: sentences without a full stop at the end."""
    facts: dict[str, Fact] = {}
    failed: bool = False
    """Whether it was asked, and what was asked did not answer in time, or ended the process."""


class Check(Struct, frozen=True):
    """How one part of the conformance list went on one backend."""

    world: str
    """``ring``, ``jaccl``, ...; ``nccl, 2 ranks on one GPU``."""
    name: str
    result: Result
    detail: str = ""
    seconds: float = 0.0
    same_processes: bool | None = None
    """Whether the ranks that were not killed kept their processes, where a world was formed again."""
