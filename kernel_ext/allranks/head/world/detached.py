"""Clusters that outlive their notebook: what another one must know to take them over."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from jupyter_core.paths import jupyter_runtime_dir

from allranks.errors import NoCluster, UsageError
from allranks.head.state.known_rank import Rank, SavedVariables
from allranks.head.state.monitor import Monitor
from allranks.hosts.hosts import Hosts
from allranks.hosts.ssh.remote import SavedHost
from allranks.machine.files import write_private
from allranks.machine.identity import identity_of, still_runs
from allranks.messages.lifeline import Lifeline
from allranks.settings import Settings
from allranks.units import ranks_text
from allranks_backends.plan import Host, Placement, WorldPlan
from allranks_backends.registry import get_backend


@dataclass(frozen=True)
class Detached:
    """Content of a detached cluster's file (0600: it holds the cluster's keys)."""

    settings: dict[str, Any]
    directory: str
    engine_info: dict[str, Any]
    url: str
    """Where the ranks connect to their notebook."""
    keys: tuple[str, str]
    """CurveZMQ keys of the notebook's end."""
    backend: str
    generation: int
    ranks: list[tuple[str, int]]
    """uuid and pid of each rank."""
    hosts: list[dict[str, Any]]
    """Where each rank runs: the fields of `Host`."""
    logins: dict[str, dict[str, Any]]
    """How the other hosts are reached again, by name: the fields of `SavedHost`."""
    notebook: tuple[int, float]
    """Process id of the notebook, and when that process was created, as `time.time` has it."""
    host_process: tuple[int, float]
    """The same of the host process that holds the controller."""
    breakable: bool = False
    """Whether collectives of the world can be aborted."""
    not_breakable: str = ""
    """Why not, where they could have been."""
    whole: bool = True
    """False while a change of the world is under way: some of the ranks may have left it."""
    owed: list[tuple[int, Any]] = field(default_factory=list)
    """What a change of the world still owes to ranks (`Ranks.owed`), as JSON."""

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
        """The cluster as it is now; in the middle of a change of its size, the ranks that are in both worlds."""
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
        )

    def expect(self, monitor: Monitor, connections: int) -> WorldPlan:
        """The ranks are to connect; returns the plan of their world."""
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
        """`Ranks.owed`, as the notebook before left it."""
        return {number: saved and msgspec.convert(saved, SavedVariables) for number, saved in self.owed}

    @property
    def cluster(self) -> str:
        """What its hosts call it."""
        return cluster_id(str(self.settings.get("token")))

    @property
    def exists(self) -> bool:
        """Whether its host process here still runs, which outlives those on other hosts."""
        return still_runs(*self.host_process)

    @property
    def has_notebook(self) -> bool:
        """Whether the notebook that it belongs to still runs."""
        return still_runs(*self.notebook)

    def is_like(self, settings: Settings, hosts: Sequence[Host], backend: str) -> bool:
        """Whether it is what was asked for with these settings, hosts and backend."""
        if [(host["name"], host.get("python"), host.get("cwd")) for host in self.hosts] != [
            (host.name, host.python, host.cwd) for host in hosts
        ]:
            return False
        with suppress(NoCluster):
            return self.asked_for().like() == settings.like() and backend in ("auto", self.backend)
        return False

    def asked_for(self) -> Settings:
        """The settings. Raises NoCluster for those of another version of allranks."""
        try:
            return Settings.read(self.settings)
        except (TypeError, KeyError, ValueError):
            name = self.settings.get("attached_as")
            raise NoCluster(f"the cluster {name!r} was started by another version of allranks.") from None

    def __str__(self) -> str:
        hosts = list(dict.fromkeys(host["name"] for host in self.hosts))
        return f"{ranks_text(len(self.ranks), self.backend)} on {', '.join(hosts)}"

    @property
    def saved_hosts(self) -> dict[str, SavedHost]:
        """How the other hosts are reached again, by name."""
        return {name: SavedHost(**fields) for name, fields in self.logins.items()}

    def write(self) -> None:
        path = detached_file(self.settings["attached_as"])
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(path, json.dumps(asdict(self)))


def cluster_id(token: str) -> str:
    """What the hosts of the cluster with this token call it: the same for each of its notebooks, and no secret."""
    return hashlib.sha256(token.encode()).hexdigest()[:12]


def _tuples(value: Any) -> Any:
    """`value` with tuples in place of JSON's lists."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def detached_file(name: str) -> Path:
    """Where the cluster called `name` says how to attach."""
    return Path(jupyter_runtime_dir()) / "allranks" / f"{name}.json"


def read_detached(name: str) -> Detached | None:
    """The detached cluster of that name, if there is one. Raises NoCluster where its file is damaged."""
    try:
        content = json.loads(detached_file(name).read_text())
        ranks = [(uuid, pid) for uuid, pid in content.pop("ranks")]
        pairs = {field: tuple(content[field]) for field in ("keys", "notebook", "host_process")}
        kept = Detached(**{**content, **pairs}, ranks=ranks)
        _ = kept.saved_hosts  # which another version may describe by other fields
        return kept
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError, AttributeError):
        raise NoCluster(
            f"the file for attaching to {name!r} is damaged or from another version of allranks. If that cluster is "
            f"gone: rm {detached_file(name)}"
        ) from None


def detached_names() -> list[str]:
    """Names of all clusters that outlive their notebook, or would."""
    return sorted(path.stem for path in detached_file("x").parent.glob("*.json"))


def readable(name: str) -> Detached | None:
    """As `read_detached`, but None also if the file is damaged."""
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
    """The name of the one that runs without a notebook; ``main`` if there is none. Raises UsageError for several."""
    names = list(left_behind())
    if len(names) > 1:
        raise UsageError(f"{len(names)} clusters run without a notebook: {', '.join(names)}. Name one of them.")
    return names[0] if names else "main"


def free_name(name: str) -> str:
    """`name`, or what begins with it and no cluster that still runs is attached by."""
    for tried in itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2))):
        with suppress(NoCluster):
            kept = read_detached(tried)
            if kept is None or not kept.exists:
                return tried
    raise AssertionError("there is always another number")
