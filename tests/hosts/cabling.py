"""Macs and the cables between them, described in a few words; `darwin` has what their commands say of it."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any


@dataclass(frozen=True)
class Model:
    """A kind of Mac."""

    name: str
    identifier: str
    chip: str
    ports: tuple[str, ...]
    """The interface of each Thunderbolt port: the first is that of port 1."""
    generation: int = 5
    """Of its Thunderbolt."""
    memory: int = 512 << 30

    @property
    def rdma(self) -> bool:
        return self.generation >= 5

    @property
    def idle_speed(self) -> str:
        return "Up to 120 Gb/s" if self.generation >= 5 else "Up to 40 Gb/s"

    @property
    def adapters(self) -> tuple[str, ...]:
        """The Ethernet that each USB-C port could carry."""
        return tuple(f"en{len(self.ports) + 2 + number}" for number in range(len(self.ports)))


SIX = ("en2", "en3", "en4", "en5", "en6", "en7")
M3_ULTRA = Model("Mac Studio", "Mac15,14", "Apple M3 Ultra", SIX)
M2_ULTRA = Model("Mac Studio", "Mac14,14", "Apple M2 Ultra", SIX, generation=4, memory=192 << 30)
M4_PRO = Model("Mac mini", "Mac16,11", "Apple M4 Pro", ("en2", "en3", "en4"), memory=64 << 30)


@dataclass(frozen=True)
class Mac:
    """One Mac, as it stands there."""

    name: str
    model: Model = M3_ULTRA
    rdma: bool = True
    """Whether ``rdma_ctl enable`` was once run in Recovery."""
    bridge: str = "down"
    """``up`` as macOS makes it, ``down``, or ``gone``."""
    macos: str = "26.2"
    sudo: bool = True
    """Whether sudo asks for no password."""

    def interface(self, port: int) -> str:
        return self.model.ports[port - 1]

    def domain(self, port: int) -> str:
        """The UUID of a port, by which the other end of a cable knows it."""
        return str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{self.name}.{port}")).upper()


@dataclass(frozen=True)
class Cable:
    """A cable from a port of one Mac to a port of another, or to a device."""

    mac: str
    port: int
    to: str
    """Another Mac, or what a device is called."""
    to_port: int = 0
    """0 for a device."""
    behind: str = ""
    """A hub or a display on the way, seen from `mac`'s side only."""
    speed: int = 0
    """Gb/s; 0 for what the slower of the two can."""


@dataclass(frozen=True)
class Cabling:
    """Some Macs and their cables."""

    macs: tuple[Mac, ...]
    cables: tuple[Cable, ...]
    addressed: bool = False
    """Whether every cable has its own network already, 192.168.0.0/30 and on."""

    def __getitem__(self, name: str) -> Mac:
        return next(mac for mac in self.macs if mac.name == name)

    @property
    def names(self) -> list[str]:
        return [mac.name for mac in self.macs]


def joined(name: str, pairs: Sequence[tuple[int, int]], first: int = 2) -> tuple[Cable, ...]:
    """Cables between Macs called `name` and a number, each in the next free port, from `first` on."""
    used: dict[int, int] = {}
    cables = []
    for one, other in pairs:
        ports = []
        for mac in (one, other):
            used[mac] = used.get(mac, first - 1) + 1
            ports.append(used[mac])
        cables.append(Cable(f"{name}{one}", ports[0], f"{name}{other}", ports[1]))
    return tuple(cables)


def macs(count: int, model: Model = M3_ULTRA, **different: Any) -> tuple[Mac, ...]:
    return tuple(Mac(f"mac{number}", model, **different) for number in range(1, count + 1))


MESH = joined("mac", [*combinations(range(1, 5), 2)])
RING = joined("mac", [(1, 2), (2, 3), (3, 4), (4, 1)])
MESH_OF_FOUR = Cabling(macs(4), MESH)
MESH_LESS_ONE = Cabling(macs(4), tuple(cable for cable in MESH if (cable.mac, cable.to) != ("mac2", "mac4")))
RING_OF_FOUR = Cabling(macs(4), (*RING, Cable("mac1", 6, "Studio Display")))
OPEN_RING = Cabling(macs(4), RING[:3])
"""The cable from the last to the first is missing."""
TWO_CABLES = Cabling(macs(2), (Cable("mac1", 3, "mac2", 5), Cable("mac1", 4, "mac2", 2)))
"""Two cables that cross: the order of the ports is not the same at both ends."""
THUNDERBOLT_4 = Cabling(macs(2, M2_ULTRA, rdma=False), joined("mac", [(1, 2)]))
HUB = Cabling(macs(2), (Cable("mac1", 3, "mac2", 2, behind="CalDigit TS5 Plus"),))
BRIDGE_UP = Cabling(macs(4, bridge="up"), MESH)
RDMA_OFF = Cabling(macs(4, rdma=False), MESH)
