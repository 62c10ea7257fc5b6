"""Memory and disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ._finding import Finding
from .facts import Asked, HostFacts

ROOM = 64 << 20
"""Bytes for the folders and logs of a host's ranks, and for namespaces that are carried over a restart."""


def memory(hosts: Sequence[HostFacts], asked: Asked) -> Iterator[Finding]:
    for host in hosts:
        if asked.memory is None or host.memory is None:
            continue
        total, available = host.memory
        needed = asked.memory * asked.ranks_per_host
        if needed <= available:
            continue
        ranks = "its rank" if asked.ranks_per_host == 1 else f"its {asked.ranks_per_host} ranks"
        fits = total // max(asked.memory, 1)
        yield Finding(
            "error" if needed > total else "warning",
            host.name,
            f"{_size(needed)} are to be loaded by {ranks}, and {_size(available)} of its {_size(total)} are free.",
            f"{_size(available)} available",
            "end other programs there"
            if needed <= total
            else f"--ranks-per-host {fits}"
            if fits
            else "more hosts, or a smaller or quantized model",
        )


def disk(hosts: Sequence[HostFacts], _: Asked) -> Iterator[Finding]:
    for host in hosts:
        if host.disk is not None and host.disk[1] < ROOM:
            folder, free = host.disk
            yield Finding(
                "error",
                host.name,
                f"Only {_size(free)} are free for temporary files ({folder}).",
                f"df {folder}",
                f"free some space on {folder}, or set TMPDIR for its ssh logins",
            )


def _size(nbytes: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= size:
            return f"{nbytes / size:.3g} {unit}"
    return f"{nbytes} bytes"
