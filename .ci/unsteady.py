"""Tests that failed in company and passed alone: the table of those that are known, and the log of what CI saw."""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MOST_OPEN = 5
"""Open entries that the table may have."""
SHOWN = 20
"""Lines of the log that a run shows."""
LOG = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "allranks-ci", "unsteady.log")


@dataclass(frozen=True)
class Entry:
    test: str
    seen: str
    found: str
    state: str

    @property
    def is_open(self) -> bool:
        return self.state != "closed"


def entries(table: Path) -> list[Entry]:
    """Of the Markdown table in this file; none where there is no file. Raises ValueError for a row that is no entry."""
    found = []
    rows = [line.strip() for line in table.read_text(encoding="utf-8").splitlines()] if table.exists() else []
    for row in [row for row in rows if row.startswith("|")][2:]:  # below the head and its rule
        cells = [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", row)[1:-1]]
        if len(cells) != 4 or cells[3] not in ("open", "closed"):
            raise ValueError(
                f"{table.name} wants rows of the form | test | seen | found to be | open or closed |: {row}"
            )
        found.append(Entry(cells[0].strip("`"), *cells[1:]))
    return found


def row(test: str, reason: str, commit: str) -> str:
    """The line to add to the table."""
    cells = [f"`{test}`", f"once: {time.strftime('%Y-%m-%d')} ({commit})", f"not looked into yet: {reason}", "open"]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def remember(log: Path, test: str, reason: str, commit: str) -> None:
    line = f"{time.strftime('%Y-%m-%d %H:%M')} {commit} {test} ({reason})\n"
    with suppress(OSError):  # it was printed, too
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "a", encoding="utf-8") as file:
            file.write(line)


def remembered(log: Path) -> list[str]:
    return log.read_text(encoding="utf-8").splitlines()[-SHOWN:] if log.exists() else []
