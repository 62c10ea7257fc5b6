"""The environments that `setup` creates on a host: their location, and how they are recognised.

An environment in use is not removed: a host process holds a lock on a file in it.
"""

from __future__ import annotations

import fcntl
import os
import sys
from pathlib import Path

KEPT_IN = ".allranks"
"""The folder of all environments, in the user's home folder."""
CURRENT = "current"
"""The link to the current environment, in the folder of the environments that match one environment of the notebook."""
MARK = "allranks-setup.json"
"""Name of a file in each environment, written last, with the digest of the notebook's environment."""


def use_environment() -> int | None:
    """Lock this environment against removal by `setup`; return the descriptor.

    Returns None if `setup` did not create the environment, or if `setup` is about to remove it.
    """
    try:
        descriptor = os.open(Path(sys.prefix, MARK), os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
