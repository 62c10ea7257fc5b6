"""Stop the main thread: unblock it from a collective, or interrupt its Python code."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import CodeType

from allranks.lifeline.rank_end import RankLifeline
from allranks.messages.events import LedgerEntry, Unblocked
from allranks.messages.requests import BROKEN
from allranks.rank.collectives.aborted import RELEASED
from allranks.rank.collectives.ledger import Ledger
from allranks.rank.debug.debugger import Debugger
from allranks.rank.main_thread.barrier import Barrier
from allranks.rank.main_thread.main_thread_calls import MainThread
from allranks.rank.main_thread.running_cell import RunningCell

from .membership import World
from .peer_datagrams import Peers

TELL_AFTER = 2.3
"""Seconds from a failure until this rank informs the others, unless the notebook unblocks them first (after 2 s)."""
TELL_EVERY = 0.5
"""Seconds until this rank informs the others again, doubled each time: a rank may enter its collective later."""
TELL_AT_LEAST_EVERY = 30.0
"""Maximum seconds until this rank informs the others again."""
SIGNAL_AFTER = 0.4
"""Seconds until a stopped cell that still runs is stopped again, and between later attempts."""
LEAVE_EVERY = 0.1
"""Seconds between two attempts to abort a task's collective that keeps the main thread from leaving the world."""
LOST_AFTER = 2
"""A SIGINT counts as lost after this many checks, `SIGNAL_AFTER` apart, that find no effect of it."""


