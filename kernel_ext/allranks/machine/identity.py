"""Which process somebody means, and which machine: a number may be another's by now, and a name may have changed."""

from __future__ import annotations

import ctypes
import os
import platform
import sys

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


def this_machine() -> str:
    """Its name; on macOS, where that may change with the network, the UUID of its hardware (not run there)."""
    if sys.platform == "darwin":
        uuid, wait = ctypes.create_string_buffer(16), (ctypes.c_long * 2)(1, 0)  # at most a second
        if ctypes.CDLL(None).gethostuuid(uuid, wait) == 0:
            return uuid.raw.hex()
    return platform.node()
