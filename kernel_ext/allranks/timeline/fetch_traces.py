"""Fetches the ranks' traces of a cell, and reads the hosts' clocks before and after the cell."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from allranks.hosts_from_options import HERE
from allranks.lifeline.open_questions import RequestFailed
from allranks.messages.requests import CellTrace, Clock, ReadTrace

from .clocks import Ping
from .timeline import Timeline

if TYPE_CHECKING:
    from allranks.head.state.monitor import Monitor
    from allranks.lifeline.head_end import Lifeline

ROUNDS = 8
"""Number of questions about each host's clock before the cell, and again after it; quick answers bound it best."""
ANSWER_WITHIN = 1.0
"""Timeout, in seconds, for the time of a rank's clock, and for traces if ranks are stuck."""
TOLD_WITHIN = 10.0
"""Timeout, in seconds, for the traces of all ranks: 20,000 events are about 2 MB."""


class Recording:
    """Collects traces and clock readings of one cell: call `begin` before it is sent, and `finish` when it is over."""

    def __init__(self, monitor: Monitor, lifeline: Lifeline, ranks: Sequence[int], about: Mapping[str, object]) -> None:
        self._monitor, self._lifeline, self._ranks, self._about = monitor, lifeline, tuple(ranks), about
        self._pings: list[Ping] = []
        self._at = 0.0

    def begin(self) -> None:
        self._at = time.time()
        self._ask_clocks()

    def finish(self, cell: int, stuck: bool = False) -> Timeline:
        """The timeline of `cell`, from the ranks that still answer; they get less time if some are `stuck`."""
        asked = {
            rank: self._lifeline.ask(self._monitor.ranks[rank].uuid, ReadTrace(cell))
            for rank in self._ranks
            if self._monitor.ranks[rank].dead is None
        }
        told, deadline = dict[int, CellTrace](), time.monotonic() + (ANSWER_WITHIN if stuck else TOLD_WITHIN)
        for rank, answer in asked.items():
            try:
                trace = answer.result(max(0.0, deadline - time.monotonic())).answer.trace
            except (TimeoutError, ConnectionError, RequestFailed):
                continue
            if trace is not None:
                told[rank] = trace
        if not stuck:
            self._ask_clocks()
        hosts = {rank: self._monitor.ranks[rank].host for rank in self._ranks}
        return Timeline.of(
            told=told,
            ranks=self._ranks,
            hosts=hosts,
            pings=self._pings,
            here=HERE.name,
            at=self._at,
            **self._about,
        )

    def _ask_clocks(self) -> None:
        """Read the clock of each other host through one of its ranks; ranks on this host have the notebook's clock."""
        answers_for: dict[str, str] = {}
        for number in self._ranks:
            rank = self._monitor.ranks[number]
            if rank.dead is None and rank.host != HERE.name:
                answers_for.setdefault(rank.host, rank.uuid)
        for host, uuid in answers_for.items():
            for _ in range(ROUNDS):
                sent = time.perf_counter()
                try:
                    said = self._lifeline.ask(uuid, Clock()).result(ANSWER_WITHIN).answer.now
                except (TimeoutError, ConnectionError, RequestFailed):
                    break
                self._pings.append(Ping(host, sent, said, time.perf_counter()))
