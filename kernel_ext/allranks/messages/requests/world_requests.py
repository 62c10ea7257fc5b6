"""Requests about the world and its collectives."""

from __future__ import annotations

from msgspec import Struct, field

from allranks.messages.events import LedgerEntry

from .request import Answer, Nothing, Question, Request


class Joined(Answer):
    rank: int
    size: int
    breakable: bool = False
    """Whether a blocked collective can be aborted in this process."""
    why_not: str = ""
    """Why a blocked collective cannot be aborted; only for MPI and JACCL, where this depends on the configuration."""
    pending: list[str] = field(default_factory=list)
    """Names that waited for a collective of the previous world and are now invalid."""
    hears_at: tuple[str, int] | None = None
    """The address and UDP port at which the rank receives messages of other ranks; None without one."""


class Spawn(Struct, frozen=True):
    """A rank's process that the remaining ranks of a world start through MPI."""

    rank: int
    command: list[str]


class Refusals(Struct, frozen=True):
    """What a backend cannot do; the fields of ``allranks_backends.unsupported_operations.Limits``."""

    operations: dict[str, str]
    neighbours: str | None
    dtypes: dict[str, str]
    reduced: dict[str, str]


class Form(Question[Joined]):
    """Leave the previous world and join this one. Failures are reported with MLX's error text."""

    runs = "main"
    backend: str
    """The name that ``mx.distributed.init`` accepts."""
    rank: int
    size: int
    entered: int
    """The number from which the ledger continues to count the collectives shared by all ranks."""
    limits: Refusals
    timeout: float
    """Seconds to wait for the other ranks."""
    env: dict[str, str]
    files: dict[str, str]
    """Maps the names of files to write in the rank's folder to their content."""
    forget: list[str]
    """Environment variables of all backends, to unset before `env` is set."""
    defaults: dict[str, str] = field(default_factory=dict)
    """Environment variables to set if the rank has no value for them."""
    ports: list[list[int]] = field(default_factory=list)
    """Ports of the ring's sockets, by rank; empty for other backends."""
    after: list[int] = field(default_factory=list)
    """Ports of this host on which other ranks must listen before this rank enters ``init``."""
    listen_within: float = 0.0
    """Seconds to wait, for `after` and for `told_of` each, before this rank enters anyway."""
    tells_of: int | None = None
    """The port on which this rank listens, to be reported (`Listens`) just before it enters; None to report nothing."""
    told_of: int | None = None
    """The port in the `MayConnect` that this rank waits for, since it cannot see other hosts listen; None for none."""
    delay: float = 0.0
    """Seconds to wait before entering if `after` is empty, times out, or cannot be observed (on anything but Linux)."""
    in_turn: bool = False
    """Whether to take turns with the other ranks of the host in ``init``."""
    address: str | None = None
    """The address at which other hosts reach this rank."""
    revocable: bool = False
    """Whether the ranks are processes of MPI."""
    verbs: bool = False
    """Whether the ranks communicate by verbs (RDMA)."""
    spawn: list[Spawn] = field(default_factory=list)
    """New ranks that the remaining ranks of an MPI world start."""
    describes_host: bool = False
    """Whether this rank is the one that describes its host."""


class StopForming(Request):
    """Give up forming the world, since another rank has ended. A rank of MPI that waits for others returns."""


class Meet(Request):
    """Set the addresses and UDP ports at which the other ranks of the world receive messages of this rank."""

    addresses: list[tuple[str, int]]


class Entries(Answer):
    entries: list[LedgerEntry]
    swapped: list[tuple[int, int]]
    """Pairs of a collective and an older one that was evaluated after it, both counted from `LedgerSince.after`."""
    earlier: list[LedgerEntry] = field(default_factory=list)
    """Collectives of `swapped` and `evaluated` that were called before `LedgerSince.after`."""
    evaluated: list[int] = field(default_factory=list)
    """The cell's first collectives in evaluation order, as far as known; counted from `LedgerSince.after`."""


class LedgerSince(Question[Entries]):
    """Return the collectives shared by all ranks that the rank called after number `after`."""

    after: int


class Exchanges(Question[Entries]):
    """Return the ``send`` and ``recv`` calls of the rank in the last cell."""


class Entered(Answer):
    entered: int
    """Number of shared collectives that the rank has called (see `LedgerEntry.shared`)."""
    invalid: list[str] = field(default_factory=list)
    """Names whose pending collectives were evaluated with data that other ranks may have meant for other arrays."""


class Abort(Question[Nothing]):
    """Treat a cell's collectives up to number `newest` as aborted: ranks that missed them will enter them with NaN."""

    cell: int
    newest: int


class EnterMissed(Question[Entered]):
    """Enter these collectives of another rank's ledger, so that the ranks blocked in them return."""

    runs = "main"
    entries: list[LedgerEntry]


class Settle(Question[Entered]):
    """Evaluate the pending collectives of the user's variables, and of the frames of the last cell's error."""

    runs = "main"


class OpenBarrier(Request):
    """Let the rank enter the next collective; with a `refusal`, raise it as an error, since the ranks do not agree."""

    cell: int
    refusal: str | None


BROKEN = "the world is broken because a blocked collective was aborted; it is re-formed after the cell"
"""Why no rank may enter another collective."""


class Refuse(Request):
    """The world is broken on another rank: enter no more collectives in it."""

    because: str


class MayConnect(Request):
    """The ranks to which this one connects have entered ``init``; `port` equals `Form.told_of`."""

    port: int


class GiveUpAborting(Request):
    """Other ranks cannot abort collectives of this world, so no rank may."""

    because: str


class PendingNames(Answer):
    names: list[str]


class Pending(Question[PendingNames]):
    """Return the names in `code` that wait for a collective; with None, all of the user's variables that do."""

    code: str | None
