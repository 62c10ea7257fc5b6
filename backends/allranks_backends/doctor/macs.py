"""Checks on Macs: versions, sleep, Thunderbolt and RDMA."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from allranks_backends.protocol import BackendError
from allranks_backends.thunderbolt import cables, notes
from allranks_backends.thunderbolt.addressing import addressing, commands, unset_addresses

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

    If RDMA is needed and no note rules it out, also report ports with a cable that have no IPv4 address, or another
    one than discovery proposes. Nothing is reported if no private network is left for such addresses.
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
        fix = f"%distributed discover --hosts {','.join(mac.name for mac in macs)} --setup"
        todo = commands(macs, addresses)
        for index, mac in enumerate(macs):
            unset = unset_addresses(macs, index, addresses)
            others = ", ".join(f"{end.interface} has {end.held} instead of {end.proposed}" for end in unset if end.held)
            if any(not end.held for end in unset):
                what = "A Thunderbolt port with a cable has no IPv4 address, without which RDMA fails with errno 22."
                yield Finding("error", mac.name, what, todo[mac.name][0], fix, source="#3207, #4191")
            elif others:
                what = f"Other addresses than proposed: {others}. Both ends of a cable must be in one network."
                yield Finding("warning", mac.name, what, todo[mac.name][0], fix, source="#3207, #4191")
