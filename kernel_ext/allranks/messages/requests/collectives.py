"""About the world and its collectives."""

from __future__ import annotations

from msgspec import Struct, field

from allranks.messages.events import LedgerEntry

from .base import Answer, Nothing, Question, Request


class Joined(Answer):
    rank: int
    size: int
    breakable: bool = False
    """Whether a blocked collective can be aborted in this process."""
    why_not: str = ""
    """Why not, where MPI or JACCL could have been."""
    pending: list[str] = field(default_factory=list)
    """Names that wait for a collective of the world before, and are invalid now."""
    hears_at: tuple[str, int] | None = None
    """The address and UDP port at which it receives messages of other ranks."""


class Spawn(Struct, frozen=True):
    """A rank's process that MPI starts for those that are left of a world."""

    rank: int
    command: list[str]


class Refusals(Struct, frozen=True):
    """What a backend cannot do: ``allranks_backends.limits.Limits``."""

    operations: dict[str, str]
    neighbours: str | None
    dtypes: dict[str, str]
    reduced: dict[str, str]


class Form(Question[Joined]):
    """Leave the previous world and join this one. A failure is reported in MLX's own words."""

    runs = "main"
    backend: str
    """As ``mx.distributed.init`` calls it."""
    rank: int
    size: int
    entered: int
    """From which the ledger goes on to count the collectives that all ranks share."""
    limits: Refusals
    timeout: float
    """Seconds to wait for the others."""
    env: dict[str, str]
    files: dict[str, str]
    """By name, in the rank's folder."""
    forget: list[str]
    """Variables of other backends."""
    defaults: dict[str, str] = field(default_factory=dict)
    """Environment where the rank has no value of its own."""
    ports: list[list[int]] = field(default_factory=list)
    """Of the ring's sockets, by rank; none elsewhere."""
    after: list[int] = field(default_factory=list)
    """Ports of this host that must be listened to before."""
    listen_within: float = 0.0
    """Seconds to wait for that before this rank enters all the same."""
    tells_of: int | None = None
    """The port on which this rank listens, for ranks that cannot see that: they are informed when it enters."""
    told_of: int | None = None
    """The port of a rank on another host, which must have entered before."""
    delay: float = 0.0
    """Seconds by which to come later, where that cannot be seen."""
    in_turn: bool = False
    """Whether to take turns with the other ranks of the host in ``init``."""
    address: str | None = None
    """At which the other hosts reach this rank."""
    revocable: bool = False
    """Whether the ranks are processes of MPI."""
    verbs: bool = False
    """Whether the ranks talk by verbs (RDMA)."""
    spawn: list[Spawn] = field(default_factory=list)
    """New ranks that those which are left of a world of MPI start."""
    describes_host: bool = False
    """Whether this rank is the one that describes its host."""


class StopForming(Request):
    """The world that was to be formed is not: another rank has ended. A rank that waits for others returns."""


class Meet(Request):
    """Where the other ranks of the world receive messages of this one: addresses and UDP ports."""

    addresses: list[tuple[str, int]]


class Entries(Answer):
    entries: list[LedgerEntry]
    swapped: list[tuple[int, int]]
    """Which collectives were evaluated before which older ones, counted from `LedgerSince.after`."""
    earlier: list[LedgerEntry] = field(default_factory=list)
    """Those that were called before that, of `swapped` and `evaluated`."""
    evaluated: list[int] = field(default_factory=list)
    """The cell's first collectives as they were evaluated, as far as that is known; counted in the same way."""


class LedgerSince(Question[Entries]):
    """The collectives that all ranks share which the rank asked for after number `after`."""

    after: int


class Exchanges(Question[Entries]):
    """What the rank sent and received in the last cell."""


class Entered(Answer):
    entered: int
    """How many collectives that all ranks share the rank has asked for."""
    invalid: list[str] = field(default_factory=list)
    """Names that were computed on the way, of what other ranks may not have meant for them."""


class Abort(Question[Nothing]):
    """Collectives of a cell are aborted, up to number `newest`: others enter them in the place of missing ranks."""

    cell: int
    newest: int


class EnterMissed(Question[Entered]):
    """Enter these collectives of another rank's ledger, so that those blocked in them return."""

    runs = "main"
    entries: list[LedgerEntry]


class Settle(Question[Entered]):
    """Evaluate what the user's variables, and the frames of what the last cell raised, want from collectives."""

    runs = "main"


class OpenBarrier(Request):
    """The ranks agree on the next collective, or they do not: `refusal` says how."""

    cell: int
    refusal: str | None


BROKEN = "the world is broken because a blocked collective was aborted; it is re-formed after the cell"
"""Why no rank may enter another one."""


class Refuse(Request):
    """The world is broken elsewhere: enter no more collectives in it."""

    because: str


class MayConnect(Request):
    """The rank that listens on this port has entered ``init`` (see `Form.told_of`)."""

    port: int


class GiveUpAborting(Request):
    """Other ranks cannot abort collectives of this world, so no rank may."""

    because: str


class Names(Answer):
    names: list[str]


class Pending(Question[Names]):
    """Which variables that `code` mentions, or which of the user's for None, wait for a collective."""

    code: str | None
