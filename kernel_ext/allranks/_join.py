"""Ranks that a scheduler started: processes that call in, where those of `_remote` are reached by ssh.

Nobody can be logged in to, so the notebook listens: the lifeline and the engines' side of the controller, on all
addresses of this machine, for whoever holds the keys of the join file. Each process that calls in carries the orders
and events of one host process (`allranks.rank.join`), over the lifeline.
"""

from __future__ import annotations

import json
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from allranks_backends._plan import Host, Platform
from allranks_backends.nccl import visible_devices

from ._addresses import LOOPBACK, Told
from ._host_process import GONE_WITHIN, HostEnd, OnEvent
from ._lifeline import Handler, Lifeline
from ._remote import differing, listing
from .errors import CannotStart, UsageError
from .rank.addresses import own_addresses

LOST_AFTER = 16.0
"""Seconds that a process may be out of reach before its ranks count as dead; it then ends them itself."""
TOLD_EVERY = 0.5
NO_ANSWER = "it does not answer any more"

Progress = Callable[[str], None]


@dataclass
class Task:
    """One process of the scheduler's."""

    uuid: str
    joins: Mapping[str, Any]
    """What it said of itself: see `rank.join.Joined`."""
    prepared: Mapping[str, Any] | None = None
    heard: int = 0
    """Number of the last event."""
    ranks: dict[int, int] = field(default_factory=dict)
    """Its ranks' processes: pid to rank."""
    end: JoinedHost | None = None
    """The host it belongs to; None for one that nobody needs yet."""
    gone: bool = False
    fuse: threading.Timer | None = None

    @property
    def place(self) -> tuple[str, str]:
        """Tasks with the same are on one host."""
        return self.joins["host"], self.joins["address"]


class JoinedHost(HostEnd):
    """A host's tasks as one end: each starts one of its ranks, or those of another that has ended."""

    def __init__(
        self, name: str, tasks: Sequence[Task], lifeline: Lifeline, engine: Mapping[str, Any], on_event: OnEvent
    ):
        super().__init__(name, on_event)
        self._lifeline, self.tasks = lifeline, list(tasks)
        self.host = Host(name, False, ())
        url = str(tasks[0].joins["url"])
        self.lifeline_url, self.engine_info = url, {**engine, "interface": url.rpartition(":")[0]}
        for task in tasks:
            task.end = self

    @property
    def place(self) -> tuple[str, str]:
        """That of its tasks."""
        return self.tasks[0].place

    @property
    def told(self) -> Told:
        """Its network."""
        task = self.tasks[0]
        return Told((task.prepared or {}).get("addresses", ()), task.joins["address"])

    @property
    def platform(self) -> Platform:
        """What the host says it can run: with the devices of all its tasks, where each is shown one of its own."""
        platforms = [Platform(**task.prepared["platform"]) for task in self.tasks if task.prepared is not None]
        seen = max(platform.cuda_devices for platform in platforms)
        return replace(platforms[0], cuda_devices=max(seen, len(self.cuda)) if seen else 0)

    @property
    def cuda(self) -> tuple[str, ...]:
        """The CUDA devices that the scheduler gave its tasks; empty where it named none."""
        devices = [visible_devices({"CUDA_VISIBLE_DEVICES": task.joins["cuda"]}) for task in self.tasks]
        # A scheduler shows each of its tasks the devices of the host, or that task's own one.
        alike = len(set(devices)) == 1
        return devices[0] if alike else tuple(device for each in devices for device in each)

    def add(self, task: Task) -> None:
        """Another process on this host."""
        task.end = self
        self.tasks.append(task)

    def hear_from(self, task: Task, event: dict[str, Any]) -> None:
        """An event of one of the tasks."""
        if event["event"] == "started":
            task.ranks[event["pid"]] = event["rank"]
        elif event["event"] == "ended":
            task.ranks.pop(event["pid"], None)
        self._hear(event)

    def lost(self, task: Task, because: str) -> None:
        """One of the tasks is no more."""
        for pid, rank in list(task.ranks.items()):
            with self._changed:
                self._living.discard(pid)
                self._changed.notify_all()
            self._on_event({"event": "lost", "rank": rank, "pid": pid, "because": because})
        task.ranks.clear()
        if not self._present:
            self._has_gone()

    @property
    def _present(self) -> list[Task]:
        return [task for task in self.tasks if not task.gone]

    def _order(self, **order: Any) -> None:
        present = self._present
        if order["do"] == "end":
            chosen = present
        elif order["do"] == "signal":
            chosen = [task for task in present if order["pid"] in task.ranks]
        elif order["do"] == "start":
            return self._start(order["ranks"], present)
        else:
            chosen = present[:1]
        for task in chosen:
            self._lifeline.tell(task.uuid, order)

    def _start(self, ranks: Sequence[Mapping[str, Any]], present: Sequence[Task]) -> None:
        given = {task.uuid: len(task.ranks) for task in present}
        for settings in ranks:
            task = min(present, key=lambda task: given[task.uuid], default=None)
            if task is None or task.prepared is None:
                return
            given[task.uuid] += 1
            folder = Path(task.prepared["directory"])
            self.directory = folder
            start = {**settings, "directory": str(folder / f"rank-{settings['rank']}")}
            self._lifeline.tell(task.uuid, {"do": "start", "ranks": [start]})

    def _how_ended(self) -> dict[str, Any]:
        return {"event": "host gone", "host": self.name, "because": "the process that joined from there has ended"}


