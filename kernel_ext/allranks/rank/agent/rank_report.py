"""Reports the state of the rank: its line, its collective, whether it is blocked, its memory."""

from __future__ import annotations

from dataclasses import replace

from msgspec import structs

from allranks.lifeline.rank_end import RankLifeline
from allranks.messages.events import State
from allranks.rank.arrays import array_status
from allranks.rank.collectives.ledger import Ledger
from allranks.rank.debug.debugger import Debugger
from allranks.rank.main_thread.running_cell import RunningCell
from allranks.rank.main_thread.steps import Steps
from allranks.rank.metrics.compiler import CompilerWatch
from allranks.rank.metrics.meters import MeterReading, Meters
from allranks.rank.world.reserved_descriptors import Reserve, is_at_limit

EVERY_RUNNING = 0.2
"""Seconds between reports while a cell runs, and until its first report: the end of a short cell is in its `Done`."""
EVERY_WITH_TASKS = 1.0
"""Seconds between reports while no cell runs, but asyncio tasks of an earlier cell may wait in a collective."""
EVERY_IDLE = 2.0
"""Seconds between reports while no cell or task runs: the notebook takes a silent rank for stopped."""
METER_EVERY = 0.5
"""Minimum number of seconds between readings of the meters."""
METER_EVERY_IDLE = 10.0
"""Seconds between readings of the meters while the rank does nothing: reading them is most of what it then costs."""
USED = 0.1
"""Seconds of processor time since the last reading from which on a rank does something: usually a `%px` cell, or a
thread."""
UNSURE_AFTER = 1.0
"""Seconds at one instruction after which a rank counts as blocked, if its main thread's state cannot be read."""


class Reporter:
    def __init__(
        self,
        cell: RunningCell,
        ledger: Ledger,
        meters: Meters,
        debugger: Debugger,
        reserve: Reserve,
        steps: Steps,
        lifeline: RankLifeline,
    ) -> None:
        self._steps = steps
        self._cell, self._ledger, self._meters, self._debugger = cell, ledger, meters, debugger
        self._reserve, self._lifeline = reserve, lifeline
        self._reported: State | None = None
        self._reported_at = self._metered_at = 0.0
        self._reading: MeterReading | None = None
        self._does_nothing_after: tuple[int, int, int] | None = None
        """Numbers of the last cell, the last collective and the world; None while the rank does something."""
        self._read_since = 0
        """Number of readings since then. The first one still has rates of what the rank did, so a second follows."""
        self._blocked_at: tuple[object, float] = (None, 0.0)
        self._compilers = CompilerWatch()
        self._awake = 0
        """Number of consecutive reports that found the main thread awake."""

    def report_soon(self) -> None:
        """Report at the next tick: a new notebook knows no state yet."""
        self._reported_at = 0.0
        self._read_since = 0

    def tick(self, now: float) -> float:
        """Report if a report is due; returns the seconds until the next one is."""
        tasks = self._cell.left_tasks()
        if now >= self._due(tasks):
            self._reported_at = now
            try:
                self._report(now, tasks)
            except OSError as error:
                if not is_at_limit(error):
                    raise
                with self._reserve.lent():
                    self._report(now, tasks)
        return max(0.0, self._due(tasks) - now)

    def _due(self, tasks: bool) -> float:
        if self._cell.running:
            return max(self._reported_at, self._cell.began_at) + EVERY_RUNNING
        return self._reported_at + (EVERY_WITH_TASKS if tasks else EVERY_IDLE)

    def _report(self, now: float, tasks: bool) -> None:
        tasks = tasks or self._cell.left_tasks()  # the cell may have ended meanwhile
        self._meters.traffic.count()
        self._reported = self._state(now, self._read(now, tasks), tasks)
        self._lifeline.send(self._reported)

    def _read(self, now: float, tasks: bool) -> MeterReading:
        """A reading of the meters that is recent enough: a new one, or the last one."""
        does_nothing = not (self._cell.running or tasks or self._meters.used() >= USED)
        after = (self._cell.number, self._ledger.seq, self._ledger.worlds) if does_nothing else None
        if after is None or after != self._does_nothing_after:
            self._does_nothing_after, self._read_since = after, 0
        every = METER_EVERY_IDLE if self._read_since >= 2 else METER_EVERY
        if self._reading is None or now - self._metered_at >= every:
            self._reading, self._metered_at = self._meters.read(seldom=self._read_since >= 2), now
            self._read_since += 1
        elif (machine := self._reading.machine) is not None:
            # Another rank of the host may be about to fill its memory.
            machine = structs.replace(machine, memory_used=self._meters.host_memory()[1])
            self._reading = replace(self._reading, machine=machine)
        return self._reading

    def _state(self, now: float, reading: MeterReading, tasks: bool) -> State:
        cell, ledger = self._cell, self._ledger
        frame = cell.user_frame() if cell.running else None
        line, source = cell.location(frame) if cell.running else (None, None)
        record = ledger.last()
        at = (frame.f_lasti, id(frame)) if frame is not None else None
        pending = record is not None and cell.may_wait_in(record)
        waiting = pending and self._blocked((at, line, ledger.seq), now)
        return State(
            cell.running,
            cell.number,
            ledger.number,
            line,
            source,
            cell.collective(record) if record is not None else None,
            waiting,
            in_task=waiting and cell.in_task(),
            tasks=tasks,
            unordered=ledger.chain.left_out,
            untracked=bool(array_status.unreadable()),
            memory=reading.memory,
            cpu=reading.cpu,
            effective=reading.effective,
            ops=reading.ops,
            links=reading.links,
            stalled=reading.stalled,
            compiler=self._compilers.look((at, ledger.seq) if cell.running else None, now),
            machine=reading.machine,
            gpu=reading.gpu,
            in_steps=self._steps.in_cell,
        )

    def _blocked(self, place: object, now: float) -> bool:
        """Whether the main thread has been at the same `place`, asleep on a lock, for two reports or more.

        False at the debugger's prompt. While no cell runs, an asyncio task of an earlier cell may wait in a collective.

        If waiting on a lock cannot be told from computing (with CUDA, and on macOS, where this is not yet tested), a
        rank counts as blocked after `UNSURE_AFTER` seconds at one instruction.
        """
        asleep = self._meters.main_thread_asleep()
        # A signal (an interrupt sends several) wakes a waiting rank for a moment. So a rank that is seen awake once, at
        # the place where it slept, still counts as waiting.
        self._awake = self._awake + 1 if asleep is False else 0
        if (self._awake and (self._awake > 1 or self._blocked_at[0] != place)) or self._debugger.at_prompt:
            self._blocked_at = (None, 0.0)
            return False
        if self._blocked_at[0] != place:
            self._blocked_at = (place, now)
        return now - self._blocked_at[1] >= (UNSURE_AFTER if asleep is None else EVERY_RUNNING * 0.9)

    def is_blocked(self) -> bool:
        """Whether the main thread waits on a lock now; False at the debugger's prompt.

        If the thread's state cannot be read, returns the last report's answer.
        """
        if self._debugger.at_prompt:
            return False
        asleep = self._meters.main_thread_asleep()
        return (self._reported is not None and self._reported.waiting) if asleep is None else asleep
