"""The lease: how long a host's processes keep running without a head while no rank runs a cell.

A rank that runs a cell without a connection to the head touches a file in its folder. The host process reads the
file's age, so the two need no connection.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from glob import escape, iglob
from pathlib import Path

from .private_files import touch_private

BUSY = "busy"
BUSY_EVERY = 2.0
"""Seconds between two touches of the file."""
SAVED_WITHIN = 900.0
"""Seconds for saving the variables after a lease has expired, if the user asked for that (``up --save``)."""
BUSY_STATUS = 75
"""The exit status of ``allranks down --save`` if a cell is running: the command may be tried again."""
LOOK_EVERY = 30.0
"""Maximum seconds between two checks of a lease: a rank may have become idle, or the clock may have been set."""


def touch_busy(directory: str | Path) -> None:
    """Note that a cell is running. Called in the rank."""
    with suppress(OSError):  # a full disk must not end the cell
        touch_private(Path(directory, BUSY))


def seconds_left(away_since: float, lease: float, folders: Iterable[Path]) -> float:
    """Seconds until the next check of the lease, at most `LOOK_EVERY`; zero or less if the lease has expired.

    A lease begins when the head disconnects (`away_since`, by `time.time`), and again with each sign of a running cell
    in `folders`.
    """
    return min(max(away_since, busy_at(folders)) + lease - time.time(), LOOK_EVERY)


def busy_at(folders: Iterable[Path]) -> float:
    """The last sign of a running cell in `folders`, by `time.time`; 0 if there is none."""
    # Unlike Path.glob, iglob skips a folder that is removed meanwhile.
    found = (file for folder in folders for file in iglob(os.path.join(escape(str(folder)), "rank-*", BUSY)))
    return max(map(_modified, found), default=0.0)


def _modified(file: str) -> float:
    try:
        return os.stat(file).st_mtime
    except OSError:
        return 0.0
