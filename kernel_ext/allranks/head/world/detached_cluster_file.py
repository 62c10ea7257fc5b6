"""Clusters that outlive their notebook: what another notebook must know to take them over."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
from jupyter_core.paths import jupyter_runtime_dir

from allranks.cluster_settings import Settings, StoredSettings
from allranks.errors import NoCluster, UsageError
from allranks.head.state.known_rank import Rank, SavedVariables
from allranks.head.state.monitor import Monitor
from allranks.hosts.host_end import ConnectionInfo
from allranks.hosts.reached_hosts import Hosts
from allranks.hosts.ssh.remote import SavedHost
from allranks.lifeline.head_end import Lifeline
from allranks.machine.describe_host import installed
from allranks.machine.private_files import write_private
from allranks.machine.process_identity import identity_of, still_runs
from allranks.messages.wire import MESSAGE_FORMAT
from allranks.units import ranks_text
from allranks_backends.plan import Host, Placement, WorldPlan
from allranks_backends.registry import get_backend

Fields: TypeAlias = dict[str, Any]
"""The fields of a dataclass by name, as JSON."""


@dataclass(frozen=True)
class Detached:
    """Content of a detached cluster's file (0600: it holds the cluster's keys)."""

    settings: StoredSettings
    directory: str
    engine_info: ConnectionInfo
    url: str
    """The URL at which the ranks connect to their notebook."""
    keys: tuple[str, str]
    """CurveZMQ keys of the notebook's end."""
    backend: str
    generation: int
    ranks: list[tuple[str, int]]
    """uuid and pid of each rank; pid 0 if unknown."""
    hosts: list[Fields]
    """The host of each rank: the fields of `Host`."""
    logins: dict[str, Fields]
    """How to log in to the other hosts again, by name: the fields of `SavedHost`."""
    notebook: tuple[int, float]
    """Process id of the notebook, and the Unix time at which the process was created."""
    host_process: tuple[int, float]
    """Process id and creation time of this machine's host process, the parent of the controller."""
    breakable: bool = False
    """Whether collectives of the world can be aborted."""
    not_breakable: str = ""
    """Why collectives cannot be aborted although the backend may allow it; otherwise empty."""
    whole: bool = True
    """False if the world was broken, or while a change of it is under way: some of the ranks may have left it."""
    owed: list[tuple[int, Any]] = field(default_factory=list)
    """`Ranks.owed`: each rank that still lacks variables, with the variables saved for it as JSON, or None."""
    message_format: int = 0
    """`MESSAGE_FORMAT` of the ranks and of the last notebook; 0 if their version had no such number."""
    version: str = ""
    """Version of allranks in the last notebook, which wrote this; the ranks may run another one with the same message
    format. Empty if it was not stored."""

    @classmethod
    def of(
        cls,
        settings: Settings,
        plan: WorldPlan,
        reached: Hosts,
        lifeline: Lifeline,
        monitor: Monitor,
        owed: Mapping[int, SavedVariables | None],
    ) -> Detached:
        """Return the cluster as it is now; in the middle of a resize, only the ranks that are in both worlds."""
        host, both = reached.here, min(len(monitor.ranks), plan.size)
        return cls(
            settings=settings.stored(),
            directory=str(host.directory),
            engine_info=host.engine_info,
            url=lifeline.url,
            keys=lifeline.keys,
            backend=monitor.backend,
            generation=plan.generation,
            ranks=[(rank.uuid, rank.pid or 0) for rank in monitor.ranks[:both]],
            hosts=[asdict(placement.host) for placement in plan.placements[:both]],
            logins={name: asdict(saved) for name, saved in reached.saved().items()},
            notebook=identity_of(),
            host_process=host.process,
            breakable=monitor.breakable,
            not_breakable=monitor.not_breakable,
            whole=monitor.state == "whole",
            owed=[(number, msgspec.to_builtins(saved)) for number, saved in owed.items()],
            message_format=MESSAGE_FORMAT,
            version=installed("allranks"),
        )

    def expect(self, monitor: Monitor, connections: int) -> WorldPlan:
        """Have `monitor` expect the ranks to connect; return the plan of their world."""
        hosts = [Host(**{name: _tuples(value) for name, value in each.items()}) for each in self.hosts]
        before = [[each.name for each in hosts[:number]] for number in range(len(hosts))]
        placements = tuple(
            Placement(number, host, before[number].count(host.name)) for number, host in enumerate(hosts)
        )
        plan = WorldPlan(self.backend, placements, self.generation, connections)
        monitor.adopting = True
        backend = get_backend(self.backend)
        monitor.backend, monitor.generation, monitor.links = self.backend, self.generation, backend.links(plan)
        monitor.breakable, monitor.revocable = self.breakable or backend.breakable, backend.revocable
        monitor.not_breakable = self.not_breakable
        for number, (uuid, pid) in enumerate(self.ranks):
            monitor.put(Rank(number, hosts[number].name, uuid, pid=pid))
        return plan

    def still_owed(self) -> dict[int, SavedVariables | None]:
        """Return `Ranks.owed` as the previous notebook left it."""
        return {number: saved and msgspec.convert(saved, SavedVariables) for number, saved in self.owed}

    @property
    def cluster(self) -> str:
        """The id of the cluster on its hosts."""
        return cluster_id(str(self.settings.get("token")))

    @property
    def exists(self) -> bool:
        """Whether the cluster's host process on this machine still runs; that process outlives those on other hosts."""
        return still_runs(*self.host_process)

    @property
    def has_notebook(self) -> bool:
        """Whether the notebook that the cluster belongs to still runs."""
        return still_runs(*self.notebook)

    def is_like(self, settings: Settings, hosts: Sequence[Host], backend: str) -> bool:
        """Whether the cluster is what these settings, hosts and backend ask for."""
        if [(host["name"], host.get("python"), host.get("cwd")) for host in self.hosts] != [
            (host.name, host.python, host.cwd) for host in hosts
        ]:
            return False
        with suppress(NoCluster):
            return self.asked_for().like() == settings.like() and backend in ("auto", self.backend)
        return False

    @property
    def why_not(self) -> str:
        """Why this version of allranks cannot take over the cluster, and what to do instead; empty if it can."""
        name = str(self.settings.get("attached_as"))
        if self.message_format != MESSAGE_FORMAT:
            return _other_version(name, self.version, "understand the messages of its ranks")
        try:
            Settings.read(self.settings)
        except (TypeError, KeyError, ValueError):
            return _other_version(name, self.version, "know its options")
        return ""

    def asked_for(self) -> Settings:
        """Return the cluster's settings. Raises NoCluster if this version cannot take over the cluster."""
        if why := self.why_not:
            raise NoCluster(why)
        return Settings.read(self.settings)

    def __str__(self) -> str:
        hosts = list(dict.fromkeys(host["name"] for host in self.hosts))
        return f"{ranks_text(len(self.ranks), self.backend)} on {', '.join(hosts)}"

    @property
    def saved_hosts(self) -> dict[str, SavedHost]:
        """How to log in to the other hosts again, by name."""
        return {name: SavedHost(**fields) for name, fields in self.logins.items()}

    def write(self) -> None:
        path = detached_file(self.settings["attached_as"])
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(path, json.dumps(asdict(self)))


