"""Checks that several backends make before ranks enter ``init``, where a mistake would show only as a hang."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from ipaddress import ip_address

from allranks_backends.plan import Host, Placement, WorldPlan
from allranks_backends.protocol import BackendError


def new_plan(backend: str, placements: Sequence[Placement], generation: int, connections: int) -> WorldPlan:
    """Return a plan.

    Raises BackendError if there is no rank, if the ranks are not 0 to size-1 in order, or if `connections` is below 1.
    """
    if not placements:
        raise BackendError("A world needs at least one rank: %distributed up -n 1")
    ranks = [placement.rank for placement in placements]
    if ranks != list(range(len(ranks))):
        raise BackendError(f"A world's ranks are 0 to {len(ranks) - 1} in order, and the placements are for {ranks}.")
    if connections < 1:
        raise BackendError(f"--connections is {connections}; it must be at least 1.")
    return WorldPlan(backend, tuple(placements), generation, connections)


def one_connection(plan: WorldPlan, instead: str) -> None:
    """Raise BackendError if ``--connections`` is not 1: the backend lacks this option. `instead` tells the user why."""
    if plan.connections != 1:
        raise BackendError(f"{plan.backend} has no --connections: {instead}. Leave the option out.")


def host_names(plan: WorldPlan) -> tuple[str, ...]:
    """Return the distinct host names, in the order of each host's first rank."""
    return tuple(dict.fromkeys(placement.host.name for placement in plan.placements))


def on_one_host(plan: WorldPlan) -> bool:
    """Whether all ranks are on one host. Only names count, since hostfile entries of a host may differ in RDMA rows."""
    return len(host_names(plan)) == 1


def login_and_port(name: str) -> tuple[str, int | None]:
    """Split ``user@host:2222`` into ``user@host`` and the port; the port of other names and IPv6 addresses is None."""
    login, colon, port = name.rpartition(":")
    return (login, int(port)) if colon and port.isdigit() and ":" not in login else (name, None)


def bare_name(name: str) -> str:
    """Return ``user@host:2222`` without user and port."""
    return login_and_port(name)[0].rpartition("@")[2]


def known_as(name: str) -> str:
    """Return the name of ``user@host:2222`` in known_hosts: ``[host]:2222``, or ``host`` without a port or with 22."""
    host, port = bare_name(name), login_and_port(name)[1]
    return host if port in (None, 22) else f"[{host}]:{port}"


def described(placement: Placement) -> str:
    """Return ``rank 1 (mac2)``, as messages call the rank."""
    return f"rank {placement.rank} ({placement.host.name})"


def needs_address(plan: WorldPlan, placement: Placement) -> None:
    """Raise BackendError if the host of this rank has no address, an IPv6 address, or, in a world of several hosts, a
    loopback address."""
    host = placement.host
    if not host.addresses:
        raise BackendError(
            f"No address is known for {described(placement)}, and {plan.backend} needs one."
            f' Add it to the hostfile: "ips": ["<IPv4 address of {host.name}>"]'
        )
    for address in host.addresses:
        if ":" in address:
            raise BackendError(
                f"{described(placement)} has the IPv6 address {address}, and mlx takes IPv4 only (mlx 0.32)."
                f" Use an IPv4 address of {host.name}."
            )
    if not on_one_host(plan) and (unreachable := [address for address in host.addresses if _is_loopback(address)]):
        other = next(name for name in host_names(plan) if name != host.name)
        raise BackendError(
            f"{described(placement)} is at {unreachable[0]}, where {other} cannot reach it."
            f" Give {host.name} the address that {other} sees:"
            f' "ips" in the hostfile, or --hosts <address of {host.name}>,{other}'
        )


def needs_ports(placement: Placement, count: int) -> None:
    """Raise BackendError unless the rank offers ``count`` usable ports."""
    if len(placement.ports) < count:
        raise BackendError(
            f"{described(placement)} offers {len(placement.ports)} free TCP ports and needs {count}."
            " Fewer --connections need fewer ports."
        )
    for port in placement.ports[:count]:
        if not 0 < port < 65536:
            raise BackendError(f"{described(placement)} offers port {port}; TCP ports are 1 to 65535.")


def ports_apart(plan: WorldPlan, count: int) -> None:
    """Raise BackendError if two connections of a host share a port: the ring has no handshake, and would join the wrong
    neighbours."""
    used = Counter((placement.host.name, port) for placement in plan.placements for port in placement.ports[:count])
    for (name, port), times in used.items():
        if times > 1:
            raise BackendError(
                f"Port {port} of {name} is planned {times} times; each connection needs a port of its own."
            )


def same_host(one: Host, other: Host) -> bool:
    """Whether two hosts have the same name; see `on_one_host`."""
    return one.name == other.name


def _is_loopback(address: str) -> bool:
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"
