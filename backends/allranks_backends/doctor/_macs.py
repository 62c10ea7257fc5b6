"""Macs: versions, sleep, Thunderbolt and RDMA."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ._finding import Finding
from .facts import Asked, HostFacts


def systems(hosts: Sequence[HostFacts], asked: Asked) -> Iterator[Finding]:
    macs = [host for host in hosts if host.is_mac]
    for host in macs:
        if host.release != macs[0].release:
            yield Finding(
                "warning",
                host.name,
                f"It runs macOS {host.release}, and {macs[0].name} macOS {macs[0].release}.",
                "sw_vers -productVersion",
                "System Settings, General, Software Update",
            )
        if host.sleeps:
            yield Finding(
                "warning",
                host.name,
                "It goes to sleep when nobody types, in the middle of a cell too.",
                f"pmset -g: {host.sleeps}",
                "sudo pmset -a sleep 0",
                host.name,
            )


def thunderbolt(hosts: Sequence[HostFacts], asked: Asked) -> Iterator[Finding]:
    yield from ()