class Unblocker:
    def __init__(
        self,
        main: MainThread,
        cell: RunningCell,
        blocked: Callable[[], bool],
        ledger: Ledger,
        barrier: Barrier,
        debugger: Debugger,
        world: World,
        peers: Peers,
        lifeline: RankLifeline,
    ) -> None:
        """`blocked` returns whether the main thread waits on a lock."""
        self._main, self._cell, self._blocked, self._ledger = main, cell, blocked, ledger
        self._barrier, self._debugger = barrier, debugger
        self._world, self._peers, self._lifeline = world, peers, lifeline
        self.broke = False
        """Whether a collective was aborted in this cell, or is about to complete without all its ranks."""
        self._signal_at: tuple[float, int] | None = None
        """The time.monotonic at which to send SIGINT, and the number of the cell to stop; None if no SIGINT is due."""
        self._break_at: tuple[float, int] | None = None
        """The time.monotonic at which to stop a cell again, and its number: it may have entered a collective since."""

        self._stood: tuple[CodeType, int] | None = None
        """Position of the main thread in the user's code when it was last sent SIGINT; None if it ran other code."""
        self._looks = 0
        """Number of consecutive checks that found no effect of the last SIGINT."""
        self._tell_at: tuple[float, int] | None = None
        """The time.monotonic at which to inform other ranks that this one failed, and the number of the failed cell."""
        self._tell_every = TELL_EVERY
        self._released: int | None = None
        """Number of the last cell whose collectives were aborted by `release`; None if there was none."""

    def begin_cell(self, number: int) -> None:
        """Reset the state for cell `number`, and refuse its collectives if they were aborted before it began."""
        self.broke, self._tell_at = False, None
        if number == self._released:
            self._ledger.refuse_in_cell(RELEASED)

    def release(self, number: int, newest: int) -> None:
        """Treat the collectives of cell `number`, up to `newest`, as aborted, and refuse later ones in this cell.

        The ranks that missed these collectives enter them with a `poison.array`, so that their results are invalid.
        """
        self._released = number
        if not self._cell.runs(number):  # it has not begun, or is over
            return
        self._ledger.refuse_in_cell(RELEASED)
        # Other ranks still wait in `newest`. If this rank has called `newest`, its result will be invalid.
        if self._ledger.number >= newest or (self._blocked() and self._cell.current_collective()):
            self.broke = True
            self._note(None)
            if not self._cell.runs(number):  # it has just ended: no code of its own is left to raise in
                self._ledger.aborted.owed = None

    def _note(self, pattern: bytes | None) -> None:
        """Record the collectives in flight as aborted, with results that `pattern` marks."""
        ledger = self._ledger
        in_flight, newest = ledger.in_flight(), ledger.last()
        if newest is not None:
            ledger.aborted.note(newest, in_flight, pattern)

    def stop(self) -> None:
        """Stop the running cell, or a post-mortem session (`Debugger.look_back`); an idle rank has nothing to stop."""
        if self._debugger.looking_back:
            if not self._break_up(None, stopped=True):  # a command may be blocked in a collective
                self._interrupt()
            return
        if not self._cell.running:
            return
        later = (time.monotonic() + SIGNAL_AFTER, self._cell.number)
        self._break_at = later
        if self.free(stopped=True):
            # If the main thread waits for one of the user's threads instead of a collective, it needs the signal too.
            self._signal_at = later
        else:
            self._interrupt()

    def free(self, *, stopped: bool = False) -> bool:
        """Abort the collective in which the main thread waits; returns False if there is none that can be aborted.

        The collective raises KeyboardInterrupt in the user's code if `stopped`, and RuntimeError otherwise. At the
        barrier of ``check=strict``, it always raises RuntimeError.
        """
        collective = self._cell.current_collective()
        if not self._cell.running or collective is None:
            return False
        if self._barrier.closed:
            self._lifeline.send(Unblocked(self._cell.number, collective))
            self._barrier.open("aborted, because not all ranks entered it")
            return True
        return self._break_up(collective, stopped=stopped)

    def _break_up(self, collective: LedgerEntry | None, *, stopped: bool) -> bool:
        """Break the world if the main thread waits on a lock, as in a collective; returns whether this was done."""
        if not self._blocked():
            return False
        self.broke = self.broke or collective is not None
        if not self._holds():
            return False
        pattern = self._refuse_and_note(collective)
        self._lifeline.send(Unblocked(self._cell.number, collective, broke=True))
        # Python handles the signal when the collective has returned, which it does at once.
        self._cell.interrupt.unblocked = not stopped
        self._interrupt()
        self._world.break_up(pattern)
        return True

    def _holds(self) -> bool:
        """Whether collectives of this world can still be aborted; in a broken world, ranks wait for something else."""
        return self._world.breakable and not self._world.broken_up

    def _refuse_and_note(self, collective: LedgerEntry | None) -> bytes | None:
        """Refuse further collectives; if `collective` is not None, record the collectives in flight as aborted.

        Returns the pattern that marks their results.
        """
        pattern = self._world.pattern()
        if collective is not None:
            self._note(pattern)
        self._ledger.refuse = BROKEN
        return pattern

    def free_task(self, cell: int | None = None) -> bool:
        """Abort the collective in which an asyncio task of an earlier cell blocks the main thread.

        The collective raises in the task. `cell` is the number of the cell that waits for the main thread, if there is
        one. Returns whether a collective was aborted.
        """
        collective = self._cell.current_collective()
        if self._cell.running or self._world.forming or collective is None:
            return False
        if not self._blocked() or not self._holds():
            return False
        pattern = self._refuse_and_note(collective)
        if cell is not None:
            self._lifeline.send(Unblocked(cell, collective, broke=True, in_task=True))
        self._world.break_up(pattern)
        return True

    def failed(self, number: int) -> None:
        """Prepare to inform the other ranks, which may wait for this one: cell `number` raised an error of its own."""
        self._tell_at, self._tell_every = (time.monotonic() + TELL_AFTER, number), TELL_EVERY

    def decided(self, number: int) -> None:
        """Inform no other rank of the failure in cell `number`: the notebook unblocks the ranks that wait for it."""
        if self._tell_at is not None and self._tell_at[1] == number:
            self._tell_at = None

    def _hear(self) -> None:
        """Handle the datagrams of other ranks like the corresponding requests of the notebook."""
        for word, number in self._peers.heard():
            if number != self._cell.number:
                continue
            if word == "failed" and self._cell.runs(number):
                self.free()
                if self._world.broken_up:  # not where it waited at the barrier of ``check=strict``
                    self._peers.tell("broke", number)
            elif word == "broke" and self._world.mpi.is_in_place:
                self.refuse(BROKEN)

    def refuse(self, because: str) -> None:
        """Refuse further collectives, since another rank has broken the world; on MPI, also break the world here."""
        self._ledger.refuse, self._ledger.refused_in_cell = because, False
        self._world.broken_elsewhere()

    def tick(self, now: float) -> float:
        """Do the work that is due; returns the seconds after which the agent must call this again, at the latest."""
        self._hear()
        if self._tell_at is not None and now >= self._tell_at[0]:
            self._tell_at = (now + self._tell_every, self._tell_at[1])
            self._tell_every = min(2 * self._tell_every, TELL_AT_LEAST_EVERY)
            self._peers.tell("failed", self._tell_at[1])
        if self._cell.running:
            self._ledger.aborted.look()
        if self._world.is_to_be_left:
            self.free_task()
        if self._signal_at is not None and now >= self._signal_at[0]:
            number, self._signal_at = self._signal_at[1], None
            # Not while the error is being shown, which takes long the first time.
            stuck = self._cell.user_frame() is not None or self._blocked()
            if stuck and self._cell.runs(number):
                self._interrupt()
        if self._break_at is not None and now >= self._break_at[0]:
            # Repeated until the cell ends: it may enter a collective only now, and no other rank will enter it.
            number, self._break_at = self._break_at[1], None
            if self._cell.runs(number):
                self._break_at = (now + SIGNAL_AFTER, number)
                if not self.free(stopped=True):
                    self._send_again_if_lost()
        if self._world.is_to_be_left:
            return LEAVE_EVERY
        return self._tell_at[0] - now if self._tell_at is not None else 60.0

    def _send_again_if_lost(self) -> None:
        """Send SIGINT again if the user's code has not noticed the last one.

        Python drops a KeyboardInterrupt that is raised in a destructor or callback ("Exception ignored in"), and misses
        a signal that arrives just before it waits for a lock. Code that caught the exception is at another position by
        now. Code that is at the same position, or that began after the signal, has not noticed it.
        """
        place = self._place()
        self._looks = self._looks + 1 if place is not None and self._stood in (None, place) else 0
        if self._looks >= LOST_AFTER:
            self._interrupt()

    def _place(self) -> tuple[CodeType, int] | None:
        frame = self._cell.user_frame()
        return (frame.f_code, frame.f_lasti) if frame is not None else None

    def _interrupt(self) -> None:
        self._stood, self._looks = self._place(), 0
        self._main.interrupt()
