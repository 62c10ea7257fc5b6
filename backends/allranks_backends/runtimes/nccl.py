"""NCCL: one rank per CUDA device, on Linux."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Literal

from allranks_backends.plan import Link, Placement, Platform, Wiring, WorldPlan
from allranks_backends.protocol import REDUCTIONS, BackendError

from .placement_checks import needs_address, needs_ports, new_plan, one_connection, same_host

SHARE = "NCCL_MULTI_RANK_GPU_ENABLE"
"""NCCL's own, experimental switch for several ranks on one GPU. Versions before NCCL 2.30 refuse to share a GPU."""
CONNECTS_LATE = "NCCL_RUNTIME_CONNECT"
"""NCCL's switch for allocating the memory of connections only at the first collective, which is NCCL's default.

If arrays have filled the GPU by then, that collective fails, and MLX ends every rank with ``unhandled cuda error``.
With 0, NCCL allocates this memory while the world is formed. For two ranks on one H200, that takes 1 GB and 0.3 s, and
the first collective is 0.3 s faster.
"""


@dataclass(frozen=True)
class NCCL:
    """mlx's ``nccl``, joined through a TCP port of rank 0."""

    name: str = "nccl"
    operations: frozenset[str] = REDUCTIONS | {"all_gather", "sum_scatter", "split"}
    neighbours_only: bool = False
    # MLX_NCCL_TYPE_LIST in mlx's nccl.cpp (0.32) does not have these.
    no_dtypes: frozenset[str] = frozenset({"bool", "int16", "uint16", "complex64"})
    no_reduced: frozenset[str] = frozenset()
    # mlx ends the process with exit(1) at the first error of an NCCL call, so no process is left to join a world.
    reform: Literal["in place", "if abortable", "restart"] = "restart"
    breakable: bool = False
    revocable: bool = False
    verbs: bool = False
    joins_at_first: bool = False
    joins_in_turn: bool = False
    connections_per_link: bool = False
    launcher: Literal["engines", "mpirun"] = "engines"
    needs: Literal["network", "rdma", "cuda"] = "cuda"
    init_name: str = "nccl"

    def why_not(self, platform: Platform, size: int, ranks_here: int | None = None) -> str | None:
        """See ``Backend.why_not``."""
        needs = "nccl needs Linux with CUDA"
        ranks, devices = size if ranks_here is None else ranks_here, platform.cuda_devices
        if platform.system != "Linux":
            return f"{needs}, and this is {'macOS' if platform.system == 'Darwin' else platform.system}"
        if platform.available.get("nccl") is False:
            return (
                f"{needs}, and mlx {platform.mlx} is installed without it"
                ' (pip install "allranks[cuda12]" or "allranks[cuda13]" instead of "allranks[cpu]")'
            )
        if not devices:
            return f"{needs}, but no CUDA device is visible (nvidia-smi -L, CUDA_VISIBLE_DEVICES)"
        if ranks > devices:
            there = "1 device is" if devices == 1 else f"{devices} devices are"
            return f"nccl takes one rank per CUDA device, and {there} there for {ranks} ranks"
        return None

    def ports(self, connections: int, addresses: int) -> int:
        """Return 1: rank 0 listens on one port. See ``Backend.ports``."""
        return 1

    def plan(self, placements: Sequence[Placement], *, generation: int = 1, connections: int = 1) -> WorldPlan:
        """See ``Backend.plan``."""
        plan = new_plan(self.name, placements, generation, connections)
        one_connection(plan, "NCCL chooses its own channels (NCCL_MIN_NCHANNELS)")
        self._one_rank_a_device(plan)
        needs_address(plan, plan.placements[0])
        needs_ports(plan.placements[0], 1)
        return plan

    def wiring(self, plan: WorldPlan, rank: int) -> Wiring:
        """See ``Backend.wiring``. The variables must be set before the rank imports mlx."""
        first = plan.placements[0]
        return Wiring(
            {
                "MLX_RANK": str(rank),
                "MLX_WORLD_SIZE": str(plan.size),
                "NCCL_HOST_IP": first.host.addresses[0],
                "NCCL_PORT": str(first.ports[0]),
                "CUDA_VISIBLE_DEVICES": device(plan.placements[rank]),
            },
            defaults={CONNECTS_LATE: "0"},
        )

    def links(self, plan: WorldPlan) -> tuple[Link, ...]:
        """Return a link between every pair of ranks, since NCCL may use any of them; see ``Backend.links``.

        Within a host, a link is NVLink or PCIe; the plan cannot know which.
        """
        return tuple(
            Link(one.rank, other.rank, "gpu" if same_host(one.host, other.host) else "ethernet")
            for one in plan.placements
            for other in plan.placements
            if one is not other
        )

    def _one_rank_a_device(self, plan: WorldPlan) -> None:
        for placement in plan.placements:
            if placement.host.cuda and placement.local_rank >= len(placement.host.cuda):
                raise BackendError(
                    f"{placement.host.name} shows {len(placement.host.cuda)} CUDA devices (CUDA_VISIBLE_DEVICES="
                    f"{','.join(placement.host.cuda)}), and rank {placement.rank} would be its number"
                    f" {placement.local_rank + 1}: nccl takes one rank per device."
                    " Start fewer ranks there, or use --backend ring"
                )
        hosts = {placement.host.name: placement.host for placement in plan.placements}
        used = Counter((placement.host.name, device(placement)) for placement in plan.placements)
        for (name, number), ranks in used.items():
            if ranks > max(1, hosts[name].cuda.count(number)):
                raise BackendError(
                    f"{ranks} ranks would share CUDA device {number} of {name}, but nccl takes one rank per device:"
                    " --ranks-per-host must not exceed its devices, or use --backend ring"
                )


def device(placement: Placement) -> str:
    """Return the rank's ``CUDA_VISIBLE_DEVICES``: its entry of ``Host.cuda``, or `local_rank` if that is empty."""
    return placement.host.cuda[placement.local_rank] if placement.host.cuda else str(placement.local_rank)


def shared(devices: Sequence[str], environ: Mapping[str, str], ranks: int) -> tuple[str, ...]:
    """Return ``Host.cuda`` for a host with these `devices`: one entry for each rank that may run there.

    Each device appears once. If `environ` tells NCCL to share GPUs, devices repeat until there are `ranks` entries.
    """
    own = tuple(dict.fromkeys(devices))
    if environ.get(SHARE, "0") in ("", "0"):
        return own
    return tuple(islice(cycle(devices), max(ranks, len(devices))))


def visible_devices(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return ``Host.cuda`` for a host whose environment is ``environ``.

    Empty, which stands for all devices, if ``CUDA_VISIBLE_DEVICES`` is unset or empty.

    On a shared machine, ``CUDA_VISIBLE_DEVICES=2,3`` says which devices are ours. If ranks counted from 0, they would
    take devices of other users.
    """
    chosen = environ.get("CUDA_VISIBLE_DEVICES", "")
    return tuple(name.strip() for name in chosen.split(",") if name.strip())
