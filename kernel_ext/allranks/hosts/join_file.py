"""The join file: tells processes that a scheduler starts how to reach the notebook. Contains a secret, the token."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypedDict

from allranks.errors import UsageError
from allranks.machine.private_files import write_private


class JoinSettings(TypedDict, total=False):
    """The content of the join file."""

    urls: list[str]
    """The URLs at which the notebook may be reached."""
    key: str
    """The public CurveZMQ key of the notebook's end."""
    token: str


def write_join_file(path: Path, settings: JoinSettings) -> None:
    """Write the join file. Raises UsageError if it cannot be written, or `path` exists and is not a join file."""
    if path.exists() and not is_join_file(path):
        raise UsageError(f"--join {path}: this file exists and is not a join file; choose another name.")
    try:
        write_private(path, json.dumps(dict(settings)))
    except OSError as error:
        raise UsageError(f"--join {path}: cannot be written ({error.strerror}).") from None


def is_join_file(path: Path, token: str | None = None) -> bool:
    """Whether `path` is a join file and, if `token` is given, belongs to the cluster with that token."""
    try:
        content = json.loads(path.read_text())
        return "urls" in content and (token is None or content["token"] == token)
    except (OSError, ValueError, TypeError, KeyError):
        return False
