"""The identities of processes and machines, since pids are reused and names of machines change."""

from __future__ import annotations

import ctypes
import os
import platform
import sys

import psutil

CLOCK_MAY_STEP = 60.0
"""Tolerance in seconds: Linux derives start times from the clock, which is often set when a machine wakes."""


def identity_of(pid: int | None = None) -> tuple[int, float]:
    """The pid of a process (by default this one) and its start time. Raises psutil.Error if it does not exist."""
    pid = pid or os.getpid()
    return pid, psutil.Process(pid).create_time()


def still_runs(pid: int, since: float) -> bool:
    """Whether the process with this identity (see `identity_of`) still runs."""
    try:
        process = psutil.Process(pid)
        return abs(process.create_time() - since) < CLOCK_MAY_STEP and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def this_machine() -> str:
    """This machine's name. On macOS, where names may change with the network, its hardware UUID (not tested there)."""
    if sys.platform == "darwin":
        uuid, wait = ctypes.create_string_buffer(16), (ctypes.c_long * 2)(1, 0)  # at most a second
        if ctypes.CDLL(None).gethostuuid(uuid, wait) == 0:
            return uuid.raw.hex()
    return platform.node()
