"""How long a host's processes stay when no head is attached: a lease, counted while no rank runs a cell.

A rank that is out of touch with the head and runs a cell says so by the age of a file in its folder, which the host
process looks at: it needs no thread and no connection for that.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from glob import escape, iglob
from pathlib import Path

from .files import touch_private

BUSY = "busy"
BUSY_EVERY = 2.0
"""Seconds between two touches of the file."""
SAVED_WITHIN = 900.0
"""Seconds after a lease in which variables are saved, where the user asked for that (``up --save``)."""
BUSY_STATUS = 75
"""The exit status of ``allranks down --save`` where a cell runs: it may be tried again."""
LOOK_EVERY = 30.0
"""Seconds after which a lease is looked at again, at the latest: a rank may have become idle, or a clock been set."""


def touch_busy(directory: str | Path) -> None:
    """In a rank: it runs a cell now."""
    with suppress(OSError):  # a disk that is full ends no cell
        touch_private(Path(directory, BUSY))


def seconds_left(away_since: float, lease: float, folders: Iterable[Path]) -> float:
    """Until the lease is to be looked at again; zero or less where it has run out.

    It begins when the head went away (`away_since`, by `time.time`), and again with each sign of a cell in `folders`.
    """
    return min(max(away_since, busy_at(folders)) + lease - time.time(), LOOK_EVERY)


def busy_at(folders: Iterable[Path]) -> float:
    """The last sign of a cell in `folders`, by `time.time`; 0 where there was none."""
    # Unlike Path.glob, iglob passes over a folder that is removed meanwhile.
    found = (file for folder in folders for file in iglob(os.path.join(escape(str(folder)), "rank-*", BUSY)))
    return max(map(_modified, found), default=0.0)


def _modified(file: str) -> float:
    try:
        return os.stat(file).st_mtime
    except OSError:
        return 0.0
