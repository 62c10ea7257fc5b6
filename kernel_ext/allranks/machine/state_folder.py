"""The folder of this user's private state, which outlives clusters."""

from __future__ import annotations

import os
from pathlib import Path


def state_folder() -> Path:
    """``~/.local/state/allranks``, or below ``XDG_STATE_HOME``; not created by this function."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state", "allranks")
