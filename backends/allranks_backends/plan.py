"""The dataclasses that describe hosts and worlds. `views` describes ranks and collectives.

All other code uses these frozen dataclasses. They hold no processes, sockets or MLX objects, so they can be created,
compared, recorded and drawn anywhere.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

K = TypeVar("K")
T = TypeVar("T")


@dataclass(frozen=True)
class Host:
    """One machine, as far as it is known before any rank runs on it."""

    name: str
    """The name that the user gave; ``localhost`` if it is a loopback name, or if the user named no host."""
    local: bool = True
    addresses: tuple[str, ...] = ("127.0.0.1",)
    """IPv4 addresses at which the other hosts reach it."""
    rdma: tuple[tuple[str | None, ...], ...] = ()
    """Device name(s) of the RDMA link to each rank, in rank order; empty if the hostfile lists none."""
    cuda: tuple[str, ...] = ()
    """The CUDA devices that ranks may use there, named as in CUDA_VISIBLE_DEVICES; empty for all devices, from 0. A
    device that is listed twice is shared by two ranks."""
    python: str | None = None
    """The interpreter of its ranks, if the user named one for this host."""
    cwd: str | None = None
    """The working folder of its ranks, if the user named one for this host."""
    written: str = ""
    """The name without user and port, if the hostfile gives these in separate fields; else empty. `name` includes both.

    Also empty if two hosts of the file differ only in user or port.
    """

    @property
    def shown(self) -> str:
        """The name shown in tables."""
        return self.written or self.name


@dataclass(frozen=True)
class Platform:
    """What a host (or the notebook's machine) can run, as reported by mlx."""

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
    """Path of the ``mpirun`` that would start an MPI world."""
    other_python: str = ""
    """Path of the host's interpreter if it differs from the path of Python in mpirun's command line; else empty."""


@dataclass(frozen=True)
class Site:
    """A host to plan a world for: what it can run, and the number of its ranks. The notebook's host may have none."""

    name: str
    platform: Platform
    ranks: int
    local: bool = True


@dataclass(frozen=True)
class Placement:
    """The placement of one rank: its host, its index there and its TCP ports."""

    rank: int
    host: Host
    local_rank: int = 0
    """Index among the ranks of the same host; selects the CUDA device."""
    ports: tuple[int, ...] = ()
    """Free TCP ports on that host for this generation, one for each connection."""


@dataclass(frozen=True)
class WorldPlan:
    """A world about to be formed: the ranks in order, and everything the backend needs to join them."""

    backend: str
    placements: tuple[Placement, ...]
    generation: int = 1
    connections: int = 1
    """TCP connections for each address of a ring link, or for each link of MPI (``btl_tcp_links``)."""

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
    """Environment variables; ``{dir}`` in a value stands for the rank's private folder, where ``files`` are written."""
    files: Mapping[str, str] = field(default_factory=dict)
    """File name to content."""
    defaults: Mapping[str, str] = field(default_factory=dict)
    """Environment variables that are set only if the rank does not have them."""


@dataclass(frozen=True)
class Link:
    """A connection from one rank to another, in that direction."""

    source: int
    target: int
    kind: str
    """``loopback``, ``shared memory``, ``ethernet``, ``thunderbolt``, ``rdma`` or ``gpu`` (NVLink or PCIe)."""
    interface: str | None = None


def alike(values: Mapping[K, T]) -> dict[T, list[K]]:
    """Group ranks (or hosts, or files) by value: map each distinct value to the keys that have it."""
    ranks: dict[T, list[K]] = {}
    for rank, value in values.items():
        ranks.setdefault(value, []).append(rank)
    return ranks


def rank_list(ranks: Collection[int]) -> str:
    """Ranks as a person writes them: ``0``, ``0-3``, ``0, 2-3``."""
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)


def rank_label(ranks: Collection[int]) -> str:
    """``rank 2`` or ``ranks 0-3``."""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {rank_list(ranks)}"
