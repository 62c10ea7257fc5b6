"""What this process uses: memory, processor time, and what its main thread is blocked in."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import psutil


class Meters:
    """Cheap readings, taken by the agent about once a second."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._cpu = self._cpu_seconds()
        self._at = time.monotonic()

    def memory(self) -> dict[str, int | None]:
        """Bytes: the process's resident memory, MLX's active and peak memory (None before mlx is imported)."""
        mx: Any = sys.modules.get("mlx.core")
        imported = hasattr(mx, "get_active_memory") and hasattr(mx, "get_peak_memory")  # the main thread may be at it
        return {
            "rss": self._process.memory_info().rss,
            "mlx_active": mx.get_active_memory() if imported else None,
            "mlx_peak": mx.get_peak_memory() if imported else None,
        }

    def cpu(self) -> float:
        """Share of one core used since the last call."""
        used, now = self._cpu_seconds(), time.monotonic()
        share = (used - self._cpu) / max(now - self._at, 1e-9)
        self._cpu, self._at = used, now
        return share

    def _cpu_seconds(self) -> float:
        times = os.times()
        return times.user + times.system

    def main_thread_asleep(self) -> bool | None:
        """Whether the main thread waits on a lock, as it does inside a collective; None where that cannot be known.

        Linux names the system call a thread is in: a futex for a lock, another for ``time.sleep`` or a read. The field
        may be hidden (hardened kernels); then the thread's state alone must do. macOS has no such files.
        """
        # The main thread's id is the process's; threading's native_id is still the parent's after a fork (3.11).
        task = f"/proc/self/task/{os.getpid()}"
        try:
            with open(f"{task}/syscall") as file:
                call = file.read().split()[0]
            return call == _FUTEX if call != "running" else False
        except (OSError, IndexError):
            pass
        try:
            with open(f"{task}/stat") as file:
                return file.read().rpartition(")")[2].split()[0] == "S"
        except (OSError, IndexError):
            return None


_FUTEX = {"x86_64": "202", "aarch64": "98"}.get(os.uname().machine, "202")
