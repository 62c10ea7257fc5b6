"""What a backend is: the contract every collective runtime fulfils."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from .plan import Link, Placement, Platform, Wiring, WorldPlan

REDUCTIONS = frozenset({"all_sum", "all_max", "all_min"})
POINT_TO_POINT = frozenset({"send", "recv", "recv_like"})

WORLD_VARIABLES = frozenset(
    {
        "MLX_RANK",
        "MLX_WORLD_SIZE",
        "MLX_HOSTFILE",
        "MLX_IBV_DEVICES",
        "MLX_JACCL_COORDINATOR",
        "MLX_JACCL_RING",
        "NCCL_HOST_IP",
        "NCCL_PORT",
        # JACCL reads these before the MLX_ ones, so one left in a shell would win over the plan.
        "JACCL_RANK",
        "JACCL_IBV_DEVICES",
        "JACCL_COORDINATOR",
        "JACCL_RING",
    }
)
"""Variables from which ``mx.distributed.init`` learns a world.

Whoever sets a ``Wiring`` in a rank first removes all of these: a leftover ``MLX_JACCL_RING`` turns a mesh into a ring,
and a leftover ``MLX_HOSTFILE`` gives a world of one rank the neighbours of the world before.
"""


class BackendError(ValueError):
    """A world cannot be planned as asked. The message says what, why, and what to type next."""


class Backend(Protocol):
    """One collective runtime. Pure planning: no method starts a process or touches a rank."""

    @property
    def name(self) -> str:
        """As the user types it after ``--backend``."""

    @property
    def operations(self) -> frozenset[str]:
        """The collectives it can do, and ``split`` where ``Group.split`` works."""

    @property
    def neighbours_only(self) -> bool:
        """Whether send and recv work between direct neighbours only."""

    @property
    def no_dtypes(self) -> frozenset[str]:
        """Names of the dtypes whose collectives it cannot do."""

    @property
    def no_reduced(self) -> frozenset[str]:
        """Dtypes that its `REDUCTIONS` do not take, though they can be sent and gathered."""

    @property
    def reform(self) -> Literal["in place", "if abortable", "restart"]:
        """Whether a broken world is joined again in the same processes or in new ones; ``if abortable`` depends on
        whether its ranks say that they can abort collectives."""

    @property
    def breakable(self) -> bool:
        """Whether a blocked collective can be made to raise: its sockets are known by the ports of ``Placement``."""

    @property
    def revocable(self) -> bool:
        """Whether its ranks are processes of MPI, which may be able to revoke a communicator: then blocked collectives
        are aborted, and ranks that are elsewhere answer those in them."""

    @property
    def verbs(self) -> bool:
        """Whether its ranks talk by verbs (RDMA), whose calls may be replaced: then blocked collectives are aborted."""

    @property
    def joins_at_first(self) -> bool:
        """Whether rank 0 listens on its first port, and all others connect to it: if it does not listen yet, they lose
        a second."""

    @property
    def joins_in_turn(self) -> bool:
        """Whether each rank listens for one neighbour and connects to the other: the last rank connects first, and
        if its neighbour does not listen yet, it loses a second."""

    @property
    def connections_per_link(self) -> bool:
        """Whether ``--connections`` is the number of TCP connections of each link, which is worth measuring."""

    @property
    def launcher(self) -> Literal["engines", "mpirun"]:
        """Whether any engine can be wired into the world, or only a process that mpirun started."""

    @property
    def needs(self) -> Literal["network", "rdma", "cuda"]:
        """What must be there: any network, RDMA over Thunderbolt between the ranks, or a CUDA device for each."""

    @property
    def init_name(self) -> str:
        """What ``mx.distributed.init`` calls it."""

    def why_not(self, platform: Platform, size: int, ranks_here: int | None = None) -> str | None:
        """Why a world of ``size`` ranks cannot run on ``platform``, in one sentence; None when it can.

        Called by ``Cluster.up`` and by ``auto`` before anything starts. With several hosts it is asked for each of
        them, ``ranks_here`` being the ranks meant for that host (all of them by default).
        """

    def ports(self, connections: int, addresses: int) -> int:
        """How many free TCP ports each rank must offer for one generation.

        Called when engines are asked for ports, before ``plan``; ``addresses`` is how many the hosts have.
        """

    def plan(self, placements: Sequence[Placement], *, generation: int = 1, connections: int = 1) -> WorldPlan:
        """The checked plan of one generation. Called whenever a world is formed, re-formed, healed, resized or rewired.

        Raises ``BackendError`` for anything that would make ``init`` fail or wait indefinitely.
        """

    def wiring(self, plan: WorldPlan, rank: int) -> Wiring:
        """Environment and files of one rank, as ``mlx.launch`` sets them.

        Called for each rank once the plan stands, before the rank calls ``mx.distributed.init``.
        """

    def links(self, plan: WorldPlan) -> tuple[Link, ...]:
        """Which rank can send straight to which. Called for the topology picture and the wire meters."""
