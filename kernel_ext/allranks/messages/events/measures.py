"""Measurements of a rank: its collectives, memory, links, GPU and machine."""

from __future__ import annotations

from msgspec import Struct


class LedgerEntry(Struct, array_like=True, frozen=True):
    """One collective in the ledger of a rank."""

    number: int
    """Counts the calls that all ranks share, or the calls of this rank alone (see `shared`)."""
    op: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    line: int | None
    """The line of the running cell; None for code outside it."""
    shared: bool
    """Whether every rank of the world must enter it."""
    peer: int | None = None
    """The rank that it sends to or receives from; None for other collectives."""


class Memory(Struct, frozen=True):
    """Bytes: the process's resident memory; MLX's active, peak and cached memory (None before mlx is imported)."""

    rss: int | None = None
    mlx_active: int | None = None
    mlx_peak: int | None = None
    mlx_cache: int | None = None


class Gpu(Struct, frozen=True):
    """The GPU that a rank computes on, with the fields of `allranks_backends.views.GpuView`."""

    id: str = ""
    name: str = ""
    load: float | None = None
    memory: int | None = None
    memory_used: int | None = None
    power: int | None = None
    temperature: int | None = None
    throttled: bool | None = None


class OpTotals(Struct, array_like=True, frozen=True):
    """The calls of one operation so far: their number, their total bytes, and the bytes of the smallest and largest."""

    op: str
    calls: int
    nbytes: int
    smallest: int
    largest: int


class LinkReading(Struct, array_like=True, frozen=True):
    """All connections to one neighbour, by the counters of their sockets."""

    peer: int
    connections: int
    sent: int
    """Bytes that the peer has acknowledged so far; on macOS, bytes sent."""
    rate: float
    """Bytes of `sent` per second since the previous reading."""
    rtt: float
    """Round-trip time in seconds: the longest of all connections."""
    retransmits: int
    interface: str | None
    nominal: float | None
    """Bits a second that the interface claims."""
    queued: int = 0
    """Bytes sent that the peer has not acknowledged."""


class Compiler(Struct, array_like=True, frozen=True):
    """A compiler that a rank waits for."""

    program: str
    seconds: int
    """How long it has run, in whole seconds."""


class Machine(Struct, frozen=True):
    """A host, described by one of its ranks: bytes, load as a share of all cores, rates in bytes a second, °C."""

    model: str = ""
    chip: str = ""
    cores: int | None = None
    memory: int | None = None
    memory_used: int | None = None
    load: float | None = None
    interface: str | None = None
    sent_rate: float | None = None
    received_rate: float | None = None
    swap_rate: float | None = None
    throttled: bool | None = None
    temperature: float | None = None
