"""Warns of a host whose memory a running cell is about to use up."""

from __future__ import annotations

from collections.abc import Sequence

from allranks_backends.views import HostView, Snapshot
from allranks_widgets.status import human_bytes

from .stall import Finding

LITTLE = 0.05
"""Share of a host's memory that is left from which on the user is warned."""
SOON = 10.0
"""Seconds in which memory will be used up, if it goes on as in the last `OVER`, from which on the user is warned."""
OVER = 3.0
ENOUGH = 0.25
"""Share of a host's memory: while more is left, there is no warning, and the next shortage gets a new one."""


class LowMemory:
    """Watches the hosts of one cell."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self._ranks = ranks
        self._used: dict[str, list[tuple[float, int]]] = {}
        """By host: times and bytes of the last `OVER` seconds, oldest first."""
        self._warned = set[str]()

    def look(self, snapshot: Snapshot, now: float) -> list[Finding]:
        """New warnings; `now` is in seconds."""
        findings = []
        for host in snapshot.hosts:
            ranks = tuple(rank for rank in self._ranks if snapshot.ranks[rank].host == host.name)
            if ranks and host.memory and host.memory_used is not None:
                text = self._warning(host, host.memory, host.memory_used, now)
                findings += [Finding(ranks, text)] if text else []
        return findings

    def _warning(self, host: HostView, memory: int, used: int, now: float) -> str:
        readings = self._used.setdefault(host.name, [])
        readings.append((now, used))
        while now - readings[0][0] > OVER:
            readings.pop(0)
        left, seconds = memory - used, now - readings[0][0]
        growth = max(0.0, (used - readings[0][1]) / seconds) if seconds > 0 else 0.0
        if left > ENOUGH * memory:
            self._warned.discard(host.name)
            return ""
        if host.name in self._warned or not (left < LITTLE * memory or growth * SOON > left):
            return ""
        self._warned.add(host.name)
        grows = f" {human_bytes(growth)} more are used each second." if growth * SOON > left else ""
        return (
            f"{host.name} has {human_bytes(left)} of {human_bytes(memory)} memory left.{grows} If it is used up, the "
            "system ends a process, such as a rank. To stop the cell: the stop button, or %distributed interrupt."
        )
