"""Worlds that Macs can form over Thunderbolt or Ethernet, and their hostfiles in the format of mlx. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .addressing import Addressing
from .mlx_config import HostfileJson, Layout, hostfile, named_addresses
from .thunderbolt_ports import Mac

Row = list[str | list[str] | None]


@dataclass(frozen=True)
class Proposal:
    """A world that discovered hosts could form."""

    backend: str
    """Name of the backend; ``""`` for any backend, as mlx writes for Ethernet."""
    order: tuple[int, ...]
    """Indices of the hosts, rank by rank."""
    hostfile: HostfileJson
    """Content of the hostfile: ``backend``, ``envs`` and ``hosts``."""
    why: str


def over_thunderbolt(macs: Sequence[Mac], layout: Layout, addresses: Addressing) -> Proposal | None:
    """Return the world that mlx would choose for the cables of `macs`; None if they form neither a mesh nor a ring."""
    size = len(macs)
    everyone = tuple(range(size))
    rdma = all(mac.has_rdma for mac in macs)
    if size < 2:
        return None
    if rdma and layout.mesh:
        rows = _mesh_rows(size, addresses)
        return Proposal(
            "jaccl", everyone, _written(macs, everyone, rows, "jaccl"), "RDMA and a cable between every two"
        )
    if not layout.whole_ring(size):
        return None
    if rdma:
        rows, why = _ring_rows(layout, addresses), "RDMA and a ring of cables"
        return Proposal("jaccl-ring", layout.ring, _written(macs, layout.ring, rows, "jaccl-ring"), why)
    lines: list[tuple[str, Sequence[str], Row]] = []
    for place, index in enumerate(layout.ring):
        ends = addresses.ends[index, layout.ring[place - 1]][: layout.ring_cables]
        lines.append((macs[index].name, [address for _, address in ends], []))
    return Proposal("ring", layout.ring, hostfile(lines, "ring"), "a ring of cables, and no RDMA on all of them")


def over_ethernet(macs: Sequence[Mac]) -> Proposal:
    """Return a world over the addresses of en0 or en1, as ``mlx.distributed_config --over ethernet`` writes it."""
    order = tuple(range(len(macs)))
    return Proposal("", order, _written(macs, order, [[] for _ in macs], ""), "the addresses of Ethernet or Wi-Fi")


def _written(macs: Sequence[Mac], order: Sequence[int], rows: Sequence[Row], backend: str) -> HostfileJson:
    return hostfile(
        [(macs[index].name, _addresses(macs[index]), row) for index, row in zip(order, rows, strict=True)], backend
    )


def _addresses(mac: Mac) -> list[str]:
    """Return the Mac's addresses on Ethernet or Wi-Fi: ranks of an RDMA world use these before RDMA works."""
    return [*named_addresses(mac.name), *([mac.address] if mac.address else [])]


def _mesh_rows(size: int, addresses: Addressing) -> list[Row]:
    pairs = [(i, j) for i in range(size) for j in range(size) if i != j]
    count = min(len(addresses.ends[pair]) for pair in pairs)
    return [[_devices(addresses, i, j, count) if i != j else None for j in range(size)] for i in range(size)]


def _ring_rows(layout: Layout, addresses: Addressing) -> list[Row]:
    ring, count = layout.ring, layout.ring_cables
    rows: list[Row] = []
    for place, index in enumerate(ring):
        sides = (ring[place - 1], ring[(place + 1) % len(ring)])
        rows.append([_devices(addresses, index, other, count) if other in sides else None for other in ring])
    return rows


def _devices(addresses: Addressing, source: int, target: int, count: int) -> str | list[str]:
    names = [f"rdma_{interface}" for interface, _ in addresses.ends[source, target][:count]]
    return names[0] if count == 1 else names
