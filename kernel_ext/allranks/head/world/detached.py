"""Clusters that outlive their notebook: what another one must know to take them over."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jupyter_core.paths import jupyter_runtime_dir

from allranks.errors import NoCluster
from allranks.head.state.known_rank import Rank
from allranks.head.state.monitor import Monitor
from allranks.hosts.local import LocalHost
from allranks.machine.files import write_private
from allranks.messages.lifeline import Lifeline
from allranks.settings import Settings
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
    breakable: bool = False
    """Whether collectives of the world can be aborted."""
    not_breakable: str = ""
    """Why not, where they could have been."""

    @classmethod
    def of(cls, settings: Settings, host: LocalHost, lifeline: Lifeline, monitor: Monitor) -> Detached:
        """The cluster as it is now."""
        return cls(
            settings={**vars(settings), "env": dict(settings.env)},
            directory=str(host.directory),
            engine_info=host.engine_info,
            url=lifeline.url,
            keys=lifeline.keys,
            backend=monitor.backend,
            generation=monitor.generation,
            ranks=[(rank.uuid, rank.pid or 0) for rank in monitor.ranks],
            breakable=monitor.breakable,
            not_breakable=monitor.not_breakable,
        )

    def expect(self, monitor: Monitor, connections: int) -> WorldPlan:
        """The ranks are to connect; returns the plan of their world."""
        placements = tuple(Placement(number, Host("localhost"), number) for number in range(len(self.ranks)))
        plan = WorldPlan(self.backend, placements, self.generation, connections)
        monitor.adopting = True
        backend = get_backend(self.backend)
        monitor.backend, monitor.generation, monitor.links = self.backend, self.generation, backend.links(plan)
        monitor.breakable, monitor.revocable = self.breakable or backend.breakable, backend.revocable
        monitor.not_breakable = self.not_breakable
        for number, (uuid, pid) in enumerate(self.ranks):
            monitor.put(Rank(number, "localhost", uuid, pid=pid))
        return plan

    def write(self) -> None:
        path = detached_file(self.settings["name"])
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(path, json.dumps(asdict(self)))


def detached_file(name: str) -> Path:
    """Where the cluster called `name` says how to attach."""
    return Path(jupyter_runtime_dir()) / "allranks" / f"{name}.json"


def read_detached(name: str) -> Detached | None:
    """The detached cluster of that name, if there is one. Raises NoCluster where its file is damaged."""
    try:
        content = json.loads(detached_file(name).read_text())
        ranks = [(uuid, pid) for uuid, pid in content.pop("ranks")]
        return Detached(**{**content, "keys": tuple(content["keys"])}, ranks=ranks)
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError, AttributeError):
        raise NoCluster(
            f"the file for attaching to {name!r} is damaged or from another version of allranks. If that cluster is "
            f"gone: rm {detached_file(name)}"
        ) from None


def detached_names() -> list[str]:
    """Names of all detached clusters."""
    return sorted(path.stem for path in detached_file("x").parent.glob("*.json"))
