"""Systems remove unused temporary files, macOS after three days, systemd after ten: a cluster may outlast it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

EVERY = 6 * 3600.0
"""Seconds between two uses of the files."""


class KeptFromCleaners:
    """The files of a cluster, which the host process uses now and then."""

    def __init__(self) -> None:
        self._used_at = time.time()

    def use(self, folders: Iterable[Path]) -> float:
        """Let all that is in these folders count as used now, where it is time; returns seconds until the next time."""
        left = self._used_at + EVERY - time.time()
        if left > 0:
            return min(left, EVERY)  # the clock may have been set back
        self._used_at = time.time()
        for folder in folders:
            # Unlike rglob, os.walk passes over a folder that is removed meanwhile.
            within = (os.path.join(at, name) for at, dirs, files in os.walk(folder) for name in (*dirs, *files))
            for path in (str(folder), *within):
                with suppress(OSError):  # it went meanwhile
                    modified = os.lstat(path).st_mtime_ns  # has a meaning for the lease
                    os.utime(path, ns=(int(self._used_at * 1e9), modified), follow_symlinks=False)
        return EVERY
