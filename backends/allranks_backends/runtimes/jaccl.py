"""JACCL: RDMA over Thunderbolt between Macs, as a full mesh or as a ring of cables."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from allranks_backends.plan import Host, Link, Placement, Platform, Wiring, WorldPlan
from allranks_backends.protocol import POINT_TO_POINT, REDUCTIONS, BackendError

from .jaccl_wires import (
    DISCOVER,
    check_both_ways,
    check_equal,
    check_own_devices,
    check_room,
    devices,
    named,
    pairs,
    used,
)
from .placement_checks import described, needs_address, needs_ports, new_plan, one_connection

MESH_MAX_RANKS = 8
"""Most ranks in a mesh: ``MESH_MAX_PEERS`` in mlx's ``jaccl/mesh_impl.h`` (0.32)."""
FIRST_MACOS = (26, 2)


@dataclass(frozen=True)
class Jaccl:
    """``jaccl``, with a cable between every two Macs, or ``jaccl-ring``, with cables between neighbours only."""

    ring: bool = False
    operations: frozenset[str] = REDUCTIONS | {"all_gather", "sum_scatter"} | POINT_TO_POINT
    no_dtypes: frozenset[str] = frozenset()
    no_reduced: frozenset[str] = frozenset()
    # A blocked rank polls until its process ends, unless allranks can replace the verbs with which it polls.
    reform: Literal["in place", "if abortable", "restart"] = "if abortable"
    breakable: bool = False
    revocable: bool = False
    verbs: bool = True
    joins_at_first: bool = True
    joins_in_turn: bool = False
    connections_per_link: bool = False
    launcher: Literal["engines", "mpirun"] = "engines"
    needs: Literal["network", "rdma", "cuda"] = "rdma"
    init_name: str = "jaccl"

    @property
    def name(self) -> str:
        return "jaccl-ring" if self.ring else "jaccl"

    @property
    def neighbours_only(self) -> bool:
        return self.ring

    def why_not(self, platform: Platform, size: int, ranks_here: int | None = None) -> str | None:
        """See ``Backend.why_not``. Devices are not checked: ``is_available`` only says whether the library loads."""
        needs = f"{self.name} needs macOS 26.2 or later on Apple silicon with RDMA over Thunderbolt"
        on_mac = platform.system == "Darwin"
        if not on_mac and not platform.available.get("jaccl"):
            return f"{needs}, and this is {platform.system}"
        if on_mac and not is_new_enough(platform.release):
            return f"{needs}, and this is macOS {platform.release}"
        if platform.available.get("jaccl") is False:
            return f"{needs}, and mlx {platform.mlx} cannot load librdma.dylib here"
        if size < 2:
            return f"{self.name} needs at least two ranks"
        if size > MESH_MAX_RANKS and not self.ring:
            return f"jaccl joins at most {MESH_MAX_RANKS} ranks in a mesh, not {size}"
        return None

    def ports(self, connections: int, addresses: int) -> int:
        """Return 1: rank 0, the coordinator, listens on one port. See ``Backend.ports``."""
        return 1

    def plan(self, placements: Sequence[Placement], *, generation: int = 1, connections: int = 1) -> WorldPlan:
        """See ``Backend.plan``. The ``Host.rdma`` of each rank is its row of the device matrix."""
        plan = new_plan(self.name, placements, generation, connections)
        one_connection(plan, "its wires are the devices the hostfile lists for each pair of ranks")
        self._check_size(plan)
        _check_shape(plan)
        check_both_ways(plan)
        self._check_reachable(plan)
        if self.ring:
            check_equal(plan)
        check_own_devices(plan, self.ring)
        check_room(plan, self.ring)
        needs_address(plan, plan.placements[0])
        needs_ports(plan.placements[0], 1)
        return plan

    def wiring(self, plan: WorldPlan, rank: int) -> Wiring:
        """See ``Backend.wiring``.

        The ranks meet at a coordinator, as with ``mlx.launch``. ``init(backend="jaccl", all_gather_factory=f)`` would
        need no coordinator: a gather function of ours could use the lifeline. ``init`` holds the GIL, but our function
        would release the GIL while it waits. We pass no such function, for two reasons. mlx 0.32 calls it only after
        ``init`` has opened the devices and made their queue pairs, so it cannot be tested without RDMA. And the group
        stores this Python function, and drops it on the thread that destroys the group, with or without the GIL. The
        gain would be one port of rank 0. The Macs know the address of rank 0 anyway, since each Thunderbolt port with a
        cable needs an IPv4 address.
        """
        first = plan.placements[0]
        file = f"devices-{plan.generation}.json"
        env = {
            "MLX_RANK": str(rank),
            "MLX_JACCL_COORDINATOR": f"{first.host.addresses[0]}:{first.ports[0]}",
            "MLX_IBV_DEVICES": "{dir}/" + file,
        }
        if self.ring:
            env["MLX_JACCL_RING"] = "1"
        return Wiring(env, {file: json.dumps([_row(placement.host, plan.size) for placement in plan.placements])})

    def links(self, plan: WorldPlan) -> tuple[Link, ...]:
        """Return a link for each device that is used; see ``Backend.links``."""
        return tuple(Link(*pair, "rdma", device) for pair, names in used(plan, self.ring).items() for device in names)

    def _check_size(self, plan: WorldPlan) -> None:
        if plan.size < 2:
            raise BackendError(
                f"{self.name} needs at least two ranks. For one rank: %distributed up -n 1 --backend ring"
            )
        if plan.size > MESH_MAX_RANKS and not self.ring:
            raise BackendError(
                f"jaccl joins at most {MESH_MAX_RANKS} ranks in a mesh, and these are {plan.size}."
                " A ring of cables takes more: --backend jaccl-ring"
            )

    def _check_reachable(self, plan: WorldPlan) -> None:
        missing = _without_device(plan, pairs(plan.size, self.ring))
        if not missing:
            return
        shown = ", ".join(
            f"{described(plan.placements[source])} to {described(plan.placements[target])}"
            for source, target in missing[:3]
        )
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        shape = "ring needs both neighbours" if self.ring else "mesh needs every pair"
        hint = "" if self.ring else self._or_a_ring(plan)
        raise BackendError(
            f"No RDMA device is listed from {shown}{more}, and a {shape} joined by a cable.{hint} {DISCOVER}"
        )

    def _or_a_ring(self, plan: WorldPlan) -> str:
        joined = not _without_device(plan, pairs(plan.size, ring=True))
        return " The cables do form a ring: --backend jaccl-ring." if joined else ""


