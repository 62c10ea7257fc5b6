"""Hosts and links of a discovery, as the dashboard's topology draws them. Nothing runs yet, so links have no rate."""

from __future__ import annotations

from collections.abc import Sequence

from allranks_backends.machines.ethernet_hosts import Server, common_network
from allranks_backends.plan import Link
from allranks_backends.registry import get_backend
from allranks_backends.runtimes.ring import neighbours
from allranks_backends.thunderbolt.cables import Cable
from allranks_backends.thunderbolt.thunderbolt_ports import Mac
from allranks_backends.views import HostView, LinkView


def hosts(macs: Sequence[Mac], servers: Sequence[Server]) -> tuple[HostView, ...]:
    if servers:
        return tuple(HostView(server.name, chip=server.chip, memory=server.memory) for server in servers)
    return tuple(HostView(mac.name, model=mac.model, chip=mac.chip, memory=mac.memory) for mac in macs)


def along_cables(cables: Sequence[Cable], order: Sequence[int], backend_name: str | None) -> list[LinkView]:
    """The links over usable cables, in both directions; with a backend, only the links that it uses.

    `order` has the index of each rank's host.
    """
    rank = {index: place for place, index in enumerate(order)}
    backend = get_backend(backend_name) if backend_name else None
    by_rdma = backend is not None and backend.needs == "rdma"
    near = set(neighbours(len(order))) if backend is not None and backend.neighbours_only else None
    links = []
    for cable in cables:
        ways = ((cable.one, cable.other, cable.port), (cable.other, cable.one, cable.other_port))
        for source, target, port in ways if cable.usable else ():
            ends = (rank[source], rank[target])
            if near is None or ends in near:
                name = f"rdma_{port.interface}" if by_rdma else port.interface
                nominal = None if cable.speed is None else cable.speed * 1e9
                links.append(LinkView(Link(*ends, "rdma" if by_rdma else "thunderbolt", name), nominal=nominal))
    return links


def between_servers(servers: Sequence[Server], order: Sequence[int]) -> list[LinkView]:
    """The links of a ring. A link between two GPUs of one host is named by its type in ``nvidia-smi topo``."""
    network = common_network(servers)
    first = {index: place for place, index in reversed([*enumerate(order)])}
    links = []
    for source, target in neighbours(len(order)):
        here, there = order[source], order[target]
        if here == there:
            way = servers[here].gpu_links.get((source - first[here], target - first[here]))
            links.append(LinkView(Link(source, target, "gpu", way)))
            continue
        interface = servers[here].in_network(network) if network is not None else None
        speed = interface.speed if interface is not None else None
        links.append(LinkView(Link(source, target, "ethernet", interface.name if interface else None), nominal=speed))
    return links
