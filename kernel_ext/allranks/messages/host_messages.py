"""Requests to the host process of each host, and its events: JSON lines over a pipe, a Unix socket or ssh.

The lines of a host process that a scheduler's process runs are sent in `TaskOrder` and `TaskEvent`.

The types are dataclasses, since a host process starts with only the standard library. So it can report which package
is missing. The head, which has all packages, validates each event against its type.
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
    """The configuration that a rank process gets at its start."""

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
    """Whether to stay in the home folder if `cwd` does not exist."""
    env: Mapping[str, str] = field(default_factory=dict)
    lease: float | None = 0.0
    """Seconds that an idle rank outlives the notebook; None for no limit."""
    holder: int | None = None
    """Descriptor over which the rank gives its sockets to the host process to hold (see `rank.world.held_sockets`)."""
    shared_memory: str | None = None
    """Folder for the shared memory of Open MPI's ranks, removed with the cluster; None for Open MPI's default."""


@dataclass
class Prepare:
    """The first request: start ipyparallel's controller if settings for it are given, and import the ranks' modules.

    Without a `directory`, the host process creates one, and describes the host to the head (`Prepared`).
    """

    directory: str | None = None
    controller: dict[str, JSON] | None = None
    patience: float | None = None
    """Seconds without a message after which the head, or the network to it, counts as lost; None for no limit."""
    forks: bool = True
    """Whether to import the ranks' modules at once, rather than before the first rank starts. No effect on macOS."""


@dataclass
class Keep:
    """Keep running without a head, so that another head can attach.

    Until this request, everything ends with the head.
    """

    lease: float | None
    """Seconds to keep running while no head is connected and no rank runs a cell; None for no limit."""
    also_remove: str | None = None
    """A file to remove with the directory."""
    longer: float = 0.0
    """Seconds that this host process stays beyond the lease, until ranks on other hosts are saved or have ended."""
    saver: list[str] = field(default_factory=list)
    """The command to run when the lease expires: it attaches, saves the variables, and ends the cluster."""
    says: str = ""
    """The file for the output of that command."""


@dataclass
class DescribeCluster:
    """Write a description of the cluster to a file, for commands that list and end clusters from a shell."""

    cluster: str
    """Identifies the cluster; the same on all its hosts."""
    name: str
    backend: str
    size: int
    hosts: list[str]
    """The hosts with ranks, by their names in the notebook."""
    logins: dict[str, str]
    """Maps each host that the notebook has logged in to (even if no rank is left there) to its interpreter. Hosts of a
    scheduler are not included."""
    host: str
    """The name of this host in the notebook."""
    notebook: str
    """A text that says where the notebook runs."""
    python: str
    """The interpreter of the ranks on this host."""
    pids: dict[str, int]
    """The pids of the ranks on this host, by name: ranks of a launcher are not children of the host process."""


@dataclass
class Start:
    """Start one engine for each of these ranks."""

    ranks: list[RankConfig]


@dataclass
class Launch:
    """Start all ranks through a launcher such as mpirun; each process reads the file `join` to find its rank."""

    command: list[str]
    env: dict[str, str]
    ranks: list[RankConfig]
    join: str


@dataclass
class Offer:
    """Write these settings to the folder on this host in which a launcher's ranks look for their settings. Answered."""

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
    """Ask whether process `pid` runs. Answered with its `pid`, or 0."""

    pid: int


@dataclass
class Ports:
    """Ask for `count` free TCP ports. Answered."""

    count: int


@dataclass
class Alive:
    """Heartbeat of the head. Answered by `Heard`."""


@dataclass
class End:
    """End all processes and remove all files of the cluster on this host."""


Serial: TypeAlias = tuple[str, int]
"""The head that sends a request, and the number of the request among this head's requests, from 1."""
HostOrder: TypeAlias = (
    Prepare | Keep | DescribeCluster | Start | Launch | Offer | Signal | Forget | Runs | Ports | Alive | End
)


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
    """The description of a host."""

    directory: str
    """Its private folder."""
    versions: dict[str, str]
    """Versions of Python and of the packages that must match; empty for a package that is not installed."""
    ssh: str
    """The value of ``SSH_CONNECTION``."""
    cores: int
    addresses: list[str]
    """The host's addresses with their networks: ``10.0.0.3/24``."""
    platform: HostPlatform
    cuda: str
    """The value of ``CUDA_VISIBLE_DEVICES``."""
    python: str
    """The interpreter (``sys.executable``)."""
    left_behind: list[Any] = field(default_factory=list)
    """This user's other clusters on the host that have no notebook, from `machine.hosted_clusters.listed`."""


