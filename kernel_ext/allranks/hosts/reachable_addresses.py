"""Choose the address at which the other hosts reach each host, if none was named. Pure: no sockets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Interface

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class HostNetwork:
    """The network as a host reports it."""

    own: Sequence[str]
    """The host's IPv4 addresses with their networks, such as ``10.0.0.3/24``."""
    used: str | None = None
    """The host's address in its connection with the notebook, or the address that was named or chosen before; None if
    unknown. Behind a proxy or over IPv6 it is not in `own`."""


def reachable_addresses(hosts: Mapping[str, HostNetwork]) -> dict[str, str]:
    """The address of each host, by name; a host without addresses is left out.

    If all hosts share a network, the addresses are on it, preferably on the network that the notebook's connections
    use. Otherwise each host gets the address that its connection used if that is its own, else its first address,
    and the network must route between them.
    """
    if shared := shared_networks(hosts):
        return shared[0]
    found = {}
    for name, told in hosts.items():
        mine = [str(IPv4Interface(each).ip) for each in told.own]
        if mine:
            found[name] = told.used if told.used in mine else mine[0]
    return found


def shared_networks(hosts: Mapping[str, HostNetwork]) -> list[dict[str, str]]:
    """The hosts' addresses in each network that all of them share; networks that the connections use come first."""
    own = {name: [IPv4Interface(address) for address in told.own] for name, told in hosts.items()}
    shared: dict[object, dict[str, str]] = {}
    for interface in next(iter(own.values()), []):
        there = {
            name: str(each.ip)
            for name, mine in own.items()
            for each in reversed(mine)
            if each.network == interface.network
        }
        # Docker's and libvirt's own networks exist on every host, each host is .1 in them, and they connect no hosts.
        if len(there) == len(hosts) == len(set(there.values())):
            shared.setdefault(interface.network, _as_used(there, own, hosts))
    return sorted(shared.values(), key=lambda there: -sum(hosts[name].used == there[name] for name in there))


def _as_used(
    there: Mapping[str, str], own: Mapping[str, Sequence[IPv4Interface]], hosts: Mapping[str, HostNetwork]
) -> dict[str, str]:
    """Return `there`, the hosts' addresses on one network; for a host whose connection used another of its addresses
    on that network, the result has that address."""
    chosen = dict(there)
    for name, told in hosts.items():
        network = next(each.network for each in own[name] if str(each.ip) == there[name])
        if any(str(each.ip) == told.used and each.network == network for each in own[name]):
            chosen[name] = str(told.used)
    return chosen
