"""Answers of the processes of ``python -m allranks probe``, sent as JSON lines; a report consists of these answers."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Given = Literal["yes", "no", "not asked"]
Result = Literal["passed", "failed", "not available"]
Fact = int | float | bool | str


class ProbeAnswer(Struct, frozen=True):
    """The answer to one question on a machine."""

    question: str
    """The question's name (see `allranks.probe.probe_questions`)."""
    given: Given
    detail: str = ""
    """The observation, or why the question could not be asked: sentences without a final full stop."""
    facts: dict[str, Fact] = {}
    failed: bool = False
    """Whether there is no answer because the process that asks the question was too slow or failed."""


class ProbeCheck(Struct, frozen=True):
    """The result of one part of the conformance list on one backend."""

    world: str
    """``ring``, ``jaccl``, ... or ``nccl, 2 ranks on one GPU``."""
    name: str
    result: Result
    detail: str = ""
    seconds: float = 0.0
    same_processes: bool | None = None
    """Whether the ranks that were not killed kept their processes; None if no world was re-formed."""
