"""Which RDMA devices there are, and the state of their ports. Only names and counts leave this machine."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from allranks.messages.events.probe_answers import ProbeAnswer
from allranks.rank.world.jaccl.rdma_verbs import INT, P, RdmaVerbs
from allranks.rank.world.jaccl.verbs_check import devices, first_opened
from allranks.rank.world.shared_libraries import NotInPlace

PORT = 1
"""The only port that JACCL uses."""
_ACTIVE = 4
_MAPPED = bytes(10) + b"\xff\xff"
"""The beginning of a GID that is an IPv4 address."""
_MOST_GIDS = 64


@dataclass(frozen=True)
class RdmaPort:
    active: bool
    gids: int
    ipv4: int
    """How many of the GIDs are IPv4 addresses."""


def ask(verbs: RdmaVerbs) -> Iterator[ProbeAnswer]:
    yield ProbeAnswer("library", "yes", "it has all sixteen functions that MLX uses")
    with devices(verbs) as found:
        names = [_name(verbs, device) for device in found]
        if not found:
            yield ProbeAnswer("devices", "no", "the library lists none")
            return
        yield ProbeAnswer("devices", "yes", ", ".join(names), {"devices": len(names)})
        ports = {name: _port(verbs, device) for name, device in zip(names, found, strict=True)}
    active = {name: port for name, port in ports.items() if port is not None and port.active}
    unopened = [name for name, port in ports.items() if port is None]
    said = [f"{len(active)} of {len(ports)}", *(f"{name} could not be opened" for name in unopened)]
    yield ProbeAnswer("ports", "yes" if active else "no", "; ".join(said), {"active": len(active), "ports": len(ports)})
    if active:
        without = [name for name, port in active.items() if not port.ipv4]
        said = [f"{name}: {port.ipv4} of {port.gids} GIDs" for name, port in active.items()]
        yield ProbeAnswer("gids", "no" if without else "yes", "; ".join(said))


def preferred(verbs: RdmaVerbs, found: list[int]) -> list[int]:
    """Sort these devices: devices with an active port come first."""
    ports = [(device, _port(verbs, device)) for device in found]
    return [device for device, _ in sorted(ports, key=lambda each: each[1] is None or not each[1].active)]


@contextmanager
def opened(verbs: RdmaVerbs) -> Iterator[int]:
    """A context of a device, preferably of a device with an active port. Raises NotInPlace if none can be opened."""
    with devices(verbs) as found, first_opened(verbs, preferred(verbs, found)) as context:
        yield context


def _name(verbs: RdmaVerbs, device: int) -> str:
    name: bytes = verbs.call("get_device_name", [P], ctypes.c_char_p)(device)
    return name.decode(errors="replace")


def _port(verbs: RdmaVerbs, device: int) -> RdmaPort | None:
    """The state of the device's `PORT`; None if the device cannot be opened."""
    query_port = verbs.call("query_port", [P, ctypes.c_uint8, P])
    query_gid = verbs.call("query_gid", [P, ctypes.c_uint8, INT, P])
    attributes, gid = ctypes.create_string_buffer(256), ctypes.create_string_buffer(16)
    try:
        with first_opened(verbs, [device]) as context:
            if query_port(context, PORT, ctypes.addressof(attributes)):
                return RdmaPort(False, 0, 0)
            # ibv_port_attr: state, two MTUs, number of GIDs.
            state, _, _, count = struct.unpack_from("4i", attributes)
            gids = [
                gid.raw
                for index in range(min(count, _MOST_GIDS))
                if query_gid(context, PORT, index, ctypes.addressof(gid)) == 0 and any(gid.raw)
            ]
    except NotInPlace:
        return None
    return RdmaPort(state == _ACTIVE, len(gids), sum(each.startswith(_MAPPED) for each in gids))