class Door:
    """Where tasks come in. `heard` takes the lifeline's messages and passes on those that are not for it."""

    def __init__(self, otherwise: Handler, file: Path | None, command: str) -> None:
        """`command` is what the scheduler is to run; empty without a `file`, where ipyparallel's engines are to."""
        self._otherwise, self._file, self.command = otherwise, file, command
        self._tasks: dict[str, Task] = {}
        self._changed = threading.Condition()
        self._settings: dict[str, Any] = {}
        self._lifeline: Lifeline | None = None
        self._engine: Mapping[str, Any] = {}
        self._closing = False

    def open(self, lifeline: Lifeline, token: str, engine: Mapping[str, Any]) -> dict[str, Any]:
        """Write the join file, which holds the keys; returns its content. Raises UsageError where it cannot be."""
        self._lifeline, self._engine = lifeline, engine
        port = lifeline.url.rpartition(":")[2]
        found = [address.partition("/")[0] for address in own_addresses()] or [LOOPBACK]
        urls = [f"tcp://{address}:{port}" for address in found]
        self._settings = {"urls": urls, "key": lifeline.keys[0], "token": token}
        if self._file is not None:
            _write(self._file, self._settings)
        return self._settings

    def close(self) -> None:
        """Take the file away, and end those that nobody needed."""
        with self._changed:
            self._closing = True
            tasks = list(self._tasks.values())
        for task in tasks:
            if task.fuse is not None:  # it must not go off in a cluster that is down
                task.fuse.cancel()
                self._gone(task, NO_ANSWER)
        spare = [task for task in tasks if task.end is None and not task.gone]
        for task in spare:
            self._tell(task, do="end")
        with self._changed:
            self._changed.wait_for(lambda: all(task.gone for task in spare), GONE_WITHIN)
        # Without a token nothing was written: what is there is another cluster's.
        token = self._settings.get("token")
        if self._file is not None and token is not None and _is_join_file(self._file, token):
            self._file.unlink(missing_ok=True)

    # In the lifeline's thread.

    def heard(self, uuid: str, header: dict[str, Any], buffers: Sequence[Any]) -> None:
        """A message: a task's, or a rank's."""
        if "joins" in header:
            self._greeted(uuid, header["joins"])
        elif uuid in self._tasks:
            self._told(self._tasks[uuid], header)
        else:
            self._otherwise(uuid, header, buffers)

    def lost(self, uuid: str) -> bool:
        """A connection closed; returns whether it was a task's."""
        task = self._tasks.get(uuid)
        if task is None:
            return False
        with self._changed:
            closing = self._closing
            if not task.gone and not closing:
                task.fuse = threading.Timer(LOST_AFTER, self._gone, [task, NO_ANSWER])
                task.fuse.daemon = True
                task.fuse.start()
        if closing:  # nobody waits for it to connect anew
            self._gone(task, NO_ANSWER)
        return True

    def _greeted(self, uuid: str, joins: Mapping[str, Any]) -> None:
        with self._changed:
            task = self._tasks.get(uuid)
            if task is None:
                task = self._tasks[uuid] = Task(uuid, joins)
            fuse, task.fuse = task.fuse, None
        if fuse is not None:
            fuse.cancel()
        if task.gone:  # it was given up; its ranks are nobody's any more
            self._tell(task, do="end")

    def _told(self, task: Task, header: Mapping[str, Any]) -> None:
        event = header["event"]
        if header["number"] <= task.heard:
            return  # sent again after a reconnect
        task.heard = header["number"]
        if event["event"] == "gone":
            self._gone(task, "the process that its scheduler started there has ended")
        elif event["event"] == "prepared":
            with self._changed:
                task.prepared = event
                self._changed.notify_all()
        elif task.end is not None:
            task.end.hear_from(task, event)
        elif event["event"] == "trouble":
            with self._changed:
                task.prepared = {"trouble": str(event["text"]).strip().splitlines()[-1]}
                self._changed.notify_all()

    def _gone(self, task: Task, because: str) -> None:
        with self._changed:
            gone, task.gone = task.gone, True
            self._changed.notify_all()
        if task.end is not None and not gone:
            task.end.lost(task, because)

    def _tell(self, task: Task, **order: Any) -> None:
        assert self._lifeline is not None
        self._lifeline.tell(task.uuid, order)

    # For the cluster.

    def gather(
        self, count: int | None, timeout: float, progress: Progress, on_event: Callable[[str], OnEvent]
    ) -> tuple[list[Host], dict[str, JoinedHost]]:
        """Wait for `count` tasks, by default as many as their launcher says; returns each rank's host, and the ends.

        Raises CannotStart where they do not come within `timeout` seconds, or differ from the notebook.
        """
        tasks = self._wait(count, timeout, progress)
        numbers = {task.joins["number"] for task in tasks}
        if len(numbers) == len(tasks) and None not in numbers:
            tasks.sort(key=lambda task: int(task.joins["number"]))
        else:  # in order of arrival, those of a host together
            places = list(dict.fromkeys(task.place for task in tasks))
            tasks.sort(key=lambda task: places.index(task.place))
        self._refuse(tasks)
        ends = self._ends(tasks, on_event)
        for number, task in enumerate(tasks):
            self._tell(task, do="welcome", text=f"{task.joins['host']} is rank {number} of {len(tasks)}.")
        return [task.end.host for task in tasks if task.end is not None], ends

    def _wait(self, count: int | None, timeout: float, progress: Progress) -> list[Task]:
        deadline, told = time.monotonic() + timeout, ""
        by = f"Started by: {self.command}" if self.command else "ipyparallel's engines start them"
        while True:
            with self._changed:
                here = [task for task in self._tasks.values() if task.prepared is not None and not task.gone]
                wanted = count or next((task.joins["size"] for task in here if task.joins["size"]), None)
                if wanted is not None and len(here) >= wanted:
                    progress("")
                    return here[:wanted]
                left = deadline - time.monotonic()
                said = self._so_far(here, wanted)
                if here and wanted is None:
                    progress("")
                    raise CannotStart(
                        f"{here[0].joins['host']} has joined, and its launcher does not tell how many there will be: "
                        "say so with -n."
                    )
            if left <= 0:
                progress("")
                raise CannotStart(f"{said} within {timeout:g} s. {by}")
            if told != said:
                told = said
                progress(f"{said}. {by}")
            with self._changed:
                self._changed.wait(min(left, TOLD_EVERY))

    @staticmethod
    def _so_far(here: Sequence[Task], wanted: int | None) -> str:
        if not here:
            return f"0 of {wanted} ranks have joined" if wanted else "no rank has joined"
        hosts = ", ".join(dict.fromkeys(task.joins["host"] for task in here))
        return f"{len(here)} of {wanted} ranks have joined (on {hosts})"

    @staticmethod
    def _refuse(tasks: Sequence[Task]) -> None:
        """Raise CannotStart for those that are not as the notebook is, each host once."""
        said = {}
        for task in tasks:
            prepared, name = task.prepared or {}, task.joins["host"]
            if "trouble" in prepared:
                said[name] = f"{name}: {prepared['trouble']}."
            elif differs := differing(prepared["versions"]):
                said[name] = f"{name} differs from this notebook:\n{listing(differs, task.joins['python'])}"
        if said:
            raise CannotStart("\n".join(said.values()))

    def _ends(
        self, tasks: Sequence[Task], on_event: Callable[[str], OnEvent], taken: Collection[str] = ()
    ) -> dict[str, JoinedHost]:
        """The hosts of these tasks, by names that are not `taken`."""
        assert self._lifeline is not None
        ends = {}
        for name, members in _named(tasks, taken).items():
            ends[name] = JoinedHost(name, members, self._lifeline, self._engine, on_event(name))
        for task in tasks:
            if task.gone and task.end is not None:  # before it was known where to
                task.end.lost(task, NO_ANSWER)
        return ends

    def refill(
        self, hosts: Sequence[Host], ends: Mapping[str, JoinedHost], on_event: Callable[[str], OnEvent]
    ) -> tuple[list[Host], dict[str, JoinedHost]]:
        """`hosts`, with those that are gone replaced by tasks that came since, and the ends of all that live.

        Raises CannotStart where too few came: nobody but the scheduler can start one. Those that came then wait on.
        """
        living = {name: end for name, end in ends.items() if end.alive}
        with self._changed:
            spare = [each for each in self._tasks.values() if each.end is None and each.prepared and not each.gone]
        chosen = self._choose(hosts, ends, living, spare)
        tasks = list({task.uuid: task for task in chosen.values()}.values())
        self._refuse(tasks)
        by_place = {end.place: end for end in living.values()}
        strangers = [task for task in tasks if task.place not in by_place]
        for task in tasks:
            if task.place in by_place:
                by_place[task.place].add(task)
        living |= self._ends(strangers, on_event, living)
        found: list[Host] = []
        for number, host in enumerate(hosts):
            end = chosen[number].end if number in chosen else living[host.name]
            assert end is not None
            found.append(host if number not in chosen and host.addresses else end.host)
        return found, living

    def _choose(
        self,
        hosts: Sequence[Host],
        ends: Mapping[str, JoinedHost],
        living: Collection[str],
        spare: Sequence[Task],
    ) -> dict[int, Task]:
        """The task for each of `hosts` that is gone, by its index; none is taken yet."""
        chosen: dict[int, Task] = {}
        left = list(spare)
        for index, host in enumerate(hosts):
            if host.name in living:
                continue
            place = ends[host.name].place
            task = next((task for task in chosen.values() if task.place == place), None)
            if task is None and not left:
                again = (
                    f"run `{self.command}` there once more and then %distributed heal" if self.command else "up again"
                )
                raise CannotStart(
                    f"{host.name}: what joined from there has ended, and only its scheduler can start it: {again}. Or "
                    "go on without it: %distributed resize N."
                )
            if task is None:
                task = left.pop(next((at for at, each in enumerate(left) if each.place == place), 0))
            chosen[index] = task
        return chosen


def _named(tasks: Sequence[Task], taken: Collection[str]) -> dict[str, list[Task]]:
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


def _write(path: Path, settings: Mapping[str, Any]) -> None:
    if path.exists() and not _is_join_file(path):
        raise UsageError(f"--join {path}: that file is something else; name one that is not there.")
    try:
        # A name that nobody can have taken before, in a folder that others may write in; 0600.
        descriptor, new = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with open(descriptor, "w") as file:
            json.dump(dict(settings), file)
        Path(new).replace(path)
    except OSError as error:
        raise UsageError(f"--join {path}: it cannot be written ({error.strerror}).") from None


def _is_join_file(path: Path, token: str | None = None) -> bool:
    """Whether it is one, and with `token`, whether it is that cluster's."""
    try:
        content = json.loads(path.read_text())
        return "urls" in content and (token is None or content["token"] == token)
    except (OSError, ValueError, TypeError, KeyError):
        return False
