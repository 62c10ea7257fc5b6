"""The notebook's end of one host process: orders down, events up."""

from __future__ import annotations

import itertools
import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from .errors import CannotStart

OnEvent = Callable[[dict[str, Any]], None]
ANSWER_WITHIN = 10.0
"""Seconds a host process gets to answer."""
GONE_WITHIN = 8.0
"""Seconds the host process is given to end everything before it is killed itself."""


class HostEnd:
    """The notebook's end of one host process: orders down, events up. How they travel is for subclasses to say."""

    def __init__(self, name: str, on_event: OnEvent) -> None:
        self.name = name
        self._on_event = on_event
        self._gone = threading.Event()
        self._changed = threading.Condition()
        self._living: set[int] = set()
        self._answers: dict[int, dict[str, Any]] = {}
        self._questions = itertools.count(1)
        self.directory = Path()
        """Its private folder, on that host."""
        self.engine_info: dict[str, Any] = {}
        """How an engine there reaches the controller."""
        self.lifeline_url = ""
        """How a rank there reaches the notebook."""
        self.trouble = ""
        """Why it could not carry out an order."""
        self.ended: dict[str, Any] | None = None
        """How the host process ended, once it has."""

    def start(self, ranks: Sequence[Mapping[str, Any]]) -> None:
        """Start one engine for each of these settings (see `rank.config.RankConfig`)."""
        self._order(do="start", ranks=list(ranks))

    def launch(self, command: Sequence[str], env: Mapping[str, str], ranks: Sequence[Mapping[str, Any]]) -> None:
        """Start all ranks through a launcher such as mpirun; `{join}` in `command` is the file they read."""
        join = str(self.directory / "ranks.json")
        self._order(
            do="launch",
            command=[part.replace("{join}", join) for part in command],
            env=dict(env),
            rank_config={"ranks": list(ranks)},
            join=join,
        )

    def signal(self, pid: int, number: int) -> None:
        self._order(do="signal", pid=pid, number=number)

    def ports(self, count: int) -> list[int]:
        """Free TCP ports of that host. Raises CannotStart where it does not answer."""
        answer = self._answer(do="ports", count=count)
        if answer is None:
            late = f"{self.name} did not name free ports in {ANSWER_WITHIN:g} s."
            raise CannotStart(late if self.alive else f"{self.name}: what started ranks there has just ended.")
        return list(answer["ports"])

    def offer(self, cluster: str, ranks: Sequence[Mapping[str, Any]]) -> None:
        """Lay these settings where the ranks of a launcher find them there. Raises CannotStart."""
        if self._answer(do="offer", cluster=cluster, ranks=list(ranks)) is None:
            raise CannotStart(f"{self.name} could not write its ranks' settings.")

    def runs(self, pid: int) -> bool:
        """Whether there is such a process on that host, as far as it answers."""
        answer = self._answer(do="runs", pid=pid)
        return self.alive if answer is None else bool(answer["pid"] == pid)

    def wait_ended(self, pid: int, within: float) -> bool:
        """Wait until a process that a launcher started there has ended; whether it has."""
        deadline = time.monotonic() + within
        while self.runs(pid):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.1)
        return True

    def _answer(self, **order: Any) -> dict[str, Any] | None:
        """Give an order and wait for its answer, which carries the number of the question: one may come too late."""
        question = next(self._questions)
        self._order(**order, ask=question)
        with self._changed:
            self._changed.wait_for(lambda: question in self._answers or self._gone.is_set(), ANSWER_WITHIN)
            return self._answers.pop(question, None)

    def wait_gone(self, pids: Iterable[int], within: float) -> set[int]:
        """Wait until these processes have ended; returns those that have not."""
        wanted = set(pids)
        with self._changed:
            self._changed.wait_for(lambda: not wanted & self._living or self._gone.is_set(), within)
            return set() if self._gone.is_set() else wanted & self._living

    def forget(self, uuids: Sequence[str]) -> None:
        """These engines have ended: ipyparallel's clients must not wait for them."""
        self._order(do="forget", uuids=list(uuids))

    def end(self) -> None:
        """End every process and remove every file; returns when they are gone."""
        self._order(do="end")
        self._gone.wait(GONE_WITHIN)

    def wait_end(self) -> None:
        """Wait for an `end` in another thread."""
        self._gone.wait(GONE_WITHIN)

    @property
    def alive(self) -> bool:
        return not self._gone.is_set()

    def log(self) -> str:
        """What the host process complained of, if anything."""
        return self.trouble

    def _order(self, **order: Any) -> None:
        raise NotImplementedError

    def _hear(self, event: dict[str, Any]) -> None:
        """Take an event of the host process in, and pass it on."""
        kind = event["event"]
        with self._changed:
            if kind in ("started", "launched"):
                self._living.add(event["pid"])
            elif kind == "present":
                self._living.update(event["processes"].values())
            elif kind == "ended":
                self._living.discard(event["pid"])
            elif "ask" in event:
                self._answers[event["ask"]] = event
            self._changed.notify_all()
        if kind == "trouble":
            self.trouble = str(event["text"]).strip().splitlines()[-1]
        self._on_event(event)

    def _has_gone(self) -> None:
        """The host process is no more, or out of reach."""
        self._gone.set()
        with self._changed:
            self._changed.notify_all()
        self.ended = self._how_ended()
        self._on_event(self.ended)

    def _how_ended(self) -> dict[str, Any]:
        raise NotImplementedError


class PipedHost(HostEnd):
    """A host process whose orders and events are JSON lines of two streams."""

    def __init__(self, name: str, reader: IO[bytes], writer: IO[bytes], on_event: OnEvent) -> None:
        super().__init__(name, on_event)
        self._reader, self._writer = reader, writer
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def follow(self) -> None:
        """Hear its events, in a thread."""
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

    def _order(self, **order: Any) -> None:
        with self._lock:
            try:
                self._writer.write(json.dumps(order).encode() + b"\n")
                self._writer.flush()
            except (BrokenPipeError, ConnectionError, ValueError):
                self._gone.set()

    def _listen(self) -> None:
        for line in self._reader:
            try:
                event = json.loads(line)
                kind = event["event"]
            except (ValueError, TypeError, KeyError):
                continue  # what a login shell prints is no event
            if kind == "gone":
                break
            self._hear(event)
        self._has_gone()

    def _how_ended(self) -> dict[str, Any]:
        return {"event": "host gone", "code": self._process.wait() if self._process is not None else 0}
