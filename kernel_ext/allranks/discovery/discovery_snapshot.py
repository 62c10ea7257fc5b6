"""Convert a Discovery to a Snapshot, which the dashboard's topology can draw. Nothing runs yet, so ranks have no
process and links no rate."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from allranks_backends.machines.ethernet_hosts import common_network
from allranks_backends.plan import Link
from allranks_backends.registry import get_backend
from allranks_backends.runtimes.ring import neighbours
from allranks_backends.views import HostView, LinkView, RankView, Snapshot

if TYPE_CHECKING:
    from .discovery_result import Discovery


def drawn(found: Discovery) -> Snapshot:
    """A Snapshot of the proposed ranks on their hosts and their links; without a proposal, one rank per host."""
    proposal = found.proposal
    order = proposal.order if proposal is not None else tuple(range(len(found.names)))
    return Snapshot(
        name="discovered",
        backend=found.backend or found.over,
        state="planned",
        generation=0,
        ranks=tuple(RankView(rank, found.names[index], state="planned") for rank, index in enumerate(order)),
        at=time.time(),
        hosts=_hosts(found),
        links=tuple(_between_servers(found, order) if found.servers else _along_cables(found, order)),
    )


def _hosts(found: Discovery) -> tuple[HostView, ...]:
    if found.servers:
        return tuple(HostView(server.name, chip=server.chip, memory=server.memory) for server in found.servers)
    return tuple(HostView(mac.name, model=mac.model, chip=mac.chip, memory=mac.memory) for mac in found.macs)


def _along_cables(found: Discovery, order: tuple[int, ...]) -> list[LinkView]:
    rank = {index: place for place, index in enumerate(order)}
    backend = get_backend(found.backend) if found.backend else None
    by_rdma = backend is not None and backend.needs == "rdma"
    near = set(neighbours(len(order))) if backend is not None and backend.neighbours_only else None
    links = []
    for cable in found.cables:
        ways = ((cable.one, cable.other, cable.port), (cable.other, cable.one, cable.other_port))
        for source, target, port in ways if cable.usable else ():
            ends = (rank[source], rank[target])
            if near is None or ends in near:
                name = f"rdma_{port.interface}" if by_rdma else port.interface
                nominal = None if cable.speed is None else cable.speed * 1e9
                links.append(LinkView(Link(*ends, "rdma" if by_rdma else "thunderbolt", name), nominal=nominal))
    return links


def _between_servers(found: Discovery, order: tuple[int, ...]) -> list[LinkView]:
    """The links of a ring; between two GPUs of one host, the link type from ``nvidia-smi topo``."""
    network = common_network(found.servers)
    first = {index: place for place, index in reversed([*enumerate(order)])}
    links = []
    for source, target in neighbours(len(order)):
        here, there = order[source], order[target]
        if here == there:
            way = found.servers[here].gpu_links.get((source - first[here], target - first[here]))
            links.append(LinkView(Link(source, target, "gpu", way)))
            continue
        interface = found.servers[here].in_network(network) if network is not None else None
        speed = interface.speed if interface is not None else None
        links.append(LinkView(Link(source, target, "ethernet", interface.name if interface else None), nominal=speed))
    return links
