"""Where the rank stands: its line, its collective, whether it waits, its memory."""

from __future__ import annotations

import sys
from types import FrameType
from typing import TYPE_CHECKING, Any

from allranks.messages.events import LedgerEntry, State
from allranks.rank.arrays import computed
from allranks.rank.collectives.record import Record
from allranks.rank.metrics.compiler import CompilerWatch
from allranks.rank.metrics.meters import Reading
from allranks.rank.world.reserve import is_at_limit

if TYPE_CHECKING:
    from .agent import Agent

EVERY_RUNNING = 0.2
"""Seconds between reports while a cell runs."""
EVERY_IDLE = 1.0
METER_EVERY = 0.5
"""Seconds between readings of the meters while a cell runs."""
UNSURE_AFTER = 1.0
"""Seconds at one instruction after which a rank counts as waiting where its thread's state cannot be read."""
ALIVE_EVERY = 2.0
"""Seconds after which even an unchanged report is sent: the notebook calls a silent rank stopped."""


class Reporter:
    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._reported: State | None = None
        self._reported_at = self._sent_at = self._metered_at = 0.0
        self._meters: Reading | None = None
        self._blocked_at: tuple[Any, float] = (None, 0.0)
        self._compilers = CompilerWatch()
        self._awake = 0
        """How often in a row the main thread was seen awake."""

    @property
    def every(self) -> float:
        return EVERY_RUNNING if self._agent.cell.running else EVERY_IDLE

    def forget(self) -> None:
        """A new notebook knows nothing: the next report is news."""
        self._reported = None

    def tick(self, now: float) -> float:
        """Report if it is time; returns the seconds until it is time again."""
        if now - self._reported_at >= self.every:
            self._reported_at = now
            try:
                self._report(now)
            except OSError as error:
                if not is_at_limit(error):
                    raise
                with self._agent.reserve.lent():
                    self._report(now)
        return max(0.0, self._reported_at + self.every - now)

    def _report(self, now: float) -> None:
        self._agent.meters.traffic.count()
        if self._meters is None or now - self._metered_at >= (METER_EVERY if self._agent.cell.running else EVERY_IDLE):
            self._meters, self._metered_at = self._agent.meters.read(), now
        state = self._state(now, self._meters)
        if state != self._reported or self._agent.cell.running or now - self._sent_at >= ALIVE_EVERY:
            self._reported, self._sent_at = state, now
            self._agent.lifeline.send(state)

    def _state(self, now: float, meters: Reading) -> State:
        cell, ledger = self._agent.cell, self._agent.ledger
        frame = self.user_frame() if cell.running else None
        line, source = cell.line_of(frame) if frame is not None else (None, None)
        record = ledger.last()
        at = (frame.f_lasti, id(frame)) if frame is not None else None
        pending = record is not None and record.seq > self._done_with
        waiting = pending and self._blocked((at, line, ledger.seq), now)
        return State(
            cell.running,
            cell.number,
            ledger.number,
            line,
            source,
            self.collective(record) if record is not None else None,
            waiting,
            in_task=waiting and (not cell.running or self._agent.tasks.runs_one_of(cell.tasks)),
            tasks=not cell.running and bool(self._agent.tasks.pending()),
            unordered=ledger.chain.left_out,
            untracked=bool(computed.unreadable()),
            memory=meters.memory,
            cpu=meters.cpu,
            effective=meters.effective,
            ops=meters.ops,
            links=meters.links,
            stalled=meters.stalled,
            compiler=self._compilers.look((at, ledger.seq) if cell.running else None, now),
            machine=meters.machine,
        )

    def _blocked(self, place: Any, now: float) -> bool:
        """Whether the main thread has stood in one place, asleep on a lock, for two reports or more.

        While no cell runs, an asyncio task of an earlier one may wait in a collective.

        Where a lock cannot be told from a computation (macOS; not run there), standing at one instruction for a second
        must do.
        """
        asleep = self._agent.meters.main_thread_asleep()
        # A signal, as an interrupt sends again and again, wakes a rank that waits for a moment: seen awake once, in the
        # place where it slept, it still waits.
        self._awake = self._awake + 1 if asleep is False else 0
        if (self._awake and (self._awake > 1 or self._blocked_at[0] != place)) or self._agent.debugger.at_prompt:
            self._blocked_at = (None, 0.0)
            return False
        if self._blocked_at[0] != place:
            self._blocked_at = (place, now)
        return now - self._blocked_at[1] >= (UNSURE_AFTER if asleep is None else EVERY_RUNNING * 0.9)

    @property
    def blocked(self) -> bool:
        """Whether the main thread waits on a lock now, as far as that can be known."""
        if self._agent.debugger.at_prompt:
            return False
        asleep = self._agent.meters.main_thread_asleep()
        return (self._reported is not None and self._reported.waiting) if asleep is None else asleep

    def collective(self, record: Record) -> LedgerEntry:
        """A record as it travels; its line only where that is a line of the running cell."""
        return record.entry(record.line if record.file == self._agent.cell.file else None)

    def current_collective(self) -> LedgerEntry | None:
        """The newest collective that the running cell, or a task of an earlier one, can be waiting in."""
        record = self._agent.ledger.last()
        return self.collective(record) if record is not None and record.seq > self._done_with else None

    @property
    def _done_with(self) -> int:
        """Number of the newest collective that the running cell cannot be waiting in, nor in any before it."""
        return max(self._agent.cell.waits_since, self._agent.ledger.order.settled)

    def user_frame(self) -> FrameType | None:
        """The main thread's innermost frame that runs the user's code."""
        frame = sys._current_frames().get(self._agent.main.ident or 0)
        namespace = self._agent.cell.namespace or self._agent.user_ns
        while frame is not None and frame.f_globals is not namespace:
            frame = frame.f_back
        return frame

    def line(self) -> int | None:
        """The line of the cell where the main thread stands now."""
        frame = self.user_frame() if self._agent.cell.running else None
        return self._agent.cell.line_of(frame)[0] if frame is not None else None