def _row(host: Host, size: int) -> list[str | list[str] | None]:
    """Return a host's row of the device matrix in JACCL's format: each entry is null, a name, or a list of names."""
    row = [named(entry) for entry in host.rdma[:size]]
    return [None if not names else names[0] if len(names) == 1 else list(names) for names in row]


def _without_device(plan: WorldPlan, joined: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    return [pair for pair in joined if not devices(plan, *pair)]


def _check_shape(plan: WorldPlan) -> None:
    for placement in plan.placements:
        row = placement.host.rdma
        if not row:
            raise BackendError(
                f"No RDMA devices are known for {described(placement)}, and {plan.backend} needs the one to each other"
                f' rank: "rdma" in the hostfile. {DISCOVER}'
            )
        if len(row) < plan.size:  # after a resize to fewer ranks, the row is longer
            raise BackendError(
                f'"rdma" of {described(placement)} has {len(row)} entries, and the world has {plan.size} ranks:'
                " one entry for each rank, null for itself."
            )
        if own := named(row[placement.rank]):
            raise BackendError(
                f'"rdma" of {described(placement)} lists {own[0]} at its own place, entry {placement.rank}, which'
                " must be null. Are the hosts of the hostfile in the order of their rows?"
            )


def is_new_enough(release: str) -> bool:
    """Whether macOS ``release`` may have RDMA. True if it cannot be parsed, since loading the library decides then."""
    try:
        version = tuple(int(part) for part in release.split(".")[:2])
    except ValueError:
        return True
    # A Python built with an older SDK reports 16.0 on any macOS 26 (python/cpython#135675); there is no macOS 16.
    return version[0] == 16 or version >= FIRST_MACOS
