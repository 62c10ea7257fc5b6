"""Network interfaces of a host and their IPv4 addresses, from ``ip -j addr`` (Linux) or ``ifconfig`` (macOS)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Interface
from typing import Any, TypeAlias

Json: TypeAlias = Mapping[str, Any]
"""A JSON object that a program on the host has printed."""


@dataclass(frozen=True)
class Interface:
    """One network interface."""

    name: str
    up: bool
    mtu: int
    """Bytes; 0 if unknown."""
    addresses: tuple[IPv4Interface, ...] = ()


def interfaces_of(text: str) -> tuple[Interface, ...]:
    """Parse the output of ``ip -j addr`` or ``ifconfig``; loopback interfaces are left out."""
    if text.lstrip().startswith("["):
        return tuple(_linux_interface(each) for each in json.loads(text) if "LOOPBACK" not in each["flags"])
    blocks = re.split(r"^(?=\S)", text, flags=re.MULTILINE)
    return tuple(_mac_interface(block) for block in blocks if ":" in block and "LOOPBACK" not in block)


def _linux_interface(told: Json) -> Interface:
    addresses = (f"{each['local']}/{each['prefixlen']}" for each in told["addr_info"] if each.get("family") == "inet")
    return Interface(told["ifname"], "UP" in told["flags"], told["mtu"], tuple(map(IPv4Interface, addresses)))


def _mac_interface(block: str) -> Interface:
    name, _, rest = block.partition(":")
    mtu = re.search(r"\bmtu (\d+)", rest)
    addresses = (
        IPv4Interface(f"{address}/{int(mask, 16).bit_count()}")
        for address, mask in re.findall(r"\binet (\S+) netmask (0x[0-9a-f]+)", rest)
    )
    flags = re.search(r"<(.*?)>", rest)
    up = flags is not None and "UP" in flags[1].split(",")
    return Interface(name, up, int(mtu[1]) if mtu else 0, tuple(addresses))
