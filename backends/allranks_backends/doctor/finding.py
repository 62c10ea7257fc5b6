"""What a check says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from .facts import Asked, HostFacts

Severity = Literal["error", "warning", "note"]
"""An ``error`` keeps a world from running as asked, a ``warning`` is likely to bite, a ``note`` costs speed at most."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong."""

    severity: Severity
    host: str
    what: str
    """A sentence."""
    evidence: str = ""
    """What was seen: a line of output, a figure."""
    fix: str = ""
    """The command that fixes it, or in words what to do where no command can."""
    at: str = ""
    """Where `fix` is to be run: hosts' names, ``here`` for the notebook's machine, empty for words."""
    source: str = ""
    """Where it was met: an issue of mlx's unless another project is named."""
    later: bool = False
    """Whether an error shows only once the ranks work: a start does not meet it."""


def sentence_and_fix(said: str) -> tuple[str, str]:
    """A complaint as ``what`` and ``fix`` of a finding: its first sentence, and the rest."""
    what, _, fix = said.partition(". ")
    return f"{what.rstrip('.')}.", fix


Rule = Callable[[Sequence[HostFacts], Asked], Iterable[Finding]]


@dataclass(frozen=True)
class Check:
    """A rule and what it looks at, in the words of ``checked: ...``."""

    looks_at: str
    rule: Rule
    applies: Callable[[Sequence[HostFacts], Asked], bool] = lambda _hosts, _asked: True
