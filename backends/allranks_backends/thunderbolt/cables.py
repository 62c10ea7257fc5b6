"""Cables between Macs: which exist, which are missing, and which cannot be used. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations

from allranks_backends.runtimes.jaccl import MESH_MAX_RANKS

from . import mlx_config
from .thunderbolt_ports import Mac, Port

PERMUTED = 8
"""Up to this many Macs, every ring is tried to find the one that needs the fewest new cables."""
BESIDE_ETHERNET = "en2"
"""Interface of a Mac Studio's Thunderbolt port beside the Ethernet port: it has no RDMA (exo #1543, #1551)."""

Pair = tuple[int, int]


@dataclass(frozen=True)
class Cable:
    """A connection from a port of one Mac to a port of another."""

    one: int
    """Index of the Mac at one end; `other` is the index of the Mac at the other end."""
    port: Port
    other: int
    other_port: Port
    behind: tuple[str, ...] = ()
    """Hubs or displays on the way; if there are any, neither a ring nor RDMA can use the cable."""
    seen_by: int | None = None
    """Index of the Mac that sees the other but is not seen by it; None if both see each other."""

    @property
    def usable(self) -> bool:
        return not self.behind and self.seen_by is None

    @property
    def pair(self) -> Pair:
        return self.one, self.other

    @property
    def speed(self) -> float | None:
        """Speed in Gb/s, the lower of both ends; None if unknown."""
        known = [speed for speed in (self.port.speed, self.other_port.speed) if speed is not None]
        return min(known, default=None)

    @property
    def generation(self) -> int | None:
        return None if self.speed is None else 5 if self.speed >= 80 else 4


def find_cables(macs: Sequence[Mac]) -> tuple[Cable, ...]:
    """Return all cables between `macs`, including cables through a hub and cables that only one end sees."""
    where = {port.domain: (index, port) for index, mac in enumerate(macs) for port in mac.ports}
    found: dict[frozenset[str], Cable] = {}
    for index, mac in enumerate(macs):
        for port in mac.ports:
            for seen in port.macs:
                if seen.domain not in where or where[seen.domain][0] == index:
                    continue
                other, other_port = where[seen.domain]
                key = frozenset((port.domain, seen.domain))
                if key in found:
                    behind = found[key].behind or seen.behind
                    found[key] = Cable(other, other_port, index, port, behind)
                else:
                    found[key] = Cable(index, port, other, other_port, seen.behind, index)
    ordered = (cable if cable.one < cable.other else _turned(cable) for cable in found.values())
    return tuple(sorted(ordered, key=lambda cable: (cable.pair, cable.port.number)))


def _turned(cable: Cable) -> Cable:
    return Cable(cable.other, cable.other_port, cable.one, cable.port, cable.behind, cable.seen_by)


def layout_of(macs: Sequence[Mac]) -> mlx_config.Layout:
    """Return the ring, mesh and addresses that mlx finds for `macs`."""
    return mlx_config.layout(
        [
            (
                mac.name,
                [
                    mlx_config.Wired(port.interface, port.domain, port.peer.domain if port.peer else None)
                    for port in mac.ports
                    if port.interface
                ],
            )
            for mac in macs
        ]
    )


def missing_in_ring(macs: Sequence[Mac], cables: Sequence[Cable]) -> list[Pair]:
    """Return the pairs yet to be joined for a ring through all Macs. Up to `PERMUTED` Macs, they are the fewest."""
    size, joined = len(macs), _joined(cables)
    if size < 2:
        return []
    if size > PERMUTED:
        return _lacking(_greedy_order(size, joined), joined)
    orders = ((0, *rest) for rest in permutations(range(1, size)))
    return min((_lacking(order, joined) for order in orders), key=len)


def missing_in_mesh(macs: Sequence[Mac], cables: Sequence[Cable]) -> list[Pair]:
    """Return the pairs yet to be joined for a mesh; empty if all are joined, or if `can_mesh` rules a mesh out."""
    joined = _joined(cables)
    return [pair for pair in combinations(range(len(macs)), 2) if pair not in joined] if can_mesh(macs) else []


def can_mesh(macs: Sequence[Mac]) -> bool:
    """Whether the Macs are few enough, and have enough ports, for a cable between every two."""
    return 2 <= len(macs) <= MESH_MAX_RANKS and all(len(mac.ports) >= len(macs) - 1 for mac in macs)


def proposals(macs: Sequence[Mac], cables: Sequence[Cable], pairs: Iterable[Pair]) -> list[str]:
    """Return instructions for joining these pairs of Macs, one for each pair.

    Instructions for new cables name free ports, if there are any: ports with RDMA first, and no port twice.
    """
    free = {index: _free_ports(mac) for index, mac in enumerate(macs)}
    return [_proposal(macs, cables, pair, free) for pair in pairs]


def _proposal(macs: Sequence[Mac], cables: Sequence[Cable], pair: Pair, free: dict[int, list[Port]]) -> str:
    one, other = (macs[index].name for index in pair)
    for cable in cables:
        if cable.pair == pair and cable.behind:
            way = f"{one} {cable.port.label} with {other} {cable.other_port.label}"
            return f"connect {way} directly: {' and '.join(cable.behind)} is between them now"
        if cable.pair == pair and cable.seen_by is not None:
            blind, at = (other, cable.other_port) if cable.seen_by == cable.one else (one, cable.port)
            return f"unplug the cable at {blind} {at.label} and plug it in again: {blind} does not see the other end"
    if full := [macs[index] for index in pair if not free[index]]:
        names = " and ".join(f"{mac.name} ({_occupied(mac)})" for mac in full)
        return f"connect {one} with {other}, for which a Thunderbolt port must be freed on {names}"
    ends = [f"{macs[index].name} {free[index].pop(0).label}" for index in pair]
    return f"connect {ends[0]} with {ends[1]}"


def _free_ports(mac: Mac) -> list[Port]:
    free = [port for port in mac.ports if not port.plugged and port.interface]
    return sorted(free, key=lambda port: (mac.has_rdma and not port.rdma, no_rdma_by_build(mac, port)))


def no_rdma_by_build(mac: Mac, port: Port) -> bool:
    return mac.model == "Mac Studio" and port.interface == BESIDE_ETHERNET


def _occupied(mac: Mac) -> str:
    holding = [f"{port.label}: {port.device or 'a Mac'}" for port in mac.ports if port.plugged]
    return ", ".join(holding) or "no port that networksetup lists"


def _joined(cables: Iterable[Cable]) -> set[Pair]:
    return {cable.pair for cable in cables if cable.usable}


def _lacking(order: Sequence[int], joined: set[Pair]) -> list[Pair]:
    around = zip(order, (*order[1:], order[0]), strict=True)
    pairs = dict.fromkeys((min(pair), max(pair)) for pair in around)  # a ring of two has one pair
    return sorted(pair for pair in pairs if pair not in joined)


def _greedy_order(size: int, joined: set[Pair]) -> list[int]:
    """Return an order of the Macs that goes along existing cables as far as possible, one path after another."""
    order: list[int] = []
    for start in range(size):
        at: int | None = start if start not in order else None
        while at is not None:
            order.append(at)
            here = at
            at = next((to for to in range(size) if to not in order and _pair(here, to) in joined), None)
    return order


def _pair(one: int, other: int) -> Pair:
    return min(one, other), max(one, other)
