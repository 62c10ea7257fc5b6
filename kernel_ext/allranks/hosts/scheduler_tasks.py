"""Processes that a scheduler started and that connected to the notebook, and which rank each of them becomes."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from allranks.errors import CannotStart
from allranks.messages.events import JoinedFrom
from allranks.messages.host_messages import Prepared

from .ssh.differences import differing, listing

if TYPE_CHECKING:
    from allranks_backends.plan import Host

    from .joined import JoinedHost


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


def in_rank_order(tasks: Sequence[Task]) -> list[Task]:
    """The tasks as their launcher numbers them, else in order of arrival with the tasks of a host together."""
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
    """Raise CannotStart if a task could not prepare or has other versions than the notebook; names each host once."""
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
    """The task that replaces each of `hosts` that is gone, by the host's index; assigns no task yet.

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
