"""The notebook's end of one host process: sends requests, receives events."""

from __future__ import annotations

import itertools
import logging
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeAlias

from allranks.errors import CannotStart
from allranks.messages.host_messages import (
    DescribeCluster,
    End,
    Ended,
    Forget,
    Gone,
    HostAnswer,
    HostEvent,
    HostOrder,
    Keep,
    Launch,
    Launched,
    Offer,
    Ports,
    Present,
    RankConfig,
    Runs,
    Signal,
    Start,
    Started,
    Trouble,
    begins_event,
    read_event,
    to_line,
)
from allranks.messages.wire import NotUnderstood

ConnectionInfo: TypeAlias = dict[str, Any]
"""Settings with which an engine or client reaches ipyparallel's controller: `interface`, ports by name, and keys."""


@dataclass(frozen=True)
class HostGone:
    """A host process has ended, or can no longer be reached."""

    because: str = ""
    code: int = 0
    """Exit code of the host process, as in `subprocess.Popen.returncode`; 0 if it is not a child of this process."""


@dataclass(frozen=True)
class HostAway:
    """A host is out of reach; its ranks continue, and logins are retried."""

    why: str = ""
    """Why the last login failed, as a clause; empty before the first attempt."""


@dataclass(frozen=True)
class HostBack:
    """A host that was away is connected again."""


@dataclass(frozen=True)
class RankLost:
    """A rank was lost together with its parent process, which the scheduler had started."""

    rank: int
    pid: int
    because: str


HostReport: TypeAlias = HostEvent | HostGone | HostAway | HostBack | RankLost
OnEvent = Callable[[HostReport], None]
ANSWER_WITHIN, GONE_WITHIN = 10.0, 8.0
"""Timeouts, in seconds: for a host process to answer, and to end everything before it is itself killed."""


def unheard(_event: HostReport) -> None:
    """Placeholder until `PipedHost.follow` sets the real handler; no event is read before that."""


