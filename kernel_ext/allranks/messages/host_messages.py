"""Orders to the host process of each host, and its events: JSON lines, over a pipe, a Unix socket or ssh.

Dataclasses of the standard library, since that is all a host process needs until it starts ranks: one that lacks a
package can still say which. The head, which has everything, checks each event against its type.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from .wire import JSON


@dataclass
class RankConfig:
    """What a rank process gets when it starts."""

    rank: int
    host: str
    uuid: str
    """The engine's ZeroMQ identity, which is also its identity on the lifeline."""
    directory: str
    """This rank's private folder (0700), removed with the cluster."""
    token: str
    lifeline_url: str
    lifeline_key: str
    engine: Mapping[str, JSON]
    """Connection info of the ipyparallel controller (the content of ``ipcontroller-engine.json``)."""
    cwd: str | None = None
    cwd_may_lack: bool = False
    """Whether to stay in the home folder where there is no `cwd`."""
    env: Mapping[str, str] = field(default_factory=dict)
    lease: float | None = 0.0
    """Seconds that it outlives the notebook while it runs nothing; None for ever."""
    holder: int | None = None
    """Descriptor by which the host process is given what is to outlive the rank (see `rank.world.held_sockets`)."""
    shared_memory: str | None = None
    """Folder for the memory that Open MPI's ranks on one host share, removed with the cluster; None for its own."""


@dataclass
class Prepare:
    """The first order: start ipyparallel's controller if it is to live here, and import what ranks need meanwhile.

    Without a `directory` one is made, and the host describes itself (`Prepared`) to a head that is elsewhere.
    """

    directory: str | None = None
    controller: dict[str, JSON] | None = None
    patience: float | None = None
    """Seconds without a word after which the head, or the network to it, counts as gone."""
    forks: bool = True
    """Whether to import at once what ranks need; otherwise the imports happen when the first is started."""


@dataclass
class Keep:
    """Stay without a head from now on: another one can learn how to attach. Until then, all ends with the head."""

    lease: float | None
    """Seconds that everything stays while no head is there and no rank runs a cell; None for ever."""
    also_remove: str | None = None
    """A file that goes with the directory."""
    longer: float = 0.0
    """Seconds that this host process stays longer than the lease, which is that of ranks on other hosts."""
    saver: list[str] = field(default_factory=list)
    """A command to run when the lease has run out: it attaches, saves variables, and ends the cluster."""
    says: str = ""
    """The file that gets what the command prints."""


@dataclass
class Describe:
    """Write down which cluster this is, for those who list and end clusters from a shell."""

    cluster: str
    """The same on all its hosts."""
    name: str
    backend: str
    size: int
    hosts: list[str]
    """Those with ranks, as the notebook calls them."""
    logins: dict[str, str]
    """Those that the notebook has logged in to, also if no rank is left there, and the interpreter there; none that a
    scheduler has."""
    host: str
    """This one, likewise."""
    notebook: str
    """Where it runs, in words."""
    python: str
    """The interpreter of the ranks on this one."""
    pids: dict[str, int]
    """Processes of its ranks on this host, by name: a launcher's are not the host process's own."""


@dataclass
class Start:
    """Start one engine for each of these."""

    ranks: list[RankConfig]


@dataclass
class Launch:
    """Start all ranks through a launcher such as mpirun; each reads the file `join` and knows its rank from it."""

    command: list[str]
    env: dict[str, str]
    ranks: list[RankConfig]
    join: str


@dataclass
class Offer:
    """Lay these settings where the ranks of a launcher find them here. Answered."""

    cluster: str
    ranks: list[RankConfig]


@dataclass
class Signal:
    pid: int
    number: int


@dataclass
class Forget:
    """These engines have ended: ipyparallel's clients must not wait for them."""

    uuids: list[str]


@dataclass
class Runs:
    """Whether there is such a process. Answered with its `pid`, or 0."""

    pid: int


@dataclass
class Ports:
    """Free TCP ports. Answered."""

    count: int


@dataclass
class Alive:
    """The head is there. Answered by `Heard`."""


@dataclass
class End:
    """End every process and remove every file."""


Serial: TypeAlias = tuple[str, int]
"""Which head gives an order, and its number among that head's orders, from 1."""
HostOrder: TypeAlias = Prepare | Keep | Describe | Start | Launch | Offer | Signal | Forget | Runs | Ports | Alive | End


@dataclass(frozen=True)
class HostPlatform:
    """The fields of ``allranks_backends.plan.Platform``."""

    system: str
    release: str
    available: dict[str, bool]
    cuda_devices: int
    mlx: str
    mpirun: str | None = None


