"""Processes that a scheduler started and that connected to the notebook. All processes of a host form one `HostEnd`."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from allranks.errors import CannotStart
from allranks.lifeline.head_end import Lifeline
from allranks.messages.events import JoinedFrom
from allranks.messages.host_messages import (
    End,
    Ended,
    HostEvent,
    HostOrder,
    Prepared,
    RankConfig,
    Signal,
    Start,
    Started,
    to_line,
)
from allranks.messages.requests import TaskOrder
from allranks_backends.plan import Host, Platform
from allranks_backends.runtimes.nccl import visible_devices

from .host_end import ConnectionInfo, HostEnd, HostGone, OnEvent, RankLost
from .reachable_addresses import HostNetwork
from .ssh.differences import differing, listing


@dataclass
class Task:
    """One process that the scheduler started."""

    uuid: str
    joins: JoinedFrom
    """What the process reported about itself when it connected."""
    prepared: Prepared | None = None
    trouble: str = ""
    """Why the process could not prepare; empty if nothing went wrong."""
    received: int = 0
    """Number of the last event received from the process."""
    ranks: dict[int, int] = field(default_factory=dict)
    """The ranks that the process started, by pid."""
    end: JoinedHost | None = None
    """The host that the process belongs to; None while the process is not needed."""
    gone: bool = False
    fuse: threading.Timer | None = None

    @property
    def answered(self) -> bool:
        """Whether the process has prepared, or reported why it cannot."""
        return self.prepared is not None or bool(self.trouble)

    @property
    def place(self) -> tuple[str, str]:
        """Host name and address; tasks with equal places are on one host."""
        return self.joins.host, self.joins.address


class JoinedHost(HostEnd):
    """All tasks of a host as one `HostEnd`: each task starts one rank, or more if other tasks have ended."""

    def __init__(self, name: str, tasks: Sequence[Task], lifeline: Lifeline, engine: ConnectionInfo, on_event: OnEvent):
        super().__init__(name, on_event)
        self._lifeline, self.tasks = lifeline, list(tasks)
        self.host = Host(name, False, ())
        url = tasks[0].joins.url
        self.lifeline_url, self.engine_info = url, {**engine, "interface": url.rpartition(":")[0]}
        for task in tasks:
            task.end = self

    @property
    def place(self) -> tuple[str, str]:
        """The `Task.place` that its tasks share."""
        return self.tasks[0].place

    @property
    def network(self) -> HostNetwork:
        """The network as the host reports it."""
        task = self.tasks[0]
        return HostNetwork(task.prepared.addresses if task.prepared is not None else (), task.joins.address)

    @property
    def platform(self) -> Platform:
        """The platform that the host reports, with the CUDA devices of all its tasks if each task sees only its own."""
        platforms = [Platform(**asdict(task.prepared.platform)) for task in self.tasks if task.prepared is not None]
        seen = max(platform.cuda_devices for platform in platforms)
        return replace(platforms[0], cuda_devices=max(seen, len(self.cuda)) if seen else 0)

    @property
    def cuda(self) -> tuple[str, ...]:
        """The CUDA devices that the scheduler gave the host's tasks; empty if the scheduler named none."""
        devices = [visible_devices({"CUDA_VISIBLE_DEVICES": task.joins.cuda}) for task in self.tasks]
        # A scheduler shows each task either all devices of the host, or only the task's own.
        alike = len(set(devices)) == 1
        return devices[0] if alike else tuple(device for each in devices for device in each)

    def add(self, task: Task) -> None:
        """Add another task on this host."""
        task.end = self
        self.tasks.append(task)

    def hear_from(self, task: Task, event: HostEvent) -> None:
        """Handle an event of one of the tasks."""
        if isinstance(event, Started):
            task.ranks[event.pid] = event.rank
        elif isinstance(event, Ended):
            task.ranks.pop(event.pid, None)
        self._note(event)
        self._hear(event)

    def lost(self, task: Task, because: str) -> None:
        """Handle the end of one of the tasks: report its ranks as lost, and the host as gone with its last task."""
        for pid, rank in list(task.ranks.items()):
            with self._changed:
                self._living.discard(pid)
                self._changed.notify_all()
            self._on_event(RankLost(rank, pid, because))
        task.ranks.clear()
        if not self._present:
            self._has_gone()

    @property
    def _present(self) -> list[Task]:
        return [task for task in self.tasks if not task.gone]

    def _order(self, order: HostOrder, number: int | None = None) -> None:
        present = self._present
        match order:
            case End():
                chosen = present
            case Signal(pid=pid):
                chosen = [task for task in present if pid in task.ranks]
            case Start(ranks):
                return self._start(ranks, present)
            case _:
                chosen = present[:1]
        for task in chosen:
            self._lifeline.tell(task.uuid, TaskOrder(to_line(order, number)))

    def _start(self, ranks: Sequence[RankConfig], present: Sequence[Task]) -> None:
        given = {task.uuid: len(task.ranks) for task in present}
        for config in ranks:
            task = min(present, key=lambda task: given[task.uuid], default=None)
            if task is None or task.prepared is None:
                return
            given[task.uuid] += 1
            folder = Path(task.prepared.directory)
            self.directory = folder
            start = Start([replace(config, directory=str(folder / f"rank-{config.rank}"))])
            self._lifeline.tell(task.uuid, TaskOrder(to_line(start)))

    def _how_ended(self) -> HostGone:
        return HostGone("the process that joined from there has ended")