class HostEnd:
    """The notebook's end of one host process: sends requests, receives events. Subclasses provide the connection."""

    def __init__(self, name: str, on_event: OnEvent) -> None:
        self.name = name
        self._on_event = on_event
        self._gone = threading.Event()
        self._changed = threading.Condition()
        self._living: set[int] = set()
        self._ended_pids: set[int] = set()
        self._starting: set[str] = set()
        """Names, as in `Present`, of the requested processes that the host process has not yet reported as started."""
        self._answers: dict[int, HostAnswer] = {}
        self._questions = itertools.count(1)
        self.first_event_at = {"": time.monotonic()}
        """The `time.monotonic` at which the first event of each type arrived, by the type's name.

        ``""`` stands for the creation of this object.
        """
        self.directory = Path()
        """The host process's private folder, on its host."""
        self.engine_info: ConnectionInfo = {}
        """Connection info with which an engine on the host reaches the controller."""
        self.lifeline_url = ""
        """URL at which a rank on the host reaches the notebook."""
        self.printed: deque[str] = deque(maxlen=5)
        """The last lines received that are not events."""
        self._speaks = True
        """Whether a line that looks like an event comes from the host process; False while a login shell may print."""
        self.trouble = ""
        """The last error that the host process reported; empty if none."""
        self.ended: HostGone | None = None
        """How the host process ended; None while it runs."""

    def keep(
        self,
        lease: float | None,
        file: Path | None = None,
        *,
        longer: float = 0.0,
        saver: Sequence[str] = (),
        says: str = "",
    ) -> Callable[[], HostAnswer | None]:
        """Have ranks outlive this process by `lease` seconds (None: no limit), and the host process by `longer` more.

        `file` is removed when the host process ends. When the lease has expired, the host process runs the command
        `saver`, whose output goes to the file `says`.

        Returns a function that waits for the host's confirmation and returns it; None if it does not arrive in time, or
        if the host is away. Until the host process confirms, the ranks end with the connection.
        """
        return self._ask(Keep(lease, str(file) if file is not None else None, longer, list(saver), says))

    def describe(self, order: DescribeCluster) -> None:
        """Have the host process write a description of its cluster to a file, for commands in a shell."""
        self._order(order)

    def start(self, ranks: Sequence[RankConfig]) -> None:
        """Start one engine for each of `ranks`."""
        self._starting |= {f"rank {each.rank}" for each in ranks}
        self._order(Start(list(ranks)))

    def launch(self, command: Sequence[str], env: Mapping[str, str], ranks: Sequence[RankConfig]) -> None:
        """Start all ranks through a launcher such as mpirun.

        `{join}` in `command` is replaced by the path of the file from which each rank reads its settings.
        """
        self._starting.add("launcher")
        join = str(self.directory / "ranks.json")
        self._order(Launch([part.replace("{join}", join) for part in command], dict(env), list(ranks), join))

    def signal(self, pid: int, number: int) -> None:
        self._order(Signal(pid, number))

    def ask_ports(self, count: int) -> Callable[[], list[int]]:
        """Ask the host for `count` free TCP ports.

        Returns a function that waits for them. It raises CannotStart if the host does not answer.
        """
        ports = Ports(count)
        wait = partial(self._answer, ports) if self.away else self._ask(ports)  # it may be back meanwhile
        return lambda: self._reported_ports(wait())

    def _reported_ports(self, answer: HostAnswer | None) -> list[int]:
        if answer is None:
            if not self.alive:
                raise CannotStart(
                    f"{self.name}: the process that starts its ranks has ended. Try again: it is started again."
                )
            if self.away:
                raise CannotStart(f"{self.name} is out of reach. To go on without its ranks: %distributed resize N")
            raise CannotStart(
                f"{self.name} did not report free ports within {ANSWER_WITHIN:g} s. It may be very busy: try again."
            )
        return list(answer.ports)

    def offer(self, cluster: str, ranks: Sequence[RankConfig]) -> None:
        """Write the settings of `ranks` on the host, for ranks that a launcher starts there. Raises CannotStart."""
        if self._answer(Offer(cluster, list(ranks))) is None:
            raise CannotStart(f"{self.name} could not write its ranks' settings. Is a disk full? {self.log()}".rstrip())

    def runs(self, pid: int) -> bool:
        """Whether process `pid` runs on the host; if the host process does not answer, returns `alive`."""
        answer = self._answer(Runs(pid))
        return self.alive if answer is None else answer.pid == pid

    def wait_ended(self, pid: int, within: float) -> bool:
        """Wait up to `within` seconds for a launcher's process `pid` to end; returns whether it has ended."""
        deadline = time.monotonic() + within
        while self.runs(pid):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.1)
        return True

    def _answer(self, order: HostOrder) -> HostAnswer | None:
        """Send a request and return its answer; None if the host is away or does not answer in time."""
        return None if self.away else self._ask(order)()

    def _ask(self, order: HostOrder) -> Callable[[], HostAnswer | None]:
        """Send a request now, or when the host is reached again.

        Returns a function that waits for the answer, and returns None if it does not arrive in time. Requests and
        answers are matched by number, since an answer may arrive too late. While the host is away, the function
        returns None at once.
        """
        question = next(self._questions)
        self._order(order, question)

        def answer() -> HostAnswer | None:
            if self.away:
                return None
            with self._changed:
                self._changed.wait_for(lambda: question in self._answers or self._gone.is_set(), ANSWER_WITHIN)
                return self._answers.pop(question, None)

        return answer

    def wait_started(self, within: float) -> None:
        """Wait up to `within` seconds until all requested processes have been reported as started, and handled.

        Returns at once if the host is away or gone, and early if the host process reports an error.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._starting or self._gone.is_set() or self.away, within)

    def wait_gone(self, pids: Iterable[int], within: float) -> set[int]:
        """Wait up to `within` seconds for processes to end; returns the pids that still run.

        If the host is away or gone, returns no pids, at once.
        """
        wanted = set(pids)
        with self._changed:
            self._changed.wait_for(lambda: not wanted & self._living or self._gone.is_set() or self.away, within)
            return set() if self._gone.is_set() or self.away else wanted & self._living

    def forget(self, uuids: Sequence[str]) -> None:
        """Report engines as ended, so that ipyparallel's clients do not wait for them."""
        self._order(Forget(list(uuids)))

    def end(self) -> None:
        """End the cluster's processes on the host, and remove its files there; waits up to `GONE_WITHIN` seconds."""
        self._order(End())
        self._gone.wait(GONE_WITHIN)

    def wait_end(self) -> None:
        """Wait up to `GONE_WITHIN` seconds for an `end` that runs in another thread."""
        self._gone.wait(GONE_WITHIN)

    @property
    def away(self) -> bool:
        """Whether the host is out of reach at the moment; requests are sent once it is reached again."""
        return False

    @property
    def alive(self) -> bool:
        return not self._gone.is_set()

    def log(self) -> str:
        """The last error that the host process reported, and any other output that explains it; empty if none."""
        return self.trouble

    def _order(self, order: HostOrder, number: int | None = None) -> None:
        raise NotImplementedError

    def _note(self, event: HostEvent) -> None:
        self.first_event_at.setdefault(type(event).__name__, time.monotonic())

    def _hear(self, event: HostEvent) -> None:
        """Handle an event of the host process, and pass it on to the notebook."""
        if isinstance(event, Present):
            self._catch_up(event)
        self._on_event(event)
        with self._changed:
            match event:
                case Started(number, pid):
                    self._living.add(pid)
                    self._starting.discard(f"rank {number}")
                case Launched(pid):
                    self._living.add(pid)
                    self._starting.discard("launcher")
                case Ended(pid=pid):
                    self._living.discard(pid)
                    self._ended_pids.add(pid)
                case HostAnswer(number):
                    self._answers[number] = event
                case Trouble(text):
                    self.trouble = last_line(text)
                    self._starting.clear()  # the failed request may be the one that starts them
            self._changed.notify_all()

    def _catch_up(self, present: Present) -> None:
        """Handle missed events: processes that were started, and processes that ended."""
        for name, pid in present.processes.items():
            kind, _, number = name.partition(" ")
            if kind == "rank" and pid not in self._living:
                self._hear(Started(int(number), pid))
        self._living.update(present.processes.values())
        for ended in present.ended:
            if ended.pid not in self._ended_pids:
                self._hear(ended)

    def _hear_all(self, reader: IO[bytes]) -> bool:
        """Handle events until `reader` ends; returns whether the host process announced its end."""
        for line in reader:
            try:
                event = read_event(line)
            except NotUnderstood as error:
                if self._speaks and begins_event(line) >= 0:
                    self._hear(Trouble(f"{error}: it may have another version of allranks"))
                elif printed := line.decode(errors="replace").strip():  # output of a login shell
                    self.printed.append(printed)
                continue
            if isinstance(event, Gone):
                return True
            self._note(event)
            try:
                self._hear(event)
            except Exception:  # this thread must go on, or no rank's end on that host would be noticed
                logging.getLogger("allranks").exception("an event of %s could not be handled", self.name)
        return False

    def _has_gone(self) -> None:
        """Report that the host process has ended or can no longer be reached."""
        self._gone.set()
        with self._changed:
            self._changed.notify_all()
        self.ended = self._how_ended()
        self._on_event(self.ended)

    def _how_ended(self) -> HostGone:
        raise NotImplementedError


