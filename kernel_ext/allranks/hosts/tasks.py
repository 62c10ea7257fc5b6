"""Processes that a scheduler started and that called in, and which of them are to be which rank."""

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
    """One process of the scheduler's."""

    uuid: str
    joins: JoinedFrom
    """What it said of itself."""
    prepared: Prepared | None = None
    trouble: str = ""
    """Why it could not prepare."""
    received: int = 0
    """Number of the last event."""
    ranks: dict[int, int] = field(default_factory=dict)
    """Its ranks' processes: pid to rank."""
    end: JoinedHost | None = None
    """The host it belongs to; None for one that is not needed yet."""
    gone: bool = False
    fuse: threading.Timer | None = None

    @property
    def answered(self) -> bool:
        """Whether it is prepared, or has said why not."""
        return self.prepared is not None or bool(self.trouble)

    @property
    def place(self) -> tuple[str, str]:
        """Tasks with the same are on one host."""
        return self.joins.host, self.joins.address


def in_rank_order(tasks: Sequence[Task]) -> list[Task]:
    """As their launcher numbers them; else in order of arrival, those of a host together."""
    numbers = {task.joins.number for task in tasks}
    if len(numbers) == len(tasks) and None not in numbers:
        return sorted(tasks, key=lambda task: task.joins.number or 0)
    places = list(dict.fromkeys(task.place for task in tasks))
    return sorted(tasks, key=lambda task: places.index(task.place))


def so_far(here: Sequence[Task], wanted: int | None) -> str:
    """Who has joined, in words: of so many, where that is known."""
    if not here:
        return f"0 of {wanted} ranks have joined" if wanted else "no rank has joined"
    hosts = ", ".join(dict.fromkeys(task.joins.host for task in here))
    return f"{len(here)} of {wanted} ranks have joined (on {hosts})"


def refuse(tasks: Sequence[Task]) -> None:
    """Raise CannotStart for those that are not as the notebook is, each host once."""
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
    """The task for each of `hosts` that is gone, by its index; none is taken yet.

    Raises CannotStart where too few are spare, naming the `command` that the scheduler is to run.
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
    """The tasks of each host, by what it is to be called."""
    by_place: dict[tuple[str, str], list[Task]] = {}
    for task in tasks:
        by_place.setdefault(task.place, []).append(task)
    names = [host for host, _ in by_place]
    found = {}
    for (host, address), members in by_place.items():
        # Two containers may well have one name, and "localhost" is the notebook's own machine.
        alone = names.count(host) == 1 and host not in taken and host != "localhost"
        found[host if alone else f"{host} ({address})"] = members
    return found
