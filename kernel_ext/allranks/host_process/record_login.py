"""Records the ssh login through which the head reaches a host, so that the next login can take over its tunnels' ports.

When the network is cut, the old login's sshd may hold its ports for hours, since it is not notified. The ranks must
stay reachable at the same ports, so the next login ends the old sshd, which is this user's own process.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from allranks.machine.private_files import write_private

FILE = "login"
ENDS_WITHIN = 2.0
"""Seconds to wait for an old sshd to end."""


def write_login(directory: Path, pid: int) -> None:
    """Record that the head is reached through sshd process `pid`."""
    import psutil

    from allranks.machine.process_identity import identity_of

    with suppress(psutil.Error):
        write_private(directory / FILE, json.dumps(identity_of(pid)))


def end_login(directory: Path, but: int) -> None:
    """End the recorded sshd of the previous login, if it still runs and is not process `but`."""
    import psutil

    from allranks.machine.process_identity import still_runs

    try:
        pid, since = json.loads((directory / FILE).read_text())
        process = psutil.Process(pid)
        if pid != but and still_runs(pid, since) and "sshd" in process.name():
            process.terminate()
            process.wait(ENDS_WITHIN)
    except (OSError, ValueError, psutil.Error):
        pass  # already gone, or not this user's: then the next login finds its ports in use
