"""Checks on memory, disk space and working folders."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from .finding import Finding
from .host_facts import Asked, HostFacts

LEAST = 8 << 20
"""Bytes of free disk space below which a host process refuses to start ranks."""
ROOM = 64 << 20
"""Bytes of free disk space needed for the folders and logs of a host's ranks, and for checkpoints of a restart."""
FOR_ENVIRONMENT = 2 << 30
"""Bytes that an environment made by `setup` takes, including files unpacked during installation."""


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
            later=True,
        )


def disk(hosts: Sequence[HostFacts], _: Asked) -> Iterator[Finding]:
    for host in hosts:
        if host.disk is not None and host.disk[1] < ROOM:
            folder, free = host.disk
            yield Finding(
                "error" if free < LEAST else "warning",
                host.name,
                f"Only {_size(free)} free for temporary files ({folder}).",
                f"df {folder}",
                f"free some space on {folder}, or set TMPDIR for its ssh logins",
            )


def folders(hosts: Sequence[HostFacts], asked: Asked) -> Iterator[Finding]:
    for host in hosts:
        folder, why = asked.folder_of(host.name), host.no_folder
        if folder and why:
            missing = "No such file" in why or "can't cd" in why
            yield Finding(
                "error",
                host.name,
                f"The ranks cannot work in {folder}: it is not a folder there, or may not be entered.",
                why,
                f"mkdir -p {shlex.quote(folder)}" if missing else "name another working folder: --cwd",
                host.name if missing else "",
            )


def home(hosts: Sequence[HostFacts], asked: Asked) -> Iterator[Finding]:
    """Check the disk space for the environment that `setup` would make on a host without a suitable Python."""
    for host in hosts:
        wanting = asked.wants_environment(host.name) and not asked.fits(host.python)
        if host.home is not None and host.home[1] < FOR_ENVIRONMENT and wanting:
            folder, free = host.home
            yield Finding(
                "warning",
                host.name,
                f"Only {_size(free)} free for an environment that %distributed setup would make ({folder}).",
                f"df {folder}",
                f"free some space on {folder}",
            )


def _size(nbytes: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= size:
            return f"{nbytes / size:.3g} {unit}"
    return f"{nbytes} bytes"
