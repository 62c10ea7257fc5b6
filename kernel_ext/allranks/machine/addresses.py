"""The IPv4 addresses of this host, by which rings and similar backends connect."""

from __future__ import annotations

import socket
from ipaddress import IPv4Interface

import psutil


def own_addresses() -> list[str]:
    """The IPv4 addresses of all interfaces that are up, except loopback, with their networks: ``10.0.0.3/24``."""
    up = {name for name, stats in psutil.net_if_stats().items() if stats.isup}
    return [
        str(IPv4Interface(f"{each.address}/{each.netmask or 32}"))
        for name, entries in psutil.net_if_addrs().items()
        for each in entries
        if each.family == socket.AF_INET and name in up and not each.address.startswith("127.")
    ]


def address_towards(other: str) -> str:
    """The address that this host uses to reach `other`, an IPv4 address; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((other, 9))
        return str(probe.getsockname()[0])
