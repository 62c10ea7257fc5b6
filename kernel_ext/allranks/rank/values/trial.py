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
"""Seconds a trial may take: it may import what the rank had imported, on a busy machine."""
SMALL = 4096
"""Bytes up to which a buffer is in the file of a trial; larger ones are holes there, and zeros when loaded."""


@dataclass
class Beginning:
    """How the process of this rank began, before any cell could change it, as the next one will."""

    environment: Mapping[str, str]
    directory: str
    path: Sequence[str]
    """``sys.path``."""

    @classmethod
    def now(cls) -> Beginning:
        return cls(dict(os.environ), os.getcwd(), list(sys.path))

    def renew(self) -> None:
        """The process has changed, and no cell has run yet."""
        self.environment, self.directory, self.path = dict(os.environ), os.getcwd(), list(sys.path)

    def enter(self, folder: str) -> None:
        """Make `folder` the working folder of this process, and of the trials that load variables as it would."""
        os.chdir(folder)
        self.directory = os.getcwd()


@dataclass(frozen=True)
class Trial:
    """What came out."""

    failed: dict[str, str] = field(default_factory=dict)
    """Names that cannot be loaded, and why."""
    last: str | None = None
    """The name that was being loaded when the process ended early."""
    ended: str = ""
    """How it ended, if early."""


def try_to_load(file: Path, beginning: Beginning, rank: int, size: int) -> Trial:
    """Load `file` in a new process. Raises OSError where there can be none."""
    environment = {name: value for name, value in beginning.environment.items() if not name.startswith("MLX_")}
    settings = {"rank": rank, "size": size, "path": list(beginning.path)}
    ours, theirs = os.pipe()  # closes with this process, and the trial ends with that
    try:
        # A file, not a pipe: what the user's code starts would hold a pipe open.
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
            return Trial(told["failed"])
        last = told["loads"]
    return Trial(last=last, ended=how)


def _how_ended(code: int, complaints: bytes) -> str:
    said = complaints.decode(errors="replace").strip().splitlines()
    if code < 0:
        return f"it crashed the process ({signal.Signals(-code).name})"
    return said[-1] if said else f"it ended the process with code {code}"