def last_line(text: str) -> str:
    """The last line of a traceback, which says what went wrong."""
    return (text.strip().splitlines() or [""])[-1]


class PipedHost(HostEnd):
    """A host process that receives requests and sends events as JSON lines over two streams."""

    def __init__(self, name: str, reader: IO[bytes], writer: IO[bytes]) -> None:
        super().__init__(name, unheard)
        self._reader, self._writer = reader, writer
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def follow(self, on_event: OnEvent) -> None:
        """Start the thread that reads the host process's events and passes them to `on_event`."""
        self._on_event = on_event
        threading.Thread(target=self._listen, name=f"allranks-host-{self.name}", daemon=True).start()

    def end(self) -> None:
        """See `HostEnd.end`."""
        super().end()
        if self._process is not None:
            if not self._gone.is_set():
                self._process.kill()
            try:
                self._process.wait(GONE_WITHIN)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def _order(self, order: HostOrder, number: int | None = None) -> None:
        with self._lock:
            try:
                self._writer.write(to_line(order, number) + b"\n")
                self._writer.flush()
            except (BrokenPipeError, ConnectionError, ValueError):
                self._gone.set()

    def _listen(self) -> None:
        self._hear_all(self._reader)
        self._has_gone()

    def _how_ended(self) -> HostGone:
        return HostGone(code=self._process.wait() if self._process is not None else 0)