@dataclass(frozen=True)
class Prepared:
    """What a host says of itself."""

    directory: str
    """Its private folder."""
    versions: dict[str, str]
    """Of Python and the packages that must be alike; empty for one that is not installed."""
    ssh: str
    """``SSH_CONNECTION``."""
    cores: int
    addresses: list[str]
    """Its own, with their networks: ``10.0.0.3/24``."""
    platform: HostPlatform
    cuda: str
    """``CUDA_VISIBLE_DEVICES``."""
    python: str
    """Its interpreter, as that calls itself."""
    left_behind: list[Any] = field(default_factory=list)
    """Other clusters of this user that run there without a notebook, as `machine.clusters.listed` has them."""


@dataclass(frozen=True)
class Greeting:
    """The shell of a login has run its start-up files, and becomes the program for which the login was made."""

    pid: int
    parent: int
    """With both, another login finds the process on that host, and no other."""


@dataclass(frozen=True)
class Started:
    rank: int
    pid: int


@dataclass(frozen=True)
class Launched:
    """The launcher runs."""

    pid: int


@dataclass(frozen=True)
class Ended:
    """A process has ended: ``rank 3``, ``launcher`` or ``controller``."""

    name: str
    pid: int
    code: int
    """As in `subprocess.Popen.returncode`."""
    out_of_memory: bool
    log: str = ""
    """What it wrote last."""
    replaced: bool = False
    """Whether another was started in its place, at the same addresses."""


@dataclass(frozen=True)
class Present:
    """To a head that has connected, perhaps again."""

    processes: dict[str, int]
    """What runs, by name."""
    ended: list[Ended] = field(default_factory=list)
    """What has ended so far; the head may have heard of it."""
    head: str = ""
    """The head that gave the last order."""
    received: int = 0
    """Number of that order."""


@dataclass(frozen=True)
class Heard:
    """The host is there, and has received all of this head's orders up to this number."""

    received: int
    head: str = ""


@dataclass(frozen=True)
class HostAnswer:
    """The answer to the order with this number."""

    number: int
    ports: list[int] = field(default_factory=list)
    pid: int = 0


@dataclass(frozen=True)
class Trouble:
    """An order could not be carried out: the traceback."""

    text: str


@dataclass(frozen=True)
class Gone:
    """The last event."""


HostEvent: TypeAlias = Greeting | Prepared | Started | Launched | Present | Ended | Heard | HostAnswer | Trouble | Gone

_ORDERS = {
    each.__name__: each
    for each in (Prepare, Keep, Describe, Start, Launch, Offer, Signal, Forget, Runs, Ports, Alive, End)
}
_EVENTS: dict[str, type[HostEvent]] = {
    each.__name__: each
    for each in (Greeting, Prepared, Started, Launched, Present, Ended, Heard, HostAnswer, Trouble, Gone)
}


def to_line(message: HostOrder | HostEvent, number: int | None = None, serial: Serial | None = None) -> bytes:
    """As it travels, without the newline; with a `number`, an order is answered.

    Orders with a `serial` are carried out once, though they may be sent again after a gap.
    """
    kind, body = type(message).__name__, asdict(message)
    return json.dumps({"type": kind, "number": number, "serial": serial, "body": body}).encode()


def read_order(line: bytes) -> tuple[HostOrder, int | None, Serial | None]:
    """What `to_line` was given. Raises ValueError, TypeError or KeyError for anything else."""
    found = json.loads(line)
    body = found["body"]
    if "ranks" in body:
        body["ranks"] = [RankConfig(**each) for each in body["ranks"]]
    head, order = found["serial"] or ("", 0)
    return _ORDERS[found["type"]](**body), found["number"], (head, order) if head else None


def begins_event(line: bytes) -> int:
    """Where an event begins in a line, after a prompt without a newline, say; -1 where the line has none."""
    return line.find(b'{"type": "')


def read_event(line: bytes) -> HostEvent:
    """What `to_line` was given. Raises NotUnderstood for anything else, such as what a login shell prints."""
    import msgspec  # no host process needs it

    from .wire import NotUnderstood

    try:
        found = json.loads(line[max(0, begins_event(line)) :])
        kind = _EVENTS[found["type"]]
        event: HostEvent = msgspec.convert(found["body"], kind)
    except (ValueError, TypeError, KeyError, RecursionError, msgspec.MsgspecError) as error:
        raise NotUnderstood(f"no event of a host: {error}") from None
    return event
