"""Warns of a host or a GPU whose memory a running cell is about to use up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from allranks_backends.plan import rank_label
from allranks_backends.views import Snapshot
from allranks_widgets.status import human_bytes

from .stall import CellFinding

LITTLE = 0.05
"""Warn if less than this share of a host's memory is left. Not for a GPU, which is often filled on purpose."""
SOON = 10.0
"""Warn if memory will be used up within this many seconds, at the rate of the last `OVER` seconds."""
OVER = 3.0
ENOUGH = 0.25
"""While more than this share of the memory is left, there is no warning, and the next shortage gets a new one."""


@dataclass(frozen=True)
class MemoryLeft:
    """The memory of a host or a GPU, in bytes."""

    where: str
    ranks: tuple[int, ...]
    """The ranks of the cell that use it."""
    total: int
    used: int
    if_full: str
    """What happens when the memory is used up."""
    little: float = 0.0
    """Warn if less than this share of `total` is left, even if memory use does not grow."""


class LowMemory:
    """Watches hosts and GPUs during one cell."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self._ranks = ranks
        self._used: dict[str, list[tuple[float, int]]] = {}
        """By host or GPU: times and bytes of the last `OVER` seconds, oldest first."""
        self._warned = set[str]()

    def look(self, snapshot: Snapshot, now: float) -> list[CellFinding]:
        """Return new warnings; `now` is in seconds."""
        memories = [*_hosts(snapshot, self._ranks), *_gpus(snapshot, self._ranks)]
        return [CellFinding(each.ranks, text) for each in memories if (text := self._warning(each, now))]

    def _warning(self, memory: MemoryLeft, now: float) -> str:
        readings = self._used.setdefault(memory.where, [])
        readings.append((now, memory.used))
        while now - readings[0][0] > OVER:
            readings.pop(0)
        left, seconds = memory.total - memory.used, now - readings[0][0]
        growth = max(0.0, (memory.used - readings[0][1]) / seconds) if seconds > 0 else 0.0
        if left > ENOUGH * memory.total:
            self._warned.discard(memory.where)
            return ""
        if memory.where in self._warned or not (left < memory.little * memory.total or growth * SOON > left):
            return ""
        self._warned.add(memory.where)
        grows = f" {human_bytes(growth)} more are used each second." if growth * SOON > left else ""
        return (
            f"{memory.where} has {human_bytes(left)} of {human_bytes(memory.total)} memory left.{grows} If it is used "
            f"up, {memory.if_full}. To stop the cell: the stop button, or %distributed interrupt."
        )


def _hosts(snapshot: Snapshot, ranks: Sequence[int]) -> Iterator[MemoryLeft]:
    for host in snapshot.hosts:
        here = tuple(rank for rank in ranks if snapshot.ranks[rank].host == host.name)
        if here and host.memory and host.memory_used is not None:
            full = "the system ends a process, such as a rank"
            yield MemoryLeft(host.name, here, host.memory, host.memory_used, full, LITTLE)


def _gpus(snapshot: Snapshot, ranks: Sequence[int]) -> Iterator[MemoryLeft]:
    """Yield the memory of NVIDIA GPUs only: a Mac's GPU shares the host's memory.

    MLX's cache counts as free, since MLX frees its cache before an allocation fails.
    """
    sharing: dict[str, list[int]] = {}
    for view in snapshot.ranks:
        if view.gpu is not None and view.gpu.id:
            sharing.setdefault(view.gpu.id, []).append(view.rank)
    for on_it in sharing.values():
        # The figures of a rank that does nothing may be seconds old.
        last = snapshot.ranks[max(on_it, key=lambda rank: (snapshot.ranks[rank].state != "idle", rank))]
        here = tuple(rank for rank in on_it if rank in ranks)
        if here and last.gpu is not None and last.gpu.memory and last.gpu.memory_used is not None:
            kept = sum(snapshot.ranks[rank].mlx_cache or 0 for rank in on_it)
            where = f"The GPU of {rank_label(on_it)} ({last.gpu.name} on {last.host})"
            full = f"MLX raises an error on {rank_label(here)}"
            yield MemoryLeft(where, here, last.gpu.memory, max(0, last.gpu.memory_used - kept), full)
