"""The Thunderbolt ports of a Mac, and what is plugged into them, parsed from the output of a few commands.

Pure: the caller runs the commands. `cables` finds the cables between the ports of several Macs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Interface
from typing import Literal

from allranks_backends.interfaces import Interface, Json, interfaces_of

from . import mlx_config

COMMANDS: Mapping[str, str] = {
    "thunderbolt": "system_profiler SPThunderboltDataType -json",
    "hardware ports": "networksetup -listallhardwareports",
    "rdma devices": "ibv_devices",
    "rdma": "rdma_ctl status",
    "ifconfig": "ifconfig",
    "en0": "ipconfig getifaddr en0",
    "en1": "ipconfig getifaddr en1",
    "macos": "sw_vers -productVersion",
    "chip": "sysctl -n machdep.cpu.brand_string",
    "memory": "sysctl -n hw.memsize",
}
"""Shell commands to run on a Mac, by name; none needs sudo."""
TOLD_APART = 80.0
"""Speed in Gb/s from which a port counts as Thunderbolt 5."""

Bridge = Literal["up", "down", "gone"]


@dataclass(frozen=True)
class Seen:
    """A Mac at the other end of a cable, as a port sees it."""

    domain: str
    """UUID of the port at the other end."""
    name: str
    """The model that the Mac reports."""
    behind: tuple[str, ...] = ()
    """Hubs and displays on the way."""


@dataclass(frozen=True)
class Port:
    """One Thunderbolt port."""

    number: str
    """Number of the receptacle, as macOS counts: ``3``."""
    interface: str | None
    """Its network interface; None if ``networksetup`` lists none for this number."""
    domain: str
    speed: float | None
    """Speed in Gb/s: of the link if something is plugged in, else the port's maximum; None if unknown."""
    plugged: bool
    macs: tuple[Seen, ...] = ()
    device: str = ""
    """The hub, display or other device that is plugged in; empty if it is a Mac, or if nothing is plugged in."""
    rdma: bool = False
    """Whether ``ibv_devices`` lists a device for this port."""
    address: IPv4Interface | None = None

    @property
    def peer(self) -> Seen | None:
        """The Mac that is connected directly, without a hub or display between; None if there is none."""
        return next((mac for mac in self.macs if not mac.behind), None)

    @property
    def label(self) -> str:
        return f"port {self.number}"


@dataclass(frozen=True)
class Mac:
    """One Mac, as discovered."""

    name: str
    model: str = ""
    chip: str = ""
    macos: str = ""
    memory: int | None = None
    """Bytes."""
    ports: tuple[Port, ...] = ()
    """In the order of their numbers."""
    rdma_status: str = ""
    """Output of ``rdma_ctl status``; empty if there is no such command."""
    rdma_devices: tuple[str, ...] = ()
    bridge: Bridge = "gone"
    """State of the Thunderbolt bridge, into which macOS joins all ports; ``gone`` if there is no bridge."""
    networks: tuple[tuple[str, IPv4Interface], ...] = ()
    """Interface and address of each network, without loopback."""
    address: str = ""
    """The address at which other hosts reach it: on en0, else on en1; empty if it has neither."""

    @property
    def generation(self) -> int | None:
        """The generation of its Thunderbolt, 5 or 4, by the speed of the ports; None if no speed is known."""
        speeds = [port.speed for port in self.ports if port.speed is not None]
        return None if not speeds else 5 if max(speeds) >= TOLD_APART else 4

    @property
    def has_rdma(self) -> bool:
        return bool(self.rdma_devices)


def mac_from(name: str, answers: Mapping[str, str]) -> Mac:
    """Return the Mac `name`, given its answers to `COMMANDS`.

    Raises ValueError if an answer cannot be parsed, and BackendError if mlx lacks the code that parses one.
    """
    interfaces = mlx_config.hardware_ports(answers.get("hardware ports", ""))
    told = interfaces_of(answers.get("ifconfig", ""))
    networks = tuple((each.name, address) for each in told for address in each.addresses)
    devices = tuple(word for word in answers.get("rdma devices", "").split() if word.startswith("rdma_"))
    buses = _buses(answers.get("thunderbolt", ""))
    memory = answers.get("memory", "").strip()
    ports = [port for bus in buses if (port := _port(bus, interfaces, devices, dict(networks))) is not None]
    return Mac(
        name,
        model=next((str(bus["device_name_key"]) for bus in buses if bus.get("device_name_key")), ""),
        chip=answers.get("chip", "").strip(),
        macos=answers.get("macos", "").strip(),
        memory=int(memory) if memory.isdigit() else None,
        ports=tuple(sorted(ports, key=lambda port: (len(port.number), port.number))),
        rdma_status=answers.get("rdma", "").strip(),
        rdma_devices=devices,
        bridge=_bridge(told),
        networks=networks,
        address=answers.get("en0", "").strip() or answers.get("en1", "").strip(),
    )


def _buses(text: str) -> list[Json]:
    if not text.strip():
        return []
    try:
        buses = json.loads(text)["SPThunderboltDataType"]
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"system_profiler did not answer as it should: {text.strip()[:80]!r}") from None
    return [bus for bus in buses if isinstance(bus, dict)]


def _port(
    bus: Json,
    interfaces: Mapping[str, str],
    devices: tuple[str, ...],
    networks: Mapping[str, IPv4Interface],
) -> Port | None:
    """Return the port of a bus; None if the bus has no domain or no receptacle: mlx skips such a bus, too."""
    tag = bus.get("receptacle_1_tag") or {}
    if not bus.get("domain_uuid_key") or not tag.get("receptacle_id_key"):
        return None
    number = str(tag["receptacle_id_key"])
    interface = interfaces.get(f"Thunderbolt {number}")
    items = bus.get("_items") or []
    return Port(
        number,
        interface,
        str(bus["domain_uuid_key"]),
        _gigabits(str(tag.get("current_speed_key", ""))),
        plugged=bool(items) or tag.get("receptacle_status_key") == "receptacle_connected",
        macs=tuple(_macs_on(items, ())),
        device=next((_called(item) for item in items if "domain_uuid_key" not in item), ""),
        rdma=f"rdma_{interface}" in devices,
        address=networks.get(interface or ""),
    )


def _macs_on(items: Iterable[Json], behind: tuple[str, ...]) -> Iterator[Seen]:
    """Yield all Macs in a tree of devices: a Mac behind a hub or a display is one level deeper."""
    for item in items:
        if domain := item.get("domain_uuid_key"):
            yield Seen(str(domain), _called(item), behind)
        else:
            yield from _macs_on(item.get("_items") or [], (*behind, _called(item)))


def _called(item: Json) -> str:
    return str(item.get("_name") or item.get("device_name_key") or "a device")


def _gigabits(text: str) -> float | None:
    """Parse ``80 Gb/s`` or ``Up to 120 Gb/s``; None for other text."""
    found = re.search(r"([\d.]+)\s*Gb/s", text)
    return float(found[1]) if found else None


def _bridge(told: Iterable[Interface]) -> Bridge:
    return next(("up" if each.up else "down" for each in told if each.name == "bridge0"), "gone")
