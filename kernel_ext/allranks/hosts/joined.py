"""A host from which ranks have joined: all processes that a scheduler started there, as one `HostEnd`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from allranks.lifeline.head_end import Lifeline
from allranks.messages.host_messages import (
    End,
    Ended,
    HostEvent,
    HostOrder,
    RankConfig,
    Signal,
    Start,
    Started,
    to_line,
)
from allranks.messages.requests import TaskOrder
from allranks_backends.plan import Host, Platform
from allranks_backends.runtimes.nccl import visible_devices

from .host_process import HostEnd, HostGone, OnEvent, RankLost
from .meeting_addresses import HostNetwork
from .scheduler_tasks import Task


class JoinedHost(HostEnd):
    """All tasks of a host as one `HostEnd`: each task starts one rank, or more if other tasks have ended."""

    def __init__(
        self, name: str, tasks: Sequence[Task], lifeline: Lifeline, engine: Mapping[str, Any], on_event: OnEvent
    ):
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
        """What the host reports it can run, with the CUDA devices of all its tasks if each task sees only its own."""
        platforms = [Platform(**asdict(task.prepared.platform)) for task in self.tasks if task.prepared is not None]
        seen = max(platform.cuda_devices for platform in platforms)
        return replace(platforms[0], cuda_devices=max(seen, len(self.cuda)) if seen else 0)

    @property
    def cuda(self) -> tuple[str, ...]:
        """The CUDA devices that the scheduler gave its tasks; empty if it named none."""
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
