"""Shortages of a machine that keep ranks from starting, and that no other message names."""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
from pathlib import Path

ROOM = 1 << 20
"""Bytes that a cluster's folder needs at its start."""
FILES = 256
"""Number of files that a process of a cluster may have to open."""


def cannot_start(error: Exception) -> str:
    """The message for a cluster that could not start on this machine; `error` is an `OSError` or an error of ZeroMQ."""
    # tempfile.gettempdir opens a file, for which there may be no descriptor.
    lacks = shortages(Path(tempfile.tempdir or os.environ.get("TMPDIR", "/tmp")))
    which = f" ({error.filename})" if isinstance(error, OSError) and error.filename else ""
    said = getattr(error, "strerror", None) or error
    return f"this machine cannot start what a cluster needs: {said}{which}.{lacks}"


def shortages(folder: Path) -> str:
    """The shortages of this machine, as sentences that each begin a new line; `folder` is for temporary files."""
    said = ""
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return (
            f"\n{folder}, the folder for temporary files, cannot be used: {error.strerror}. Create it, or set TMPDIR to"
            " another folder before the notebook is started."
        )
    if free < ROOM:
        said += (
            f"\n{folder}, the folder for temporary files, is full. Make room there, or set TMPDIR to another folder."
        )
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files < FILES:
        said += f"\nA process may open only {files} files here: run `ulimit -n 4096` before the notebook is started."
    return said