def other_version(version: object) -> str:
    """Name a version of allranks that is not this one: ``allranks 0.2.0``. It may be empty or None for unknown."""
    if not version:
        return "an older version of allranks"
    return f"another build of allranks {version}" if version == installed("allranks") else f"allranks {version}"


def _other_version(name: str, version: str, lacks: str) -> str:
    """Return why the cluster cannot be attached, and what to do. `version` is that of its last notebook, empty if
    unknown; `lacks` is what this version cannot do."""
    here, fix = installed("allranks"), "Attach with that version"
    if version and version != here:
        fix += f" (pip install allranks=={version})"
    return (
        f"the last notebook of the cluster {name!r} had {other_version(version)}, and this version ({here}) does not "
        f"{lacks}. {fix}, or end the cluster: allranks down {name}"
    )


def cluster_id(token: str) -> str:
    """Return the id by which hosts know the cluster with this token; the same for all its notebooks, and not secret."""
    return hashlib.sha256(token.encode()).hexdigest()[:12]


def _tuples(value: object) -> Any:
    """`value` with tuples in place of JSON's lists."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def detached_file(name: str) -> Path:
    """Return the path of the file that describes how to attach to the cluster called `name`."""
    return Path(jupyter_runtime_dir()) / "allranks" / f"{name}.json"


def read_detached(name: str) -> Detached | None:
    """Return the detached cluster called `name`; None if there is none. Raises NoCluster if its file is unreadable."""
    content: Any = None
    try:
        content = json.loads(detached_file(name).read_text())
        ranks = [(uuid, pid) for uuid, pid in content.pop("ranks")]
        pairs = {field: tuple(content[field]) for field in ("keys", "notebook", "host_process")}
        kept = Detached(**{**content, **pairs}, ranks=ranks)
        _ = kept.saved_hosts  # raises TypeError if another version wrote other fields
        return kept
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError, AttributeError):
        if isinstance(content, dict) and content.get("message_format", 0) != MESSAGE_FORMAT and "settings" in content:
            why = _other_version(name, str(content.get("version", "")), "understand the messages of its ranks")
            raise NoCluster(f"{why}. If that cluster is gone: rm {detached_file(name)}") from None
        raise NoCluster(
            f"the file for attaching to {name!r} is damaged or from another version of allranks. If that cluster is "
            f"gone: rm {detached_file(name)}"
        ) from None


def detached_names() -> list[str]:
    """Names of all clusters with a file for attaching: a cluster may have ended, and its notebook may still run."""
    return sorted(path.stem for path in detached_file("x").parent.glob("*.json"))


def readable(name: str) -> Detached | None:
    """Same as `read_detached`, but returns None if the file is unreadable."""
    with suppress(NoCluster):
        return read_detached(name)
    return None


def detached_clusters() -> dict[str, Detached]:
    """All clusters whose file can be read, by the name for attaching; they may have ended."""
    return {name: kept for name in detached_names() if (kept := readable(name)) is not None}


def left_behind() -> dict[str, Detached]:
    """The clusters that run without a notebook, by the name for attaching."""
    return {name: kept for name, kept in detached_clusters().items() if kept.exists and not kept.has_notebook}


def only_left_behind() -> str:
    """Return the name of the only cluster without a notebook, or ``main`` if none. Raises UsageError for several."""
    names = list(left_behind())
    if len(names) > 1:
        raise UsageError(f"{len(names)} clusters run without a notebook: {', '.join(names)}. Name one of them.")
    return names[0] if names else "main"


def free_name(name: str) -> str:
    """Return `name`, or the first free of ``NAME-2``, ... if a running cluster or an unreadable file has that name."""
    for tried in itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2))):
        with suppress(NoCluster):
            kept = read_detached(tried)
            if kept is None or not kept.exists:
                return tried
    raise AssertionError("there is always another number")
