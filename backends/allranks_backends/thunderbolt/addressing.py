"""An IPv4 network for each Thunderbolt cable, and the commands that set it up. Pure: nothing is run here.

``mlx.distributed_config --auto-setup`` would set up the same networks with nearly the same commands: blocks of four
addresses from 192.168.0.0 on. If a host is already in one of these networks, all blocks move to another private range.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, summarize_address_range

from allranks_backends.protocol import BackendError

from .mlx_config import Address, Layout
from .thunderbolt_ports import Mac

MLX_BEGINS = IPv4Address("192.168.0.0")
NETMASK = "255.255.255.252"
PREFIX = 30


@dataclass(frozen=True)
class Addressing:
    """The address of each end of each cable."""

    ends: Mapping[tuple[int, int], tuple[Address, ...]]
    """As in `Layout.addresses`: for each pair of hosts, the first host's ends of the cables between them."""
    moved: str = ""
    """Sentence that says which hosts already use the networks that mlx would take; empty if no host does."""


def addressing(macs: Sequence[Mac], layout: Layout) -> Addressing:
    """Return addresses for the cables of `layout`. Raises BackendError if every private network is taken."""
    used = [IPv4Address(address) for ends in layout.addresses.values() for _, address in ends]
    if not used:
        return Addressing({})
    size = int(max(used)) - int(MLX_BEGINS) + 2  # includes the broadcast address of the last network
    taken = list(_taken(macs))
    for begin in _places():
        block = list(summarize_address_range(begin, begin + size - 1))
        if not any(network.overlaps(part) for _, _, network in taken for part in block):
            break
    else:
        raise BackendError("no private network is left for the Thunderbolt cables: the hosts are in all of them.")
    if begin == MLX_BEGINS:
        return Addressing(layout.addresses)
    mlx_block = list(summarize_address_range(MLX_BEGINS, MLX_BEGINS + size - 1))
    theirs = [
        f"{name} has {network} on {interface}"
        for name, interface, network in taken
        if any(network.overlaps(part) for part in mlx_block)
    ]
    shift = int(begin) - int(MLX_BEGINS)
    ends = {
        pair: tuple((interface, str(IPv4Address(address) + shift)) for interface, address in each)
        for pair, each in layout.addresses.items()
    }
    moved = (
        f"{', '.join(theirs)}: the cables get addresses from {begin} on,"
        f" not from {MLX_BEGINS} on as mlx.distributed_config would give them."
    )
    return Addressing(ends, moved)


@dataclass(frozen=True)
class UnsetAddress:
    """An end of a cable that lacks its proposed address."""

    interface: str
    held: str
    """The address that the interface has, with its prefix length; empty if it has none."""
    proposed: str
    """The proposed address, with its prefix length."""
    there: str
    """The proposed address of the cable's other end."""


def unset_addresses(macs: Sequence[Mac], index: int, addresses: Addressing) -> list[UnsetAddress]:
    """Return the ends of cables at the Mac with this index that lack their proposed addresses."""
    held = {port.interface: str(port.address or "") for port in macs[index].ports}
    found = []
    for peer in range(len(macs)):
        ends = zip(addresses.ends.get((index, peer), ()), addresses.ends.get((peer, index), ()), strict=True)
        for (interface, address), (_, there) in ends:
            end = UnsetAddress(interface, held.get(interface, ""), f"{address}/{PREFIX}", there)
            if end.held != end.proposed:
                found.append(end)
    return found


def commands(macs: Sequence[Mac], addresses: Addressing) -> dict[str, list[str]]:
    """Return, by name of Mac, the commands yet to be run there, in order. A Mac with nothing to do is left out."""
    todo: dict[str, list[str]] = {}
    for index, mac in enumerate(macs):
        lines = ["sudo ifconfig bridge0 down"] if mac.bridge == "up" else []
        for end in unset_addresses(macs, index, addresses):
            lines.append(f"sudo ifconfig {end.interface} inet {end.proposed.partition('/')[0]} netmask {NETMASK}")
            # If macOS has reached the peer before, for example over the bridge, it must change the old route.
            route = f"{end.there} -interface {end.interface}"
            lines.append(f"sudo route change {route} || sudo route add {route}")
        if lines:
            todo[mac.name] = lines
    return todo


def _taken(macs: Sequence[Mac]) -> Iterator[tuple[str, str, IPv4Network]]:
    """Yield host, interface and network of each address, except on Thunderbolt ports and their bridge."""
    for mac in macs:
        ports = {port.interface for port in mac.ports} | {"bridge0"}
        for interface, address in mac.networks:
            if interface not in ports:
                yield mac.name, interface, address.network


def _places() -> Iterator[IPv4Address]:
    """Yield addresses at which the blocks could begin; the first is the address that mlx uses."""
    yield from (IPv4Address(f"192.168.{third}.0") for third in range(0, 256, 64))
    yield from (IPv4Address(f"172.{second}.0.0") for second in range(31, 15, -1))
    yield from (IPv4Address(f"10.{second}.0.0") for second in range(255, -1, -1))
