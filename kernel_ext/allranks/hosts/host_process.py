"""The notebook's end of one host process: orders down, events up."""

from __future__ import annotations

import itertools
import logging
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeAlias

from allranks.errors import CannotStart
from allranks.messages.host_messages import (
    Describe,
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


@dataclass(frozen=True)
class HostGone:
    """A host process is no more."""

    because: str = ""
    code: int = 0
    """Of this machine's, as in `subprocess.Popen.returncode`."""


@dataclass(frozen=True)
class HostAway:
    """A host cannot be reached at the moment (`why`, after a try); its ranks go on, and it is tried again."""

    why: str = ""


@dataclass(frozen=True)
class HostBack:
    """A host that was away is reached again."""


@dataclass(frozen=True)
class RankLost:
    """A rank went with the process that its scheduler had started."""

    rank: int
    pid: int
    because: str


HostReport: TypeAlias = HostEvent | HostGone | HostAway | HostBack | RankLost
OnEvent = Callable[[HostReport], None]
ANSWER_WITHIN, GONE_WITHIN = 10.0, 8.0
"""Seconds a host process gets to answer, and to end everything before it is killed itself."""


def unheard(_event: HostReport) -> None:
    """Before `PipedHost.follow`, which reads the first event."""


class HostEnd:
    """The notebook's end of one host process: orders down, events up. How they travel is for subclasses to say."""

    def __init__(self, name: str, on_event: OnEvent) -> None:
        self.name = name
        self._on_event = on_event
        self._gone = threading.Event()
        self._changed = threading.Condition()
        self._living: set[int] = set()
        self._ended_pids: set[int] = set()
        self._starting: set[str] = set()
        """What it was ordered to start and has not reported yet, named as in `Present`."""
        self._answers: dict[int, HostAnswer] = {}
        self._questions = itertools.count(1)
        self.directory = Path()
        """Its private folder, on that host."""
        self.engine_info: dict[str, Any] = {}
        """How an engine there reaches the controller."""
        self.lifeline_url = ""
        """How a rank there reaches the notebook."""
        self.printed: deque[str] = deque(maxlen=5)
        """The last lines that came and are no events."""
        self._speaks = True
        """Whether a line that looks like an event is one: it is not a login shell's."""
        self.trouble = ""
        """Why it could not carry out an order."""
        self.ended: HostGone | None = None
        """How the host process ended, once it has."""

    def keep(
        self,
        lease: float | None,
        file: Path | None = None,
        *,
        longer: float = 0.0,
        saver: Sequence[str] = (),
        says: str = "",
    ) -> Callable[[], HostAnswer | None]:
        """Have it outlive this process by the `lease`, and `longer` itself; `file` is removed when it ends.

        When the lease has run out, it runs the command `saver`, which writes to the file `says`.

        The function returned waits until it does: until then its ranks end with the connection to it.
        """
        return self._ask(Keep(lease, str(file) if file is not None else None, longer, list(saver), says))

    def describe(self, order: Describe) -> None:
        """Have it write down which cluster it belongs to."""
        self._order(order)

    def start(self, ranks: Sequence[RankConfig]) -> None:
        """Start one engine for each of these."""
        self._starting |= {f"rank {each.rank}" for each in ranks}
        self._order(Start(list(ranks)))

    def launch(self, command: Sequence[str], env: Mapping[str, str], ranks: Sequence[RankConfig]) -> None:
        """Start all ranks through a launcher such as mpirun; `{join}` in `command` is the file they read."""
        self._starting.add("launcher")
        join = str(self.directory / "ranks.json")
        self._order(Launch([part.replace("{join}", join) for part in command], dict(env), list(ranks), join))

    def signal(self, pid: int, number: int) -> None:
        self._order(Signal(pid, number))

    def ports(self, count: int) -> list[int]:
        """Free TCP ports of that host. Raises CannotStart where it does not answer."""
        answer = self._answer(Ports(count))
        if answer is None:
            if not self.alive:
                raise CannotStart(f"{self.name}: the process that starts its ranks has ended.")
            if self.away:
                raise CannotStart(f"{self.name} is out of reach. %distributed resize can go on without its ranks.")
            raise CannotStart(f"{self.name} did not report free ports within {ANSWER_WITHIN:g} s.")
        return list(answer.ports)

    def offer(self, cluster: str, ranks: Sequence[RankConfig]) -> None:
        """Lay these settings where the ranks of a launcher find them there. Raises CannotStart."""
        if self._answer(Offer(cluster, list(ranks))) is None:
            raise CannotStart(f"{self.name} could not write its ranks' settings.")

    def runs(self, pid: int) -> bool:
        """Whether there is such a process on that host, as far as it answers."""
        answer = self._answer(Runs(pid))
        return self.alive if answer is None else answer.pid == pid

    def wait_ended(self, pid: int, within: float) -> bool:
        """Wait until a process that a launcher started there has ended; whether it has."""
        deadline = time.monotonic() + within
        while self.runs(pid):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.1)
        return True

    def _answer(self, order: HostOrder) -> HostAnswer | None:
        """Give an order and wait for its answer; not where the host is away."""
        return None if self.away else self._ask(order)()

    def _ask(self, order: HostOrder) -> Callable[[], HostAnswer | None]:
        """Give an order, now or when the host is reached again.

        The function returned waits for the answer, which carries the number of the question: one may come too late.
        It does not wait where the host is away.
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
        """Wait until it has reported all that it was ordered to start, and that is handled; not where it is away."""
        with self._changed:
            self._changed.wait_for(lambda: not self._starting or self._gone.is_set() or self.away, within)

    def wait_gone(self, pids: Iterable[int], within: float) -> set[int]:
        """Wait until these processes have ended; returns those that have not, none where the host is away."""
        wanted = set(pids)
        with self._changed:
            self._changed.wait_for(lambda: not wanted & self._living or self._gone.is_set() or self.away, within)
            return set() if self._gone.is_set() or self.away else wanted & self._living

    def forget(self, uuids: Sequence[str]) -> None:
        """These engines have ended: ipyparallel's clients must not wait for them."""
        self._order(Forget(list(uuids)))

    def end(self) -> None:
        """End every process and remove every file; returns when they are gone."""
        self._order(End())
        self._gone.wait(GONE_WITHIN)

    def wait_end(self) -> None:
        """Wait for an `end` in another thread."""
        self._gone.wait(GONE_WITHIN)

    @property
    def away(self) -> bool:
        """Whether it cannot be reached at the moment: what it is ordered is carried out when it can be."""
        return False

    @property
    def alive(self) -> bool:
        return not self._gone.is_set()

    def log(self) -> str:
        """What the host process complained of, if anything."""
        return self.trouble

    def _order(self, order: HostOrder, number: int | None = None) -> None:
        raise NotImplementedError

    def _hear(self, event: HostEvent) -> None:
        """Take an event of the host process in, and pass it on."""
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
                    self._starting.clear()  # it may have been about these
            self._changed.notify_all()

    def _catch_up(self, present: Present) -> None:
        """Hear what was missed: what has been started, and what has ended."""
        for name, pid in present.processes.items():
            kind, _, number = name.partition(" ")
            if kind == "rank" and pid not in self._living:
                self._hear(Started(int(number), pid))
        self._living.update(present.processes.values())
        for ended in present.ended:
            if ended.pid not in self._ended_pids:
                self._hear(ended)

    def _hear_all(self, reader: IO[bytes]) -> bool:
        """Hear what comes, until there is no more; returns whether the host process said that it ends."""
        for line in reader:
            try:
                event = read_event(line)
            except NotUnderstood as error:
                if self._speaks and begins_event(line) >= 0:
                    self._hear(Trouble(f"{error}: it may have another version of allranks"))
                elif printed := line.decode(errors="replace").strip():  # by a login shell
                    self.printed.append(printed)
                continue
            if isinstance(event, Gone):
                return True
            try:
                self._hear(event)
            except Exception:  # without this thread no death on that host would be known
                logging.getLogger("allranks").exception("an event of %s could not be handled", self.name)
        return False

    def _has_gone(self) -> None:
        """The host process is no more, or unreachable."""
        self._gone.set()
        with self._changed:
            self._changed.notify_all()
        self.ended = self._how_ended()
        self._on_event(self.ended)

    def _how_ended(self) -> HostGone:
        raise NotImplementedError


def last_line(text: str) -> str:
    """The line of a traceback that says what went wrong."""
    return (text.strip().splitlines() or [""])[-1]


class PipedHost(HostEnd):
    """A host process whose orders and events are JSON lines of two streams."""

    def __init__(self, name: str, reader: IO[bytes], writer: IO[bytes]) -> None:
        super().__init__(name, unheard)
        self._reader, self._writer = reader, writer
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def follow(self, on_event: OnEvent) -> None:
        """Hear its events, in a thread."""
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
            except subprocess.TimeoutExpired:  # an ssh that waits for its tunnels
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
