"""Checks on Macs: versions, sleep, Thunderbolt and RDMA."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from allranks_backends.protocol import BackendError
from allranks_backends.thunderbolt import cables, notes
from allranks_backends.thunderbolt.addressing import addressing, commands

from .finding import Finding, Severity
from .host_facts import Asked, HostFacts


def systems(hosts: Sequence[HostFacts], _asked: Asked) -> Iterator[Finding]:
    macs = [host for host in hosts if host.is_mac]
    for host in macs:
        if host.release != macs[0].release:
            yield Finding(
                "warning",
                host.name,
                f"It runs macOS {host.release}, but {macs[0].name} runs macOS {macs[0].release}.",
                "sw_vers -productVersion",
                "System Settings, General, Software Update",
            )
        if host.sleeps:
            yield Finding(
                "warning",
                host.name,
                "It goes to sleep when there is no input, even in the middle of a cell.",
                f"pmset -g: {host.sleeps}",
                "sudo pmset -a sleep 0",
                host.name,
            )


def thunderbolt(hosts: Sequence[HostFacts], asked: Asked) -> Iterator[Finding]:
    """Report discovery's notes on ports and cables.

    If RDMA is needed and no note rules it out, also report ports with a cable that lack the IPv4 address that discovery
    would give them. Nothing is reported if no private network is left for such addresses.
    """
    macs = [host.mac for host in hosts if host.mac is not None and host.mac.ports]
    joined = cables.find_cables(macs)
    layout = cables.layout_of(macs)
    try:
        addresses = addressing(macs, layout)
    except BackendError:
        return
    said = notes.notes(macs, joined, addresses)
    for note in said:
        severity: Severity = (
            "error" if note.stops_rdma and asked.needs("rdma") else "warning" if note.command else "note"
        )
        where = ", ".join(note.hosts or tuple(mac.name for mac in macs))
        fix, at = (note.command, where) if note.command else (note.todo, "")
        yield Finding(severity, where, note.what.rstrip(":") + "." * note.what.endswith(":"), "", fix, at, note.source)
    if asked.needs("rdma") and not any(note.stops_rdma for note in said):
        for host, lines in commands(macs, addresses).items():
            if any(" inet " in line for line in lines):
                yield Finding(
                    "error",
                    host,
                    "A Thunderbolt port with a cable has no IPv4 address, without which RDMA fails with errno 22.",
                    lines[0],
                    f"%distributed discover --hosts {','.join(mac.name for mac in macs)} --setup",
                    source="#3207, #4191",
                )
