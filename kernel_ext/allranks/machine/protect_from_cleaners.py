"""Protects a cluster's files: macOS removes unused temporary files after three days, systemd after ten."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

EVERY = 6 * 3600.0
"""Seconds between two updates of the files' access times."""


class KeptFromCleaners:
    """Keeps the files of a cluster from being removed as unused; called by the host process."""

    def __init__(self) -> None:
        self._used_at = time.time()

    def use(self, folders: Iterable[Path]) -> float:
        """Mark everything in these folders as used, if that is due; return the seconds until it is due again."""
        left = self._used_at + EVERY - time.time()
        if left > 0:
            return min(left, EVERY)  # the clock may have been set back
        self._used_at = time.time()
        for folder in folders:
            # Unlike rglob, os.walk skips a folder that is removed meanwhile.
            within = (os.path.join(at, name) for at, dirs, files in os.walk(folder) for name in (*dirs, *files))
            for path in (str(folder), *within):
                with suppress(OSError):  # removed meanwhile
                    modified = os.lstat(path).st_mtime_ns  # kept, since the lease depends on it
                    os.utime(path, ns=(int(self._used_at * 1e9), modified), follow_symlinks=False)
        return EVERY
