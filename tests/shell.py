"""The command `allranks`, and what host processes write down for it."""

from __future__ import annotations

import subprocess
import sys
import time

from allranks.machine.hosted_clusters import HostedCluster, hosted_clusters

WITHIN = 60.0


def allranks(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "allranks", *words], capture_output=True, text=True, timeout=2 * WITHIN
    )


def described_as(name: str) -> HostedCluster:
    """What this machine's host process has written; it does so when it comes to it, after `up`."""
    deadline = time.monotonic() + WITHIN
    while not (found := [each for each in hosted_clusters() if each.name == name]):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found[0]
