"""Which login the head reaches a host by, so that the next one can take its tunnels' ports.

When a network is cut, the sshd of the old login may hold its ports for hours: it is not told that the head is gone.
The ranks are to be reached at the same ports, so it is ended; it is this user's own process.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from allranks.machine.files import write_private

FILE = "login"
ENDS_WITHIN = 2.0
"""Seconds an old sshd gets to end."""


def write_login(directory: Path, pid: int) -> None:
    """The head is reached through the sshd that is process `pid`."""
    import psutil

    from allranks.machine.identity import identity_of

    with suppress(psutil.Error):
        write_private(directory / FILE, json.dumps(identity_of(pid)))


def end_login(directory: Path, but: int) -> None:
    """End the sshd of the login before, if it is one and still there, and not process `but`."""
    import psutil

    from allranks.machine.identity import still_runs

    try:
        pid, since = json.loads((directory / FILE).read_text())
        process = psutil.Process(pid)
        if pid != but and still_runs(pid, since) and "sshd" in process.name():
            process.terminate()
            process.wait(ENDS_WITHIN)
    except (OSError, ValueError, psutil.Error):
        pass  # it is gone, or somebody else's: then its ports are seen to be taken