def in_rank_order(tasks: Sequence[Task]) -> list[Task]:
    """The tasks by their launcher's numbers.

    If numbers are missing or repeat, the tasks are in order of arrival, with each host's tasks together.
    """
    numbers = {task.joins.number for task in tasks}
    if len(numbers) == len(tasks) and None not in numbers:
        return sorted(tasks, key=lambda task: task.joins.number or 0)
    places = list(dict.fromkeys(task.place for task in tasks))
    return sorted(tasks, key=lambda task: places.index(task.place))


def so_far(here: Sequence[Task], wanted: int | None) -> str:
    """Describe how many ranks have joined (of how many, if `wanted` is given) and on which hosts."""
    if not here:
        return f"0 of {wanted} ranks have joined" if wanted else "no rank has joined"
    hosts = ", ".join(dict.fromkeys(task.joins.host for task in here))
    return f"{len(here)} of {wanted} ranks have joined (on {hosts})"


def refuse(tasks: Sequence[Task]) -> None:
    """Raise CannotStart if a task could not prepare or has other versions than the notebook; lists each host once."""
    said = {}
    for task in tasks:
        name = task.joins.host
        if task.trouble:
            said[name] = f"{name}: {task.trouble}."
        elif task.prepared is not None and (differs := differing(task.prepared.versions)):
            said[name] = f"{name} differs from this notebook:\n{listing(differs, task.joins.python)}"
    if said:
        raise CannotStart("\n".join(said.values()))


def replacements(
    hosts: Sequence[Host],
    ends: Mapping[str, JoinedHost],
    living: Collection[str],
    spare: Sequence[Task],
    command: str,
) -> dict[int, Task]:
    """Map the index of each of `hosts` that is gone to the task that replaces it; does not assign the task yet.

    Raises CannotStart if there are too few spare tasks; the message names the `command` for the scheduler to run.
    """
    chosen: dict[int, Task] = {}
    left = list(spare)
    for index, host in enumerate(hosts):
        if host.name in living:
            continue
        place = ends[host.name].place
        task = next((task for task in chosen.values() if task.place == place), None)
        if task is None and not left:
            again = f"run `{command}` there again, then %distributed heal" if command else "start the cluster again"
            raise CannotStart(
                f"{host.name}: the process that joined from there has ended, and only its scheduler can restart it: "
                f"{again}. To continue without it: %distributed resize N."
            )
        if task is None:
            task = left.pop(next((at for at, each in enumerate(left) if each.place == place), 0))
        chosen[index] = task
    return chosen


def named(tasks: Sequence[Task], taken: Collection[str]) -> dict[str, list[Task]]:
    """The tasks of each host, by the name that the host gets; names in `taken` are not used."""
    by_place: dict[tuple[str, str], list[Task]] = {}
    for task in tasks:
        by_place.setdefault(task.place, []).append(task)
    names = [host for host, _ in by_place]
    found = {}
    for (host, address), members in by_place.items():
        # Two containers may have the same name, and "localhost" is the notebook's own machine.
        alone = names.count(host) == 1 and host not in taken and host != "localhost"
        found[host if alone else f"{host} ({address})"] = members
    return found
