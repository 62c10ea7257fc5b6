"""The RDMA devices that a hostfile lists between JACCL ranks: which of them MLX uses, and checks that they can work."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from allranks_backends.plan import WorldPlan, rank_label
from allranks_backends.protocol import BackendError

from .placement_checks import described
from .ring import neighbours

RING_MAX_WIRES = 4
"""Most devices from a rank to one neighbour of a ring: ``RING_MAX_CONNS`` in mlx's ``jaccl/ring_impl.h`` (0.32)."""
MESH_REGIONS, RING_REGIONS = 64, 32
"""Memory regions of one connection: 8 sizes x 2 buffers, x 4 in a mesh and x 2 in a ring (mlx 0.32.4)."""
MOST_REGIONS, MOST_PAIRS = 100, 10
"""Maximum numbers of memory regions and of queue pairs that Apple's driver allows for each device (mlx #3162)."""
DISCOVER = "%distributed discover --hosts <hosts> --output cluster.json finds the devices and writes such a hostfile."

Pair = tuple[int, int]


def pairs(size: int, ring: bool) -> Sequence[Pair]:
    """Return every (rank, peer) that must be joined; in a ring, right neighbours first."""
    every = [(source, target) for source in range(size) for target in range(size) if source != target]
    return neighbours(size) if ring else every


def devices(plan: WorldPlan, source: int, target: int) -> tuple[str, ...]:
    """Names of the RDMA devices that the hostfile lists from ``source`` to ``target``; empty if it lists none."""
    return named(plan.placements[source].host.rdma[target])


def named(entry: Iterable[str | None]) -> tuple[str, ...]:
    """Return the device names in one entry of an ``rdma`` row."""
    return tuple(name for name in entry if name)


def used(plan: WorldPlan, ring: bool) -> dict[Pair, tuple[str, ...]]:
    """Return, by pair, the devices that MLX uses: as many as the pair with the fewest devices has (mlx 0.32.4)."""
    listed = {pair: devices(plan, *pair) for pair in pairs(plan.size, ring)}
    fewest = min(map(len, listed.values()), default=0)
    return {pair: names[:fewest] for pair, names in listed.items()}


def check_both_ways(plan: WorldPlan) -> None:
    """Raise BackendError unless every two ranks list equally many devices to each other.

    Otherwise, one end of a cable is not listed, and one rank would wait for the other indefinitely.
    """
    for source in range(plan.size):
        for target in range(source + 1, plan.size):
            there, back = devices(plan, source, target), devices(plan, target, source)
            if len(there) != len(back):
                one, other = described(plan.placements[source]), described(plan.placements[target])
                raise BackendError(
                    f"{one} lists {_listed(there)} to {other}, and {other} lists {_listed(back)} back:"
                    f" both ends of a cable must be listed. {DISCOVER}"
                )


def check_own_devices(plan: WorldPlan, ring: bool) -> None:
    """Raise BackendError if a rank uses a device twice.

    A device is a port, and its cable leads to one other port. MLX ends a rank that uses one device for two peers
    (0.32.4).
    """
    leads: dict[tuple[int, str], int] = {}
    instead = "" if ring else " With fewer ports than that, a ring of cables will do: --backend jaccl-ring"
    for (source, target), names in used(plan, ring).items():
        for name in names:
            first = leads.setdefault((source, name), target)
            if first != target or names.count(name) > 1:
                to = "twice" if first == target else f"both to {described(plan.placements[first])} and"
                raise BackendError(
                    f"{described(plan.placements[source])} lists {name} {to} to {described(plan.placements[target])}:"
                    f" each device is one port, with one cable to one other Mac. {DISCOVER}{instead}"
                )


def check_equal(plan: WorldPlan) -> None:
    """Raise BackendError unless all neighbours list the same number of devices, at most `RING_MAX_WIRES` each way."""
    wires = {pair: len(devices(plan, *pair)) for pair in neighbours(plan.size)}
    first = wires[0, 1]
    for (source, target), count in wires.items():
        where = f"{described(plan.placements[source])} to {described(plan.placements[target])}"
        if count != first:
            raise BackendError(
                f"A jaccl-ring needs the same number of devices between all neighbours: ranks 0 and 1 have {first},"
                f" and {count} are listed from {where}. List {min(first, count)} in each place."
            )
        if count > RING_MAX_WIRES:
            raise BackendError(
                f"A jaccl-ring uses at most {RING_MAX_WIRES} devices a direction; {count} are listed from {where}."
            )


def check_room(plan: WorldPlan, ring: bool) -> None:
    """Raise BackendError if several ranks of a Mac would together exceed the driver's limits for one of its devices."""
    ranks: dict[tuple[str, str], list[int]] = defaultdict(list)
    ways = 2 if ring and plan.size == 2 else 1  # the only neighbour is both the left and the right one
    for (source, _), names in used(plan, ring).items():
        for name in names:
            ranks[plan.placements[source].host.name, name] += [source] * ways
    for (host, name), connections in ranks.items():
        each = RING_REGIONS if ring else MESH_REGIONS
        regions, queue_pairs = len(connections) * each, len(connections)
        if regions > MOST_REGIONS or queue_pairs > MOST_PAIRS:
            raise BackendError(
                f"{queue_pairs} connections of {plan.backend} would use {name} of {host}"
                f" ({rank_label(set(connections))}): {regions} memory regions and {queue_pairs} queue pairs, and"
                f" Apple's driver allows a device {MOST_REGIONS} and {MOST_PAIRS} (mlx #3162). Start one rank on"
                f" {host}: --ranks-per-host 1, or one entry of the hostfile."
            )


def _listed(names: Sequence[str]) -> str:
    return "nothing" if not names else ", ".join(names)
