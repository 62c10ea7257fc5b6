"""The state of a world as last reported: its ranks, their collectives, and the links between them.

Frozen dataclasses, as in `plan`. The dashboard draws a ``Snapshot``, which contains all the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from .plan import Link, alike, rank_label

RankState = Literal[
    "planned",
    "starting",
    "idle",
    "running",
    "waiting",
    "debugging",
    "failed",
    "unblocked",
    "suspended",
    "silent",
    "dead",
]
"""``failed``: its last cell raised an error of its own. ``unblocked``: its collective was aborted. ``suspended``: its
process was stopped by a signal (SIGSTOP). ``silent``: it has sent nothing for four seconds, for a reason not known."""
AT_REST = frozenset[RankState](("idle", "failed", "unblocked"))
"""States of a rank that runs nothing and can take a cell."""
NOT_RESPONDING = frozenset[RankState](("suspended", "silent"))
"""States of a rank whose process lives, as far as is known, and which sends nothing."""
WorldState = Literal["planned", "starting", "whole", "broken", "incomplete", "down"]
"""``incomplete``: a change of the world ended before all ranks had their variables."""

_SIZED = {f"{kind}{bits}": f"{kind[0]}{bits}" for kind in ("uint", "int", "float") for bits in (8, 16, 32, 64)}
DTYPE_SHORT = {**_SIZED, "bool": "bool", "bfloat16": "bf16", "complex64": "c64"}


@dataclass(frozen=True)
class Collective:
    """One entry of a rank's ledger."""

    number: int
    """Calls that all ranks share have the same number on every rank. Each rank numbers its other calls separately."""
    op: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    line: int | None = None
    """Line of the call in the user's cell, counted from 1; None if unknown."""
    shared: bool = True
    """Whether all ranks of the world must enter it; False for ``send``, ``recv`` and calls on a smaller group."""
    peer: int | None = None
    """The rank it sends to or receives from; None for other operations and in a smaller group."""

    def __str__(self) -> str:
        """For example ``all_sum #17 f32[1000] (line 5)``, or ``recv #3 f32[4] from rank 0 (line 2)``."""
        where = f" (line {self.line})" if self.line else ""
        if self.peer is not None:
            where = f" {'to' if self.op == 'send' else 'from'} rank {self.peer}{where}"
        size = ",".join(map(str, self.shape))
        return f"{self.op} #{self.number} {DTYPE_SHORT.get(self.dtype, self.dtype)}[{size}]{where}"


@dataclass(frozen=True)
class HostView:
    """One host as last reported."""

    name: str
    model: str = ""
    """The maker's name for the machine; empty if unknown."""
    chip: str = ""
    """Name of the processor."""
    cores: int | None = None
    memory: int | None = None
    """Bytes that all programs together can use; in a container or a scheduler's job, the limit set for it."""
    memory_used: int | None = None
    """Bytes that are not available to a new program."""
    load: float | None = None
    """Share of all its cores that was in use lately, 0.0 to 1.0."""
    interface: str | None = None
    """The interface whose address the other hosts use; None if all ranks run on one host."""
    sent_rate: float | None = None
    """Bytes a second that the interface sent lately: frames of all programs, including headers."""
    received_rate: float | None = None
    swap_rate: float | None = None
    """Bytes a second that were swapped in and out lately."""
    throttled: bool | None = None
    """Whether a processor was slowed down lately because it was too hot; None if unknown."""
    temperature: float | None = None
    """Degrees Celsius of its hottest sensor."""


@dataclass(frozen=True)
class GpuView:
    """The GPU that a rank computes on, as its driver describes it."""

    id: str = ""
    """The UUID that NVIDIA's driver gives it; empty on a Mac, which has one GPU."""
    name: str = ""
    load: float | None = None
    """Share of recent time in which it was busy, 0.0 to 1.0."""
    memory: int | None = None
    """Bytes that programs can use; on a Mac, the maximum that Metal recommends for one program."""
    memory_used: int | None = None
    """Bytes in use by all programs."""
    power: int | None = None
    """Watts."""
    temperature: int | None = None
    """Degrees Celsius."""
    throttled: bool | None = None
    """Whether it is slowed down now because it is too hot; None if unknown."""


@dataclass(frozen=True)
class LinkView:
    """Traffic of a link, as its sender counted it. None means unknown, not zero."""

    link: Link
    connections: int = 1
    nominal: float | None = None
    """Bits a second that the interface reports as its speed; None if it reports none, as for loopback."""
    sent: int | None = None
    """Bytes that arrived since the link was joined: TCP's acknowledged bytes, payload without headers."""
    rate: float | None = None
    """Recent rate, in bytes a second."""
    rtt: float | None = None
    """Round trip time in seconds, smoothed as TCP does."""
    retransmits: int | None = None
    queued: int | None = None
    """Bytes sent that the target has not acknowledged."""


