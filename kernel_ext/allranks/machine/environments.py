"""The environments that `setup` makes on a host: where they are, and how one is recognised.

An environment that a process uses is not removed: a host process holds a lock on a file in it.
"""

from __future__ import annotations

import fcntl
import os
import sys
from contextlib import suppress
from pathlib import Path

KEPT_IN = ".allranks"
"""The folder of all of them, in the user's home folder."""
CURRENT = "current"
"""The link to the environment in use, in the folder of all that were made for one notebook's environment."""
MARK = "allranks-setup.json"
"""A file in each, written last: it says what the environment was made for."""


def use_environment() -> int | None:
    """A descriptor whose lock tells `setup` that this environment is used; None for one that it did not make."""
    with suppress(OSError):
        descriptor = os.open(Path(sys.prefix, MARK), os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return descriptor
    return None
