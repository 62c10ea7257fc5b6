"""Which process somebody means: its number alone may be another's by now."""

from __future__ import annotations

import os

import psutil

CLOCK_MAY_STEP = 60.0
"""Seconds; Linux derives when a process began from the clock, which is often set when a machine wakes."""


def identity_of(pid: int | None = None) -> tuple[int, float]:
    """Number of a process (this one), and when it began. Raises psutil.Error where there is none."""
    pid = pid or os.getpid()
    return pid, psutil.Process(pid).create_time()


def still_runs(pid: int, since: float) -> bool:
    """Whether the process that `identity_of` told of has not ended."""
    try:
        process = psutil.Process(pid)
        return abs(process.create_time() - since) < CLOCK_MAY_STEP and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
