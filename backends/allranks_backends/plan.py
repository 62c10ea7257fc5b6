"""The vocabulary: what a host, a world, a rank and a collective are.

Everything else speaks in these frozen dataclasses. They hold no processes, sockets or MLX objects, so that they can be
made, compared, recorded and drawn anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

T = TypeVar("T")
RankState = Literal["planned", "starting", "idle", "running", "waiting", "debugging", "failed", "stopped", "dead"]
WorldState = Literal["planned", "starting", "whole", "broken", "down"]

_SIZED = {f"{kind}{bits}": f"{kind[0]}{bits}" for kind in ("uint", "int", "float") for bits in (8, 16, 32, 64)}
DTYPE_SHORT = {**_SIZED, "bool": "bool", "bfloat16": "bf16", "complex64": "c64"}


@dataclass(frozen=True)
class Host:
    """One machine, as far as it is known before any rank runs on it."""

    name: str
    """What the user calls it; ``localhost`` for the notebook's own machine."""
    local: bool = True
    addresses: tuple[str, ...] = ("127.0.0.1",)
    """IPv4 addresses at which the other hosts reach it."""
    rdma: tuple[tuple[str | None, ...], ...] = ()
    """Device name(s) of the RDMA link to each rank, in rank order; empty where the hostfile gave none."""
    cuda: tuple[str, ...] = ()
    """The CUDA devices ranks may use there, as CUDA_VISIBLE_DEVICES names them; empty for all of them, from 0. One that
    is listed twice is shared by two ranks."""


@dataclass(frozen=True)
class Platform:
    """What a host (or the notebook) can run, as mlx itself says."""

    system: str
    """``platform.system()``: ``Linux`` or ``Darwin``."""
    release: str = ""
    """macOS product version or kernel release."""
    available: Mapping[str, bool] = field(default_factory=dict)
    """``mx.distributed.is_available`` by backend name."""
    cuda_devices: int = 0
    mlx: str = ""
    """mlx version."""
    mpirun: str | None = None
    """Path of the ``mpirun`` an MPI world would be started with."""


@dataclass(frozen=True)
class Site:
    """A host that ranks are meant for: what it can run, and how many of them."""

    name: str
    platform: Platform
    ranks: int
    local: bool = True


@dataclass(frozen=True)
class Placement:
    """One rank's place: which host, which address, which device."""

    rank: int
    host: Host
    local_rank: int = 0
    """Index among the ranks of the same host; the CUDA device."""
    ports: tuple[int, ...] = ()
    """Free TCP ports on that host for this generation, one for each connection."""


@dataclass(frozen=True)
class WorldPlan:
    """A world about to be formed: the ranks in order, and everything the backend needs to join them."""

    backend: str
    placements: tuple[Placement, ...]
    generation: int = 1
    connections: int = 1
    """TCP connections for each address of a ring link."""

    @property
    def size(self) -> int:
        return len(self.placements)

    @property
    def hosts(self) -> tuple[Host, ...]:
        """The distinct hosts, in order of their first rank."""
        return tuple(dict.fromkeys(placement.host for placement in self.placements))


@dataclass(frozen=True)
class Wiring:
    """What one rank needs so that ``mx.distributed.init`` joins the world."""

    env: Mapping[str, str]
    """Environment; ``{dir}`` in a value stands for the rank's private folder, where ``files`` are written."""
    files: Mapping[str, str] = field(default_factory=dict)
    """File name to content."""


@dataclass(frozen=True)
class Link:
    """A connection from one rank to another, in that direction."""

    source: int
    target: int
    kind: str
    """``loopback``, ``shared memory``, ``ethernet``, ``thunderbolt``, ``rdma`` or ``gpu`` (NVLink or PCIe)."""
    interface: str | None = None


@dataclass(frozen=True)
class Collective:
    """One entry of a rank's ledger."""

    seq: int
    op: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    line: int | None = None
    """Line of the user's cell, 1 for its first, where the call stands."""
    shared: bool = True
    """All ranks of the world must enter it; not so for ``send``, ``recv`` and calls on a smaller group."""

    def __str__(self) -> str:
        """For example ``all_sum #17 f32[1000] (line 5)``."""
        where = f" (line {self.line})" if self.line else ""
        size = ",".join(map(str, self.shape))
        return f"{self.op} #{self.seq} {DTYPE_SHORT.get(self.dtype, self.dtype)}[{size}]{where}"


