"""The ring: TCP between neighbours, on every machine. The only backend that always re-forms in place."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from allranks_backends.plan import Link, Placement, Platform, Wiring, WorldPlan
from allranks_backends.protocol import POINT_TO_POINT, REDUCTIONS, BackendError

from .placement_checks import described, needs_address, needs_ports, new_plan, on_one_host, ports_apart, same_host

LOOPBACK = ("127.0.0.1",)


@dataclass(frozen=True)
class Ring:
    """mlx's ``ring``: each rank listens for its left neighbour and connects to its right one."""

    name: str = "ring"
    operations: frozenset[str] = REDUCTIONS | {"all_gather"} | POINT_TO_POINT
    neighbours_only: bool = True
    no_dtypes: frozenset[str] = frozenset()
    no_reduced: frozenset[str] = frozenset()
    reform: Literal["in place", "if abortable", "restart"] = "in place"
    breakable: bool = True
    revocable: bool = False
    verbs: bool = False
    joins_at_first: bool = False
    joins_in_turn: bool = True
    connections_per_link: bool = True
    launcher: Literal["engines", "mpirun"] = "engines"
    needs: Literal["network", "rdma", "cuda"] = "network"
    init_name: str = "ring"

    def why_not(self, platform: Platform, size: int, ranks_here: int | None = None) -> str | None:
        """See ``Backend.why_not``."""
        if platform.available.get("ring") is False:
            return f"this mlx {platform.mlx} for {platform.system} was built without the ring"
        return None

    def ports(self, connections: int, addresses: int) -> int:
        """Return one port for each connection to each address; see ``Backend.ports``.

        Connections cost time when a world is formed: mlx 0.32 listens on a port only once the previous port is
        connected, so the neighbour's first attempt is mostly refused, and the neighbour waits 1 s before the next. With
        4 connections, two ranks took 3 s and four ranks 5 s.
        """
        return connections * addresses

    def plan(self, placements: Sequence[Placement], *, generation: int = 1, connections: int = 1) -> WorldPlan:
        """See ``Backend.plan``. A single rank needs no ports, since it has no neighbours."""
        plan = new_plan(self.name, placements, generation, connections)
        if plan.size == 1:
            return plan
        for placement in plan.placements:
            needs_address(plan, placement)
        self._same_number_of_addresses(plan)
        count = self.ports(connections, len(_addresses(plan, plan.placements[0])))
        for placement in plan.placements:
            needs_ports(placement, count)
        ports_apart(plan, count)
        return plan

    def wiring(self, plan: WorldPlan, rank: int) -> Wiring:
        """See ``Backend.wiring``.

        A world of one rank gets no hostfile. With a hostfile, mlx 0.32 would try to connect to itself and give up after
        31 s. Without a hostfile, ``init`` returns the group of one rank at once.
        """
        env = {"MLX_RANK": str(rank)}
        if plan.size == 1:
            return Wiring(env)
        # Each generation has its own file name, so that no rank can read the file of the previous world.
        file = f"ring-{plan.generation}.json"
        nodes = [list(_endpoints(plan, placement)) for placement in plan.placements]
        return Wiring(env | {"MLX_HOSTFILE": "{dir}/" + file}, {file: json.dumps(nodes)})

    def links(self, plan: WorldPlan) -> tuple[Link, ...]:
        """Return the links between neighbours, in both directions; see ``Backend.links``."""
        return tuple(Link(source, target, _kind(plan, source, target)) for source, target in neighbours(plan.size))

    def _same_number_of_addresses(self, plan: WorldPlan) -> None:
        first = plan.placements[0]
        expected = len(_addresses(plan, first))
        for placement in plan.placements:
            found = len(_addresses(plan, placement))
            if found != expected:
                raise BackendError(
                    f"{described(first)} has {expected} addresses and {described(placement)} has {found}: a ring needs"
                    " the same number on every host, so that each rank has as many connections left as right."
                    ' Make the "ips" of the hostfile equally long.'
                )


def neighbours(size: int) -> tuple[tuple[int, int], ...]:
    """Return every (rank, neighbour) of a ring, right neighbours first; each pair once, even with two ranks."""
    pairs = [(rank, (rank + step) % size) for step in (1, -1) for rank in range(size)]
    return tuple(dict.fromkeys((source, target) for source, target in pairs if source != target))


def _addresses(plan: WorldPlan, placement: Placement) -> tuple[str, ...]:
    return LOOPBACK if on_one_host(plan) else placement.host.addresses


def _endpoints(plan: WorldPlan, placement: Placement) -> tuple[str, ...]:
    """Return ``ip:port`` of every connection, grouped by address, in the order of ``mlx.launch``."""
    slots = [address for address in _addresses(plan, placement) for _ in range(plan.connections)]
    return tuple(f"{address}:{port}" for address, port in zip(slots, placement.ports, strict=False))


def _kind(plan: WorldPlan, source: int, target: int) -> str:
    """Return the kind of a link. Between hosts it is ``ethernet``, since a plan has addresses but does not know the
    cables."""
    local = same_host(plan.placements[source].host, plan.placements[target].host)
    return "loopback" if local else "ethernet"