@dataclass(frozen=True)
class OpView:
    """What a rank did with one operation of ``mx.distributed`` since the world was first formed."""

    op: str
    calls: int
    nbytes: int
    smallest: int
    """Bytes of the smallest call."""
    largest: int
    transfer: float | None = None
    """Seconds of transfer in calls timed by ``--timing``. The transfer of a call is its duration on the rank that
    entered last, which did not wait."""
    wait: float | None = None
    """Seconds for which this rank waited for other ranks to enter, in calls timed by ``--timing``."""


@dataclass(frozen=True)
class RankView:
    """One rank as last reported."""

    rank: int
    host: str
    pid: int | None = None
    state: RankState = "starting"
    line: int | None = None
    """Line of the running cell."""
    source: str | None = None
    """Text of that line; without a `line`, where the main thread is instead, for example in IPython's own code."""
    begun: bool = True
    """Whether it has begun the cell that was sent to it, as far as it has reported."""
    collective: Collective | None = None
    """The last collective that the rank called."""
    entered: int = 0
    """Number of shared collectives that the rank has called."""
    since: float | None = None
    """Seconds in this state."""
    cpu: float | None = None
    """Share of one core used lately, 1.0 for a whole core."""
    rss: int | None = None
    """Resident memory of the process in bytes."""
    mlx_active: int | None = None
    """Bytes ``mx.get_active_memory`` reports."""
    mlx_peak: int | None = None
    """Bytes ``mx.get_peak_memory`` reports."""
    mlx_cache: int | None = None
    """Bytes ``mx.get_cache_memory`` reports: freed memory, retained for later arrays."""
    gpu: GpuView | None = None
    """The GPU that the rank computes on; on a Mac, only one of its ranks reports it."""
    cause: str | None = None
    """Why the rank is dead or failed, or how the last cell of an idle rank ended, in words."""
    effective: float | None = None
    """Bytes a second of the collectives that its code called lately, as the ledger counts them."""
    ops: tuple[OpView, ...] = ()
    """Its calls to ``mx.distributed``, by operation."""
    stalled: float | None = None
    """Seconds for which a transfer has been pending without any peer acknowledging a byte; None if unknown."""
    silent: int | None = None
    """Seconds since its last report, once these are 3 or more; None for a rank that reports, or is dead or away."""
    suspended: bool = False
    """Whether its process is suspended (SIGSTOP), as far as is known."""
    away: int | None = None
    """Seconds since its host became unreachable; None if the host is reachable."""
    compiler: str | None = None
    """The compiler that it waits for, for example ``g++`` for its first kernels; None if it waits for none."""
    compiling: int | None = None
    """Seconds for which the compiler has run."""
    tasks: bool = False
    """Whether asyncio tasks of earlier cells are pending on it."""
    in_task: bool = False
    """Whether such an asyncio task is blocked in the collective, so that the cell cannot begin or continue."""

    @property
    def doing(self) -> str:
        """The state in words: ``blocked in all_sum #17 f32[1000] (line 5)``."""
        if self.away is not None:
            return f"out of reach for {self.away} s, reconnecting"
        return (f"compiling with {self.compiler} for {self.compiling} s, " if self.compiler else "") + self._doing

    @property
    def _doing(self) -> str:
        if self.state == "waiting" and self.collective:
            by_task = ", which an asyncio task of an earlier cell called" if self.in_task else ""
            return f"blocked in {self.collective}{by_task}"
        if self.state == "debugging":
            return "in the debugger" + (f" at line {self.line}: {self.source}" if self.line else "")
        if self.state == "running" and self.line:
            return f"running line {self.line}" + (f": {self.source}" if self.source else "")
        if self.state == "running" and self.source:
            return f"running {self.source}"
        if self.state in ("dead", "failed") and self.cause:
            return f"{self.state}: {self.cause}"
        return f"idle ({self.cause})" if self.state == "idle" and self.cause else self.state


@dataclass(frozen=True)
class Snapshot:
    """Everything there is to show about a cluster at one moment."""

    name: str
    backend: str
    state: WorldState
    generation: int
    ranks: tuple[RankView, ...]
    at: float = 0.0
    """Unix time in seconds."""
    notes: tuple[str, ...] = ()
    """What the user should know and do, one sentence each."""
    hosts: tuple[HostView, ...] = ()
    links: tuple[LinkView, ...] = ()
    """Every link of the backend, in each direction."""
    peak: float | None = None
    """Highest bus bandwidth in the last ``bench`` of this world, in bytes a second; None before the first."""
    straggler: str | None = None
    """The rank that the others waited for longest in calls timed by ``--timing``, in words."""
    straggler_rank: int | None = None
    """The number of that rank, if the others waited for it long enough for it to be marked."""

    def doing(self, ranks: Sequence[int]) -> str:
        """What these ranks are doing: ``ranks 0-1 blocked in all_sum #1 f32[10] (line 3); rank 2 running line 4``."""
        doing = alike({rank: self.ranks[rank].doing for rank in ranks})
        return "; ".join(f"{rank_label(members)} {what}" for what, members in doing.items())