@dataclass(frozen=True)
class Greeting:
    """Sent when the shell of a login has run its start-up files and is about to exec the requested program."""

    pid: int
    parent: int
    """Both pids let another login identify the process on that host."""


@dataclass(frozen=True)
class Started:
    rank: int
    pid: int


@dataclass(frozen=True)
class Launched:
    """The launcher was started."""

    pid: int


@dataclass(frozen=True)
class Ended:
    """A process has ended: ``rank 3``, ``launcher`` or ``controller``."""

    name: str
    pid: int
    code: int
    """The exit code, as in `subprocess.Popen.returncode`."""
    out_of_memory: bool
    log: str = ""
    """The crash report, or the last lines, in the process's log."""
    replaced: bool = False
    """Whether a new process was started in its place, at the same addresses."""


@dataclass(frozen=True)
class Suspended:
    """A child process was suspended (SIGSTOP, SIGTSTP) or, if not `suspended`, continued (SIGCONT)."""

    pid: int
    suspended: bool


@dataclass(frozen=True)
class Present:
    """The state of the host, sent to a head that has connected, perhaps again."""

    processes: dict[str, int]
    """The pids of running processes, by name."""
    ended: list[Ended] = field(default_factory=list)
    """The ranks and launchers that have ended so far; the head may know of some."""
    head: str = ""
    """The head that sent the last request."""
    received: int = 0
    """Number of that request."""
    suspended: list[int] = field(default_factory=list)
    """The pids of the processes that are suspended."""


@dataclass(frozen=True)
class Heard:
    """The reply to `Alive`: the host has received all requests of this head up to this number."""

    received: int
    head: str = ""


@dataclass(frozen=True)
class HostAnswer:
    """The answer to the request with this number."""

    number: int
    ports: list[int] = field(default_factory=list)
    pid: int = 0


@dataclass(frozen=True)
class Trouble:
    """The traceback of a request that failed."""

    text: str


@dataclass(frozen=True)
class Gone:
    """The host process exits; this is its last event."""


HostEvent: TypeAlias = (
    Greeting | Prepared | Started | Launched | Suspended | Present | Ended | Heard | HostAnswer | Trouble | Gone
)

_ORDERS = {
    each.__name__: each
    for each in (Prepare, Keep, DescribeCluster, Start, Launch, Offer, Signal, Forget, Runs, Ports, Alive, End)
}
_EVENTS: dict[str, type[HostEvent]] = {
    each.__name__: each
    for each in (Greeting, Prepared, Started, Launched, Suspended, Present, Ended, Heard, HostAnswer, Trouble, Gone)
}


def to_line(message: HostOrder | HostEvent, number: int | None = None, serial: Serial | None = None) -> bytes:
    """Encode a message as a line, without the newline; a request with a `number` is answered.

    A request with a `serial` is handled once, although it may be sent again after a lost connection.
    """
    kind, body = type(message).__name__, asdict(message)
    return json.dumps({"type": kind, "number": number, "serial": serial, "body": body}).encode()


def read_order(line: bytes) -> tuple[HostOrder, int | None, Serial | None]:
    """Decode a request, its number and its serial. Raises ValueError, TypeError or KeyError for other lines."""
    found = json.loads(line)
    body = found["body"]
    if "ranks" in body:
        body["ranks"] = [RankConfig(**each) for each in body["ranks"]]
    head, order = found["serial"] or ("", 0)
    return _ORDERS[found["type"]](**body), found["number"], (head, order) if head else None


def begins_event(line: bytes) -> int:
    """The position of an event in a line, for example after a prompt without a newline; -1 if there is none."""
    return line.find(b'{"type": "')


def read_event(line: bytes) -> HostEvent:
    """Decode an event. Raises NotUnderstood for other lines, such as output of a login shell."""
    import msgspec  # not needed by host processes

    from .wire import NotUnderstood

    try:
        found = json.loads(line[max(0, begins_event(line)) :])
        kind = _EVENTS[found["type"]]
        event: HostEvent = msgspec.convert(found["body"], kind)
    except (ValueError, TypeError, KeyError, RecursionError, msgspec.MsgspecError) as error:
        raise NotUnderstood(f"no event of a host: {error}") from None
    return event
