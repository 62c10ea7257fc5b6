"""Checks and the findings that they return."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from .host_facts import Asked, HostFacts

Severity = Literal["error", "warning", "note"]
"""An ``error`` prevents the requested world, a ``warning`` is a likely problem, a ``note`` costs speed at most."""


@dataclass(frozen=True)
class Finding:
    """One problem of one or several hosts."""

    severity: Severity
    host: str
    what: str
    """The problem, as a sentence."""
    evidence: str = ""
    """The line of output or the figure that shows the problem."""
    fix: str = ""
    """The command that fixes the problem, or instructions in words if no command can."""
    at: str = ""
    """Where to run `fix`: names of hosts, ``here`` for the notebook's machine, empty if `fix` is not a command to run
    on a host."""
    source: str = ""
    """Where the problem was reported: an issue of mlx, unless another project is named."""
    later: bool = False
    """Whether the error shows only when the ranks do their work, so that a successful start does not disprove it."""


def sentence_and_fix(said: str) -> tuple[str, str]:
    """Split an error message into ``what`` and ``fix`` of a finding: its first sentence, and the rest."""
    what, _, fix = said.partition(". ")
    return f"{what.rstrip('.')}.", fix


Rule = Callable[[Sequence[HostFacts], Asked], Iterable[Finding]]


@dataclass(frozen=True)
class Check:
    """A rule, whether it applies to given hosts, and what it checks, as the doctor lists it after ``Checked:``."""

    looks_at: str
    rule: Rule
    applies: Callable[[Sequence[HostFacts], Asked], bool] = lambda _hosts, _asked: True
