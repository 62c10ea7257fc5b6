"""The protocol that every backend (a collective runtime) implements."""

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
        # JACCL reads these before the MLX_ variables, so a leftover in a shell would override the plan.
        "JACCL_RANK",
        "JACCL_IBV_DEVICES",
        "JACCL_COORDINATOR",
        "JACCL_RING",
    }
)
"""Variables that describe a world to ``mx.distributed.init``.

Code that applies a ``Wiring`` in a rank first removes all of these: a leftover ``MLX_JACCL_RING`` turns a mesh into a
ring, and a leftover ``MLX_HOSTFILE`` gives a world of one rank the neighbours of the previous world.
"""


class BackendError(ValueError):
    """The requested world cannot be planned, or MLX or the hosts lack what planning or discovery needs.

    The message says what is wrong and why, and usually what to type next.
    """


class Backend(Protocol):
    """One collective runtime. Pure planning: no method starts a process or touches a rank."""

    @property
    def name(self) -> str:
        """The name that the user types after ``--backend``."""

    @property
    def operations(self) -> frozenset[str]:
        """Names of the operations that it supports; ``split`` stands for ``Group.split``."""

    @property
    def neighbours_only(self) -> bool:
        """Whether send and recv work between direct neighbours only."""

    @property
    def no_dtypes(self) -> frozenset[str]:
        """Names of the dtypes that none of its operations supports."""

    @property
    def no_reduced(self) -> frozenset[str]:
        """Names of the dtypes that it can send and gather, but not reduce (`REDUCTIONS`)."""

    @property
    def reform(self) -> Literal["in place", "if abortable", "restart"]:
        """Whether a broken world is re-formed in the same processes or in new processes. ``if abortable``: in the same
        processes if its ranks report that they can abort collectives."""

    @property
    def breakable(self) -> bool:
        """Whether a rank can abort a blocked collective through its sockets. `Placement.ports` identify the sockets."""

    @property
    def revocable(self) -> bool:
        """Whether its ranks are MPI processes. If all ranks can revoke a communicator, blocked collectives are aborted.
        Otherwise, the ranks outside a blocked collective complete it for the ranks in it."""

    @property
    def verbs(self) -> bool:
        """Whether its ranks use RDMA verbs. If allranks can replace the verbs, it can abort blocked collectives."""

    @property
    def joins_at_first(self) -> bool:
        """Whether the other ranks are held back until rank 0 listens on its first port, to which they connect. A rank
        that connected before that would lose a second."""

    @property
    def joins_in_turn(self) -> bool:
        """Whether each rank listens for one neighbour and connects to the other. The last rank connects first, and
        loses a second if its neighbour does not listen yet."""

    @property
    def connections_per_link(self) -> bool:
        """Whether ``bench`` can compare numbers of TCP connections of each link (``--connections``). False for MPI,
        although it has that option, too."""

    @property
    def launcher(self) -> Literal["engines", "mpirun"]:
        """Whether any engine can join the world, or only a process that mpirun or ranks of the world started."""

    @property
    def needs(self) -> Literal["network", "rdma", "cuda"]:
        """What the hosts must have: any network, RDMA over Thunderbolt, or a CUDA device for each rank."""

    @property
    def init_name(self) -> str:
        """The name of the backend in ``mx.distributed.init``."""

    def why_not(self, platform: Platform, size: int, ranks_here: int | None = None) -> str | None:
        """Return why a world of ``size`` ranks cannot run on ``platform``, in one sentence; None if it can.

        Called for each host before a world is started, changed or probed; also for backends that were not chosen, since
        messages suggest backends that can run. ``ranks_here`` is the number of ranks meant for that host (``size`` by
        default).
        """

    def ports(self, connections: int, addresses: int) -> int:
        """Return how many free TCP ports each rank must offer for one generation.

        Called before engines are asked for ports and the world is planned. ``addresses`` is the number of addresses of
        a host.
        """

    def plan(self, placements: Sequence[Placement], *, generation: int = 1, connections: int = 1) -> WorldPlan:
        """Return the checked plan of one generation.

        Called whenever a world is formed, re-formed, healed, resized or rewired, and by the doctor.

        Raises ``BackendError`` for anything that would make ``init`` fail or wait indefinitely.
        """

    def wiring(self, plan: WorldPlan, rank: int) -> Wiring:
        """Return the environment and files of one rank, as ``mlx.launch`` sets them.

        Called for each rank once the plan is made, before the rank calls ``mx.distributed.init``.
        """

    def links(self, plan: WorldPlan) -> tuple[Link, ...]:
        """Return every link over which one rank sends directly to another.

        Called for the topology picture, for the traffic figures of links, and for the links that ``bench`` measures.
        """
