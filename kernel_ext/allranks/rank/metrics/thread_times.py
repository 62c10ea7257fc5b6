"""CPU time of this process's threads: a ring's threads spin while a transfer is pending, and sleep otherwise.

Linux: ``/proc``. macOS: ``libproc``; written from ``sys/proc_info.h``, not yet run on macOS.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Collection
from contextlib import suppress
from functools import cache

_LIST_THREADS, _THREAD_INFO = 6, 5
_MOST = 4096
"""Maximum number of threads listed on macOS."""


def threads() -> set[int]:
    """The ids of all threads of this process; empty if the system does not report them."""
    try:
        if sys.platform == "linux":
            return {int(name) for name in os.listdir("/proc/self/task")}
        if sys.platform == "darwin":
            ids = (ctypes.c_uint64 * _MOST)()
            size = _libproc().proc_pidinfo(os.getpid(), _LIST_THREADS, ctypes.c_uint64(0), ids, ctypes.sizeof(ids))
            return set(ids[: max(size, 0) // 8])
    except (OSError, AttributeError):
        pass
    return set()


def time_used(those: Collection[int]) -> int | None:
    """Total CPU time of the readable threads among `those`, in the system's own unit; None if no thread can be read."""
    used = [one for one in map(_time_of, those) if one is not None]
    return sum(used) if used else None


def _time_of(thread: int) -> int | None:
    with suppress(OSError, ValueError, IndexError, AttributeError, struct.error):
        if sys.platform == "linux":
            with open(f"/proc/self/task/{thread}/schedstat") as file:
                return int(file.read().split()[0])
        if sys.platform == "darwin":
            info = ctypes.create_string_buffer(112)  # struct proc_threadinfo
            read = _libproc().proc_pidinfo(os.getpid(), _THREAD_INFO, ctypes.c_uint64(thread), info, len(info))
            return sum(struct.unpack_from("=QQ", info)) if read >= 16 else None
    return None


@cache
def _libproc() -> ctypes.CDLL:
    return ctypes.CDLL("/usr/lib/libproc.dylib")
