"""Packages whose versions on a host differ from the notebook's, and the commands that fix that."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from allranks.machine.describe_host import versions

FROM_SOURCE = "(from source)"
"""Stands for the version of a package that is importable but not installed."""


def differing(theirs: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """The packages whose versions must be equal and are not: name, version here, version there."""
    differs = []
    for name, mine in versions().items():
        other = theirs.get(name, "")
        same = mine.split(".")[:2] == other.split(".")[:2] if name == "python" else mine == other
        if not same:
            differs.append((name, mine or FROM_SOURCE, other or "missing"))
    return differs


def listing(differs: Sequence[tuple[str, str, str]], python: str | None = None) -> str:
    """A table of the differences; with `python`, the path of the host's Python, also the fix for each."""
    rows = [("", "here", "there", ""), *((*row, _fix(row, python) if python else "") for row in differs)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def _fix(row: tuple[str, str, str], python: str) -> str:
    name, mine, _ = row
    if name == "python":
        return f"use a Python {'.'.join(mine.split('.')[:2])} there: --python"
    if mine == FROM_SOURCE:
        return f"there: install {name} from the same source as this notebook"
    return f"there: {shlex.quote(python)} -m pip install {name}=={mine}"
