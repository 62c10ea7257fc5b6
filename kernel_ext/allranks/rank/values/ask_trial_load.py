"""Ask another process whether it could load the variables saved in a file (see `rank.process.trial_load`)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

TRIAL_WITHIN = 120.0
"""Timeout of a trial, in seconds: it may have to import all that the rank had imported, on a busy machine."""
SMALL = 4096
"""Largest buffer, in bytes, that is written to a trial's file; larger ones become holes, and load as zeros."""


@dataclass
class Beginning:
    """The state in which this rank's process began, before any cell; the next process will begin in the same state."""

    environment: Mapping[str, str]
    directory: str
    path: Sequence[str]
    """``sys.path``."""

    @classmethod
    def now(cls) -> Beginning:
        return cls(dict(os.environ), os.getcwd(), list(sys.path))

    def renew(self) -> None:
        """Record the state again, after the start-up has changed it and before any cell has run."""
        self.environment, self.directory, self.path = dict(os.environ), os.getcwd(), list(sys.path)

    def enter(self, folder: str) -> None:
        """Make `folder` the working folder of this process and of its trials."""
        os.chdir(folder)
        self.directory = os.getcwd()


@dataclass(frozen=True)
class TrialLoad:
    """The result of a trial."""

    failed: dict[str, str] = field(default_factory=dict)
    """Names that cannot be loaded, and why."""
    last: str | None = None
    """The name that was being loaded when the process ended early; None if there was no such name."""
    ended: str = ""
    """How the process ended, if it ended early; else empty."""


def try_to_load(file: Path, beginning: Beginning, rank: int, size: int) -> TrialLoad:
    """Load `file` in a new process. Raises OSError if no process can be started."""
    environment = {name: value for name, value in beginning.environment.items() if not name.startswith("MLX_")}
    settings = {"rank": rank, "size": size, "path": list(beginning.path)}
    ours, theirs = os.pipe()  # the pipe closes when this process ends, which ends the trial
    try:
        # A file, not a pipe: processes that the user's code starts would keep a pipe open.
        complaints = tempfile.TemporaryFile()
        process = subprocess.Popen(
            [sys.executable, "-m", "allranks.rank.process.trial_load", str(file), json.dumps(settings)],
            stdin=ours,
            stdout=subprocess.PIPE,
            stderr=complaints,
            env=environment,
            cwd=beginning.directory if os.path.isdir(beginning.directory) else None,
        )
        try:
            out, _ = process.communicate(timeout=TRIAL_WITHIN)
            complaints.seek(0)
            how = _how_ended(process.returncode, complaints.read())
        except subprocess.TimeoutExpired:
            process.kill()
            out, _ = process.communicate()
            how = f"loading took longer than {TRIAL_WITHIN:g} s"
        complaints.close()
    finally:
        os.close(ours)
        os.close(theirs)
    last: str | None = None
    for line in out.splitlines():
        told = json.loads(line)
        if "failed" in told:
            return TrialLoad(told["failed"])
        last = told["loads"]
    return TrialLoad(last=last, ended=how)


def _how_ended(code: int, complaints: bytes) -> str:
    said = complaints.decode(errors="replace").strip().splitlines()
    if code < 0:
        return f"it crashed the process ({signal.Signals(-code).name})"
    return said[-1] if said else f"it ended the process with code {code}"
