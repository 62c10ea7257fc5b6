"""The host's memory, swapping, throttling and temperature, read without root."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil

CGROUPS = Path("/sys/fs/cgroup")
THROTTLED = "devices/system/cpu/cpu*/thermal_throttle/package_throttle_count"
"""Files in ``/sys`` that count how often a processor was slowed down because it was too hot (Intel only)."""
SLOW_EVERY, SELDOM_EVERY = 5.0, 30.0
"""Seconds between two readings of temperature and throttling, which take milliseconds; the same on an idle host."""
UNLIMITED = 1 << 60
"""A limit of this many bytes or more means that the cgroup has no limit."""


class _Group(NamedTuple):
    """The memory files of a control group."""

    limit: Path
    used: Path
    details: Path
    inactive: str
    """The name, in `details`, of memory that the kernel can reclaim at once."""


class Hardware:
    """Takes readings; rates and throttling refer to the time since the previous reading."""

    def __init__(self) -> None:
        self._groups = list[_Group]()
        with suppress(OSError):  # Linux only
            self._groups += _groups(Path("/proc/self/cgroup").read_text())
        self._swapped = _swapped()
        self._counts = list(Path("/sys").glob(THROTTLED))
        self._throttled = self._throttle_count()
        self._at = time.monotonic()
        self._slow: dict[str, Any] = {}
        """The last reading of temperature and throttling."""
        self._slow_at = float("-inf")

    def memory(self) -> tuple[int, int]:
        """Bytes of memory that programs can use in total, and bytes in use.

        The figures are those of the control group that has the least memory left (in a container or a scheduler's job,
        for example), or of the host if no group has less left than the host.
        """
        host = psutil.virtual_memory()
        total, left = host.total, host.available
        for group in self._groups:
            with suppress(OSError, ValueError):
                limit = _number(group.limit)
                if limit < UNLIMITED and (free := max(0, limit - _number(group.used) + _inactive(group))) < left:
                    total, left = limit, free
        return total, total - left

    def read(self, *, seldom: bool = False) -> dict[str, Any]:
        """Bytes a second swapped since the last call, whether a processor was throttled, highest temperature in °C."""
        now, swapped = time.monotonic(), _swapped()
        seconds = max(now - self._at, 1e-9)
        if now - self._slow_at >= (SELDOM_EVERY if seldom else SLOW_EVERY):
            self._slow, self._slow_at = self._read_slowly(), now
        found: dict[str, Any] = dict(self._slow)
        if swapped is not None and self._swapped is not None:
            # Two significant digits, so that small changes do not count.
            found["swap_rate"] = float(f"{max(0, swapped - self._swapped) / seconds:.2g}")
        self._at, self._swapped = now, swapped
        return found

    def _read_slowly(self) -> dict[str, Any]:
        found = dict[str, Any]()
        read = getattr(psutil, "sensors_temperatures", dict)  # Linux and FreeBSD only
        with suppress(OSError):
            degrees = [each.current for sensors in read().values() for each in sensors if each.current]
            found["temperature"] = float(round(max(degrees))) if degrees else None
        if (throttled := self._throttle_count()) is not None and self._throttled is not None:
            found["throttled"] = throttled > self._throttled
        self._throttled = throttled
        return found

    def _throttle_count(self) -> int | None:
        """How often processors were throttled since the host started; None if the host does not report it."""
        with suppress(OSError, ValueError):
            return sum(int(file.read_text()) for file in self._counts) if self._counts else None
        return None


def _groups(membership: str) -> Iterator[_Group]:
    """Control groups that limit this process's memory: its own group and that group's ancestors."""
    for line in membership.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "memory":
            root, names = CGROUPS / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        elif not controllers:
            root, names = CGROUPS, ("memory.max", "memory.current", "inactive_file")
        else:
            continue
        folder = root / path.lstrip("/")
        while folder.is_relative_to(root):
            limit, used, inactive = names
            if (folder / limit).exists():
                yield _Group(folder / limit, folder / used, folder / "memory.stat", inactive)
            folder = folder.parent


def _number(file: Path) -> int:
    """The number in the file. Raises ValueError for ``max``."""
    return int(file.read_text())


def _inactive(group: _Group) -> int:
    for line in group.details.read_text().splitlines():
        name, _, value = line.partition(" ")
        if name == group.inactive:
            return int(value)
    return 0


def _swapped() -> int | None:
    """Bytes swapped in and out since the host started; on macOS, bytes in the swap files now. None if unknown."""
    with suppress(OSError, RuntimeError):
        swap = psutil.swap_memory()
        # On macOS, psutil also counts pages read from ordinary files as swapped in.
        return int(swap.used if sys.platform == "darwin" else swap.sin + swap.sout)
    return None
