"""Memory and disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .facts import Asked, HostFacts
from .finding import Finding

ROOM = 64 << 20
"""Bytes for the folders and logs of a host's ranks, and for the checkpoints of a restart."""


def memory(hosts: Sequence[HostFacts], asked: Asked) -> Iterator[Finding]:
    for host in hosts:
        if asked.memory is None or host.memory is None:
            continue
        total, available = host.memory
        needed = asked.memory * asked.ranks_per_host
        if needed <= available:
            continue
        ranks = "Its rank" if asked.ranks_per_host == 1 else f"Its {asked.ranks_per_host} ranks"
        fits = total // max(asked.memory, 1)
        yield Finding(
            "error" if needed > total else "warning",
            host.name,
            f"{ranks} will load {_size(needed)}, but only {_size(available)} of its {_size(total)} are free.",
            f"{_size(available)} available",
            "stop other programs there"
            if needed <= total
            else f"--ranks-per-host {fits}"
            if fits
            else "use more hosts, or a smaller or quantized model",
        )


def disk(hosts: Sequence[HostFacts], _: Asked) -> Iterator[Finding]:
    for host in hosts:
        if host.disk is not None and host.disk[1] < ROOM:
            folder, free = host.disk
            yield Finding(
                "error",
                host.name,
                f"Only {_size(free)} free for temporary files ({folder}).",
                f"df {folder}",
                f"free some space on {folder}, or set TMPDIR for its ssh logins",
            )


def _size(nbytes: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= size:
            return f"{nbytes / size:.3g} {unit}"
    return f"{nbytes} bytes"