@dataclass(frozen=True)
class HostView:
    """One host as last reported."""

    name: str
    model: str = ""
    """What the maker calls the machine; empty where it does not say."""
    chip: str = ""
    """Name of the processor."""
    cores: int | None = None
    memory: int | None = None
    """Bytes it has."""
    memory_used: int | None = None
    """Bytes that are not available to a new program."""
    load: float | None = None
    """Share of all its cores in use lately, 0.0 to 1.0."""
    interface: str | None = None
    """The one with the address that the other hosts use; None where ranks run on one host only."""
    sent_rate: float | None = None
    """Bytes a second it sent lately: all programs' frames, headers included."""
    received_rate: float | None = None


@dataclass(frozen=True)
class LinkView:
    """Traffic of a link, as its sender counted it. None is unknown, which is not zero."""

    link: Link
    connections: int = 1
    nominal: float | None = None
    """Bits a second the interface claims; None where it claims none, as loopback does."""
    sent: int | None = None
    """Bytes that arrived since the link was joined: TCP's acknowledged bytes, payload without headers."""
    rate: float | None = None
    """Bytes a second lately."""
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
    """Seconds in which bytes travelled, of the calls that ``--timing`` timed: the fastest rank's, which came last."""
    wait: float | None = None
    """Seconds this rank waited for others to come, of the calls that ``--timing`` timed."""


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
    """Text of that line."""
    collective: Collective | None = None
    """The last collective the rank asked for."""
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
    cause: str | None = None
    """Why the rank is dead or failed, in words."""
    effective: float | None = None
    """Bytes a second of the collectives its code asked for lately, as the ledger counts them."""
    ops: tuple[OpView, ...] = ()
    """What it asked of ``mx.distributed``, by operation."""
    stalled: float | None = None
    """Seconds in which a transfer was pending and no byte it sent arrived; None where that cannot be known."""
    compiler: str | None = None
    """Which compiler it waits for, as it does for its first kernels: ``g++``."""
    compiling: int | None = None
    """Seconds for which that has run."""

    @property
    def doing(self) -> str:
        """The state in words: ``blocked in all_sum #17 f32[1000] (line 5)``."""
        return (f"compiling with {self.compiler} for {self.compiling} s, " if self.compiler else "") + self._doing

    @property
    def _doing(self) -> str:
        if self.state == "waiting" and self.collective:
            return f"blocked in {self.collective}"
        if self.state == "debugging":
            return "in the debugger" + (f" at line {self.line}: {self.source}" if self.line else "")
        if self.state == "running" and self.line:
            return f"running line {self.line}" + (f": {self.source}" if self.source else "")
        if self.state in ("dead", "failed") and self.cause:
            return f"{self.state}: {self.cause}"
        return self.state


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
    """Highest bus bandwidth that ``bench`` measured on this world, in bytes a second."""
    straggler: str | None = None
    """The rank that others waited for in the calls that ``--timing`` timed, in words."""

    def doing(self, ranks: Sequence[int]) -> str:
        """``ranks 0-1, 3 blocked in all_sum #1 f32[10] (line 3); rank 2 running line 4: while True: pass``."""
        doing = alike({rank: self.ranks[rank].doing for rank in ranks})
        return "; ".join(f"{rank_label(members)} {what}" for what, members in doing.items())


def alike(values: Mapping[int, T]) -> dict[T, list[int]]:
    """The ranks of each value, given the value of each rank."""
    ranks: dict[T, list[int]] = {}
    for rank, value in values.items():
        ranks.setdefault(value, []).append(rank)
    return ranks


def rank_list(ranks: list[int] | tuple[int, ...] | set[int]) -> str:
    """Ranks as a person writes them: ``0``, ``0-3``, ``0, 2-3``."""
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)


def rank_label(ranks: list[int] | tuple[int, ...] | set[int]) -> str:
    """``rank 2`` or ``ranks 0-3``."""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {rank_list(ranks)}"
