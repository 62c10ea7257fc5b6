"""Calls the code of ``mlx.distributed_config``, so that allranks and mlx derive the same layout from cables.

No other module calls that code, which is private to mlx: ``tests/backends/test_mlx_config.py`` checks the parts used
here against the installed mlx. Unlike mlx's own program, nothing here logs in to hosts or prompts the user.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeAlias

from allranks_backends.protocol import BackendError

USED = (
    "IPConfigurator",
    "ThunderboltHost",
    "ThunderboltPort",
    "check_valid_mesh",
    "extract_rings",
    "make_connectivity_matrix",
    "parse_hardware_ports",
)
_ELSEWHERE = "discovery uses the code of mlx.distributed_config, and in this mlx it is not where it was"

HostfileJson: TypeAlias = dict[str, Any]
"""The content of a hostfile in mlx's format."""
Address = tuple[str, str]
"""Interface and IPv4 address."""


@dataclass(frozen=True)
class Wired:
    """A port as mlx needs it: interface, UUID, and UUID of the port at its cable's other end (None: no Mac there)."""

    interface: str
    domain: str
    peer: str | None


@dataclass(frozen=True)
class Layout:
    """What mlx derives from the cables between hosts, which are identified by index."""

    ring: tuple[int, ...]
    """The longest ring: indices of its hosts, in the order of the ring; empty if there is no ring."""
    ring_cables: int
    """Number of cables that the ring can use between every two neighbours: the fewest that join two neighbours."""
    mesh: bool
    """Whether every two hosts are joined."""
    addresses: Mapping[tuple[int, int], tuple[Address, ...]]
    """Ends of the cables from one host to another, cable by cable: [i, j][c] and [j, i][c] are ends of one cable."""

    def whole_ring(self, hosts: int) -> bool:
        return len(self.ring) == hosts


def hardware_ports(text: str) -> dict[str, str]:
    """Map names such as ``Thunderbolt 1`` to interfaces, from output of ``networksetup -listallhardwareports``."""
    found: dict[str, str] = _config().parse_hardware_ports(text.encode())
    return found


def layout(hosts: Sequence[tuple[str, Sequence[Wired]]]) -> Layout:
    """Return the layout of `hosts`, each a name and its ports, as ``mlx.distributed_config`` finds it."""
    config = _config()
    found = [
        config.ThunderboltHost(
            name,
            sorted(
                (config.ThunderboltPort(port.interface, port.domain, port.peer) for port in ports),
                key=lambda port: port.iface,
            ),
        )
        for name, ports in hosts
    ]
    index = {port.uuid: (i, j) for i, host in enumerate(found) for j, port in enumerate(host.ports)}
    connectivity = config.make_connectivity_matrix(found, index)
    rings = config.extract_rings(connectivity)
    ips = config.IPConfigurator([], found, index).ips
    return Layout(
        ring=tuple(rings[0][0]) if rings else (),
        ring_cables=rings[0][1] if rings else 0,
        mesh=len(hosts) > 1 and config.check_valid_mesh(found, connectivity, False),
        addresses={pair: tuple(ends) for pair, ends in ips.items()},
    )


def hostfile(rows: Sequence[tuple[str, Sequence[str], Sequence[str | list[str] | None]]], backend: str) -> HostfileJson:
    """Return a hostfile in mlx's format for `rows`, each with a name for ssh, its addresses and its RDMA devices."""
    from mlx._distributed_utils.common import Host, Hostfile

    hosts = [Host(rank, name, list(ips), list(rdma)) for rank, (name, ips, rdma) in enumerate(rows)]
    made: HostfileJson = Hostfile(hosts, backend, []).to_json()  # type: ignore[no-untyped-call]
    return made


def named_addresses(name: str) -> list[str]:
    """Return the addresses that mlx reads from a name in ``--hosts``: the name if it is an address, else none."""
    from mlx._distributed_utils.common import Hostfile

    return list(Hostfile.from_list(name).hosts[0].ips)  # type: ignore[no-untyped-call]


def _config() -> ModuleType:
    try:
        from mlx._distributed_utils import config
    except ImportError as error:
        raise BackendError(f"{_ELSEWHERE}: {error}.") from None
    if gone := [name for name in USED if not hasattr(config, name)]:
        raise BackendError(f"{_ELSEWHERE}: it has no {', '.join(gone)}.")
    return config
