"""Accepts ranks started by a scheduler or by ipyparallel's engines: their processes connect to the notebook.

There is no host to log in to (as `hosts.ssh` does), so the lifeline and the engines' side of the controller listen on
all addresses of this machine, for processes that know the key and the token. A scheduler's processes read these from
the join file; engines pass them on. Each process that connects acts as one host process
(`allranks.rank.process.join_from_scheduler`): it receives requests and sends events over the lifeline.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from allranks.errors import CannotStart
from allranks.lifeline.head_end import Handler, Lifeline
from allranks.machine.addresses import own_addresses
from allranks.messages.events import Event, JoinedFrom, TaskEvent, TaskHello
from allranks.messages.host_messages import End, Gone, Prepared, Trouble, read_event, to_line
from allranks.messages.requests import Request, TaskOrder, Welcome
from allranks.messages.wire import Buffer
from allranks_backends.plan import Host

from .host_end import GONE_WITHIN, ConnectionInfo, OnEvent, last_line
from .join_file import JoinSettings, is_join_file, write_join_file
from .joined_host import JoinedHost, Task, in_rank_order, named, refuse, replacements, so_far
from .reachable_addresses import LOOPBACK

LOST_AFTER = 16.0
"""Seconds that a process may be unreachable before its ranks count as dead; the process then ends them itself."""
TOLD_EVERY = 0.5
NO_ANSWER = "it stopped responding"

END = TaskOrder(to_line(End()))

Progress = Callable[[str], None]


class Listener:
    """Accepts tasks. `receive` takes the lifeline's messages and passes messages of ranks to `otherwise`."""

    def __init__(self, otherwise: Handler, file: Path | None, command: str) -> None:
        """`file` is the join file, and `command` is what the scheduler runs.

        If ipyparallel's engines start the ranks, `file` is None, and `command` is empty.
        """
        self._otherwise, self._file, self.command = otherwise, file, command
        self._tasks: dict[str, Task] = {}
        self._changed = threading.Condition()
        self._settings: JoinSettings = {}
        self._lifeline: Lifeline | None = None
        self._engine: ConnectionInfo = {}
        self._closing = False

    def open(self, lifeline: Lifeline, token: str, engine: ConnectionInfo) -> JoinSettings:
        """Write the join file, if there is one, and return its content. Raises UsageError if it cannot be written."""
        self._lifeline, self._engine = lifeline, engine
        port = lifeline.url.rpartition(":")[2]
        found = [address.partition("/")[0] for address in own_addresses()] or [LOOPBACK]
        urls = [f"tcp://{address}:{port}" for address in found]
        self._settings = {"urls": urls, "key": lifeline.keys[0], "token": token}
        if self._file is not None:
            write_join_file(self._file, self._settings)
        return self._settings

    def close(self) -> None:
        """Remove the join file, and end the tasks that were not needed."""
        with self._changed:
            self._closing = True
            tasks = list(self._tasks.values())
        for task in tasks:
            if task.fuse is not None:  # the timer must not fire in a cluster that is down
                task.fuse.cancel()
                self._gone(task, NO_ANSWER)
        spare = [task for task in tasks if task.end is None and not task.gone]
        for task in spare:
            self._tell(task, END)
        with self._changed:
            self._changed.wait_for(lambda: all(task.gone for task in spare), GONE_WITHIN)
        # Without a token nothing was written, so a file at that path is another cluster's.
        token = self._settings.get("token")
        if self._file is not None and token is not None and is_join_file(self._file, token):
            self._file.unlink(missing_ok=True)

    # In the lifeline's thread.

    def receive(self, uuid: str, event: Event, buffers: Sequence[Buffer]) -> None:
        """Handle a message of a task, or pass on a message of a rank."""
        if isinstance(event, TaskHello):
            self._greeted(uuid, event.place)
        elif isinstance(event, TaskEvent) and uuid in self._tasks:
            self._told(self._tasks[uuid], event)
        elif uuid not in self._tasks:
            self._otherwise(uuid, event, buffers)

    def lost(self, uuid: str) -> bool:
        """Handle the loss of a connection; returns whether it was the connection of a task."""
        task = self._tasks.get(uuid)
        if task is None:
            return False
        with self._changed:
            closing = self._closing
            if not task.gone and not closing:
                task.fuse = threading.Timer(LOST_AFTER, self._gone, [task, NO_ANSWER])
                task.fuse.daemon = True
                task.fuse.start()
        if closing:  # so do not wait for it to reconnect
            self._gone(task, NO_ANSWER)
        return True

    def _greeted(self, uuid: str, joins: JoinedFrom) -> None:
        with self._changed:
            task = self._tasks.get(uuid)
            if task is None:
                task = self._tasks[uuid] = Task(uuid, joins)
            fuse, task.fuse = task.fuse, None
        if fuse is not None:
            fuse.cancel()
        if task.gone:  # the task was given up, and its ranks with it
            self._tell(task, END)

    def _told(self, task: Task, message: TaskEvent) -> None:
        if message.number <= task.received:
            return  # sent again after a reconnect
        event = read_event(message.line)
        task.received = message.number
        if isinstance(event, Gone):
            self._gone(task, "the process that its scheduler started there has ended")
        elif isinstance(event, Prepared):
            with self._changed:
                task.prepared = event
                self._changed.notify_all()
        elif task.end is not None:
            task.end.hear_from(task, event)
        elif isinstance(event, Trouble):
            with self._changed:
                task.trouble = last_line(event.text)
                self._changed.notify_all()

    def _gone(self, task: Task, because: str) -> None:
        with self._changed:
            gone, task.gone = task.gone, True
            self._changed.notify_all()
        if task.end is not None and not gone:
            task.end.lost(task, because)

    def _tell(self, task: Task, request: Request) -> None:
        assert self._lifeline is not None
        self._lifeline.tell(task.uuid, request)

    # For the cluster.

    def gather(
        self, count: int | None, timeout: float, progress: Progress, on_event: Callable[[str], OnEvent]
    ) -> tuple[list[Host], dict[str, JoinedHost]]:
        """Wait for `count` tasks (None: as many as the launcher reports); returns each rank's host, and hosts by name.

        Raises CannotStart if the tasks do not join within `timeout` seconds, if one could not prepare or has other
        versions than the notebook, or if `count` is None and the launcher reports no number.
        """
        tasks = in_rank_order(self._wait(count, timeout, progress))
        refuse(tasks)
        ends = self._ends(tasks, on_event)
        for number, task in enumerate(tasks):
            self._tell(task, Welcome(f"{task.joins.host} is rank {number} of {len(tasks)}."))
        return [task.end.host for task in tasks if task.end is not None], ends

    def _wait(self, count: int | None, timeout: float, progress: Progress) -> list[Task]:
        deadline, told = time.monotonic() + timeout, ""
        by = f"Started by: {self.command}" if self.command else "Started by ipyparallel's engines"
        while True:
            with self._changed:
                here = [task for task in self._tasks.values() if task.answered and not task.gone]
                wanted = count or next((task.joins.size for task in here if task.joins.size), None)
                if wanted is not None and len(here) >= wanted:
                    progress("")
                    return here[:wanted]
                left = deadline - time.monotonic()
                said = so_far(here, wanted)
                if here and wanted is None:
                    progress("")
                    raise CannotStart(
                        f"{here[0].joins.host} has joined, but its launcher does not report how many ranks there "
                        "will be: set -n."
                    )
            if left <= 0:
                progress("")
                raise CannotStart(f"{said} within {timeout:g} s. {by}")
            if told != said:
                told = said
                progress(f"{said}. {by}")
            with self._changed:
                self._changed.wait(min(left, TOLD_EVERY))

    def _ends(
        self, tasks: Sequence[Task], on_event: Callable[[str], OnEvent], taken: Collection[str] = ()
    ) -> dict[str, JoinedHost]:
        """Create the hosts of `tasks`, with names that are not in `taken`."""
        assert self._lifeline is not None
        ends = {}
        for name, members in named(tasks, taken).items():
            ends[name] = JoinedHost(name, members, self._lifeline, self._engine, on_event(name))
        for task in tasks:
            if task.gone and task.end is not None:  # it was lost before it had a host to report the loss
                task.end.lost(task, NO_ANSWER)
        return ends

    def refill(
        self, hosts: Sequence[Host], ends: Mapping[str, JoinedHost], on_event: Callable[[str], OnEvent]
    ) -> tuple[list[Host], dict[str, JoinedHost]]:
        """Return `hosts` with each gone host replaced by one that has joined since, and all living hosts by name.

        Raises CannotStart if too few tasks joined, since only the scheduler can start tasks, or if a new task could not
        prepare or has other versions than the notebook. Spare tasks keep waiting.
        """
        living = {name: end for name, end in ends.items() if end.alive}
        with self._changed:
            spare = [each for each in self._tasks.values() if each.end is None and each.answered and not each.gone]
        chosen = replacements(hosts, ends, living, spare, self.command)
        tasks = list({task.uuid: task for task in chosen.values()}.values())
        refuse(tasks)
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
