"""The join file: how processes that a scheduler starts find the notebook. It holds the cluster's keys."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .errors import UsageError


def write_join_file(path: Path, settings: Mapping[str, Any]) -> None:
    """Write it, or raise UsageError."""
    if path.exists() and not is_join_file(path):
        raise UsageError(f"--join {path}: that file is something else; name one that is not there.")
    try:
        # A name that nobody can have taken before, in a folder that others may write in; 0600.
        descriptor, new = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with open(descriptor, "w") as file:
            json.dump(dict(settings), file)
        Path(new).replace(path)
    except OSError as error:
        raise UsageError(f"--join {path}: it cannot be written ({error.strerror}).") from None


def is_join_file(path: Path, token: str | None = None) -> bool:
    """Whether it is one, and with `token`, whether it is that cluster's."""
    try:
        content = json.loads(path.read_text())
        return "urls" in content and (token is None or content["token"] == token)
    except (OSError, ValueError, TypeError, KeyError):
        return False
