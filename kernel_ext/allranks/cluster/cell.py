"""One cell on some ranks: send it, show its output as it arrives, and report how it ended."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, wait
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from allranks.errors import AllranksError, CellInterrupted, CellTimeout, NoCluster
from allranks.head.cell.agreement import Agreement
from allranks.head.cell.low_memory import LowMemory
from allranks.head.cell.outcome import Outcome
from allranks.head.cell.stall import CellFinding
from allranks.head.cell.still_busy import still_busy
from allranks.head.cell.unblock_ranks import RELEASE_WITHIN, Unblocking
from allranks.head.state.cell_run import CellRun, RunStatus
from allranks.head.state.cell_updates import CellUpdate, CellUpdates, Died
from allranks.head.state.collective_times import CollectiveShare
from allranks.head.state.monitor import Monitor
from allranks.lifeline.delivery import Before
from allranks.lifeline.open_questions import Reply, RequestFailed
from allranks.messages.cell_options import CallKind, CellRequest, checked
from allranks.messages.events import AtDebugger, Began, Done, Entering
from allranks.messages.requests import PlainValues, ReadValues
from allranks.notebook.fold import Block, Fold
from allranks.notebook.notify import Notifier
from allranks.notebook.stop_button import Stop
from allranks_backends.plan import alike, rank_label
from allranks_backends.views import RankView

from .cell_result import CellResult
from .debugger_prompt import Conversation
from .option_keywords import LocalOptions

if TYPE_CHECKING:
    from allranks.lifeline.head_end import Lifeline
    from allranks.timeline.fetch_traces import Recording

INTERRUPT_WITHIN = 1.6
"""Seconds that ranks get to handle an interrupt before the prompt returns without them."""
STOPPED_WITHIN = 10.0
"""Seconds that another thread gets to show the end of a cell that was stopped."""
VALUES_WITHIN = 0.3
"""Seconds that the end of a run waits for the values that its code reads."""
POLL_LOGGED = 0.5
"""Seconds between two checks for logged values."""
DRAW_EVERY = 0.1
"""Seconds after which received output is drawn, and a stop noticed, even if more keeps arriving."""
NOTIFY_EVERY = 1.0
"""Seconds between two checks for low memory, and for reasons to notify the user."""
NOTIFY_AGAIN = 600.0
"""Minimum seconds between two notifications that a cell hangs."""
HANGS_AFTER = 10.0
"""Seconds for which a rank waits for others before the user is notified."""
LOOK_EVERY = 0.05
"""Seconds between two checks of which ranks wait for which others."""


@dataclass
class SentCell:
    """The number, ranks and status of a cell, kept when its results are gone."""

    number: int
    """Number of the cell in the cluster."""
    count: int
    """Number of the cell in the notebook."""
    ranks: tuple[int, ...]
    status: RunStatus = "running"
    """``running`` until its end is shown."""
    why: str = ""
    """How the cell failed; empty if it did not."""

    @property
    def label(self) -> str:
        return f"In[{self.count}]"

    def is_called(self, text: str) -> bool:
        """Whether `text` is the cell's number in the notebook: ``5`` or ``In[5]``."""
        return text in (str(self.count), self.label)


class Cell:
    """A running cell. `start` sends it, `finish` follows it to its end."""

    def __init__(
        self,
        number: int,
        code: str,
        options: LocalOptions,
        monitor: Monitor,
        lifeline: Lifeline,
        *,
        calls: CallKind | None = None,
        recording: Recording | None = None,
        before: str = "",
        run: CellRun | None = None,
        notifier: Callable[[], Notifier | None] = lambda: None,
        on_end: Callable[[Cell], str | None] = lambda _cell: None,
    ) -> None:
        """`calls` is the kind of the function that ranks call, and `code` its source; None if ranks run `code`.

        `before` is shown before the output; `run` records what the cell logs.
        """
        assert isinstance(options.ranks, Sequence) and options.count is not None, "settled by Cluster.begin"
        self.number, self.code, self.ranks = number, code, tuple(options.ranks)
        self._monitor, self._lifeline, self._screen = monitor, lifeline, options.screen
        self.count = options.count
        """Number of the cell in the notebook."""
        self._timeout, self._check = options.timeout, options.check
        self._request = CellRequest(
            number=number, count=options.count, options=options.shared, widgets=options.widgets, calls=calls
        )
        monitor.comms.wanted |= options.widgets
        self._recording = recording
        self._agreement = Agreement(monitor, lifeline, self.ranks, number)
        self.mismatch: str | None = None
        """See `CellResult.mismatch`; None until the cell has ended."""
        self._fold = Fold(self.ranks)
        self._outcome = Outcome(self.ranks, self._fold)
        self._unblocking = Unblocking(number, self.ranks, self._outcome, monitor, lifeline)
        self._conversation = Conversation(monitor, lifeline, options.read)
        self._before, self._on_end, self._run, self._notifier = before, on_end, run, notifier
        self._hang_notified: tuple[int | None, float] = (None, -NOTIFY_AGAIN)
        """Number of the last collective for which the user was notified of a hang, and when."""
        self._stop_notified = False
        """Whether the user was notified that ranks are at a breakpoint; reset once no rank is."""
        self._check_at = time.monotonic() + NOTIFY_EVERY
        self._low_memory = LowMemory(self.ranks)
        self._for_others = self._timed_out = False
        """Whether only the queue follows the cell, and whether its timeout has ended it."""
        self._stopped = False
        """Whether the cell was stopped by its timeout, by Ctrl-C or by `stop`; `Cluster.interrupt` does not count."""
        self._values: Future[Reply[PlainValues]] | None = None
        """The answer of a rank with the values that the run's code reads; None until a rank is asked."""
        self._first: dict[int, int] = {}
        self._logged = monitor.logged.count
        """Number of the last logged value that is already drawn, or that was logged before this cell."""
        self._started = time.monotonic()
        self._look_at = self._started + LOOK_EVERY
        self._events = CellUpdates()
        self._pressed = Stop()
        self.result: CellResult | None = None
        self.followed = False
        """Whether a thread follows the cell to its end, or has done so."""
        self._follower = threading.Lock()
        """Held by the thread that follows the cell."""
        self.sent = SentCell(number, options.count, self.ranks)
        self._unraised: BaseException | None = None
        """The error of a `finish` that only the queue called; the user's next call of `finish` raises it."""
        self.shown = threading.Event()
        """Set once the end of the cell has been shown and the world re-formed if necessary."""

    @property
    def label(self) -> str:
        """``In[5]``."""
        return self.sent.label

    def __repr__(self) -> str:
        if self.result is not None:
            return f"<Cell {self.number}: {self.result!r}>"
        return f"<Cell {self.number} on {rank_label(list(self.ranks))}: running>"

    def start(self, after: Callable[[str], Sequence[str]] = lambda _uuid: ()) -> None:
        """Send the cell. `after` returns the ipyparallel requests to an engine that its rank must handle first."""
        self._first = {rank: self._monitor.ranks[rank].entered for rank in self.ranks}
        with self._pressed.noted():  # all ranks get the cell, or none
            self._events = self._monitor.listen(self.number, self.ranks)
            uuids = [self._monitor.ranks[rank].uuid for rank in self.ranks]
            before = {uuid: Before(self._monitor.comms.told(uuid), after(uuid)) for uuid in uuids}
            self._lifeline.execute("" if self._request.calls else self.code, self._request, before)

    def adopt(self, events: CellUpdates) -> None:
        """Take over a cell that another notebook sent; `events` has the cell's events that its ranks have kept."""
        self._events = events
        self._first, self._logged = {}, 0

    def finish(self, timeout: float | None = None) -> CellResult:
        """Follow the cell to its end and return its result; later calls return the same result.

        If another thread follows the cell already, wait for it to end. Ctrl-C interrupts the ranks and raises
        CellInterrupted. A timeout also interrupts them and raises CellTimeout: `timeout` seconds after this call or,
        without `timeout`, after the seconds that the cell's own options set, counted from its start. Both errors come
        within two seconds (five where collectives cannot be aborted), even if ranks do not respond; such ranks stay
        busy, and the message names them. Raises NoCluster if the cluster goes down meanwhile.
        """
        if timeout is not None:
            timeout = checked({"timeout": timeout}).timeout
        if not self._follower.acquire(blocking=False):
            return self._wait_for_follower(timeout)
        try:
            if self.result is None:
                return self._finish(timeout)
        finally:
            self._follower.release()
        return self._ended()

    def follow_for_others(self) -> None:
        """Same as `finish` for the queue: an error is not raised here, but by the next call of `finish`."""
        if not self._follower.acquire(blocking=False):
            return  # another thread follows it
        try:
            if self.result is None:
                self._for_others = True
                with suppress(AllranksError, CellInterrupted):
                    self._finish(None)
        finally:
            self._follower.release()

    def _finish(self, timeout: float | None) -> CellResult:
        self.followed = True
        if self._before:
            self._show([Block("text", self.ranks, self._before + "\n", "stderr", own=True)])
        since = self._started if timeout is None else time.monotonic()
        timeout = self._timeout if timeout is None else timeout
        deadline = None if timeout is None else since + timeout
        with self._pressed.noted(self._events):
            try:
                if not self._follow(deadline):
                    self._stop(CellTimeout, f"the cell was stopped after {timeout:g} s.")
            except KeyboardInterrupt:
                self._stop(CellInterrupted, "")
            finally:
                pressed = self._pressed.pressed  # while the last rank's end was handled
                self._pressed.put_off()
                self._close()
        if pressed or self._pressed.pressed:  # even if pressed at the very end, "Run All" must stop here
            raise CellInterrupted
        assert self.result is not None
        return self.result

    def _wait_for_follower(self, timeout: float | None) -> CellResult:
        """Wait until the thread that follows the cell has shown its end."""
        error: type[BaseException] | None = None
        try:
            if not self.shown.wait(None if timeout is None else min(timeout, threading.TIMEOUT_MAX)):
                error = CellTimeout
        except KeyboardInterrupt:
            error = CellInterrupted
        if error is None:
            return self._ended()
        self.stop()
        self.shown.wait(STOPPED_WITHIN)
        raise error("the cell was stopped.") from None

    def _ended(self) -> CellResult:
        """The result of a cell whose end was shown, unless an error must still be raised."""
        if (error := self._unraised) is not None:
            self._unraised = None
            raise error
        if self.result is None or (self._outcome.open and self._monitor.state == "down"):
            raise NoCluster("the cell ended with the cluster.")
        return self.result

    def stop(self) -> None:
        """Do what Ctrl-C does, from any thread: `finish` interrupts the ranks and raises CellInterrupted."""
        self._pressed.press(self._events)

    def interrupt(self) -> None:
        """Interrupt every rank that still runs the cell."""
        self._unblocking.interrupt()

    def free(self, ranks: Sequence[int]) -> None:
        """Unblock any of `ranks` that is blocked in a collective of the cell.

        Ranks that run other code go on, unless collectives cannot be aborted: then they are interrupted, too.
        """
        self._unblocking.free(ranks)

    def release(self) -> None:
        """If collectives cannot be aborted, have the missing ranks enter them from now on."""
        self._unblocking.release()

    def _stop(self, kind: type[BaseException], message: str) -> None:
        self._stopped = True
        self._handle_waiting()
        self._conversation.end()
        message += self._unblocking.stuck_in()
        self.interrupt()
        self.release()
        interrupted_at = time.monotonic()
        try:
            self._follow(interrupted_at + (RELEASE_WITHIN if self._unblocking.releasing else INTERRUPT_WITHIN))
        except KeyboardInterrupt:
            pass
        left = sorted(self._outcome.open)
        if left:
            self._unblocking.go_on(left)
            aborted = [rank for rank in left if self._outcome.results[rank].unblocked]
            message += " " + still_busy(
                self._monitor.snapshot(),
                left,
                after=time.monotonic() - interrupted_at,
                abortable=self._monitor.breakable,
                aborted=aborted,
                tried_for=self._monitor.unblocks_for(),
            )
        self._timed_out = kind is CellTimeout
        error = kind(message.strip())
        self._unraised = error if self._for_others else None
        raise error from None

    def _handle_waiting(self) -> None:
        """Handle the events that have come already, ends that wait to be passed on among them."""
        with suppress(queue.Empty):
            while True:
                if (event := self._events.get_nowait()) is not None:
                    self._handle(event)

    def _follow(self, deadline: float | None) -> bool:
        """Handle events; returns True once all ranks are done or cannot be unblocked, False after the deadline."""
        while self._outcome.open and not self._unblocking.given_up:
            self._pressed.raise_if_pressed()
            now = time.monotonic()
            if deadline is not None and now >= deadline:
                return False
            moments = (
                deadline,
                self._fold.next_deadline(),
                self._conversation.next_look(),
                self._unblocking.next_look(),
            )
            until = [now + POLL_LOGGED, *(moment for moment in moments if moment is not None)]
            try:
                event = self._events.get(timeout=max(0.0, min(until) - now))
            except queue.Empty:
                event = None
            if self._monitor.state == "down":
                raise NoCluster(f"the cell ended with the cluster, on {rank_label(sorted(self._outcome.open))}.")
            busy_until = time.monotonic() + DRAW_EVERY
            while event is not None:
                self._handle(event)
                try:
                    event = self._events.get_nowait() if time.monotonic() < busy_until else None
                except queue.Empty:
                    event = None
            self._draw()
            self._say_who_waits()
            self._converse(deadline)
        return True

    def _converse(self, deadline: float | None) -> None:
        """Let the user type commands for a rank in the debugger. Raises KeyboardInterrupt for Ctrl-C."""
        conversation = self._conversation
        if blocks := conversation.said():
            self._show(blocks)
        if not conversation.open:  # usually; a snapshot costs more than the rest of this method
            return
        snapshot = self._monitor.snapshot()
        if not conversation.due([snapshot.ranks[rank] for rank in self._outcome.open]):
            return
        self._show(conversation.meanwhile(snapshot, sorted(self._outcome.open)))
        if answer := conversation.ask(deadline):
            self._show([Block("text", self.ranks, answer + "\n", "note")])

    def _show(self, blocks: list[Block]) -> None:
        self._draw(flush=True)
        if self._screen is not None and blocks:
            self._screen.blocks(blocks)

    def _handle(self, update: CellUpdate) -> None:
        rank, event = update.rank, update.event
        match event:
            case Began():
                late = self._monitor.ranks[rank].late
                if late:
                    self._outcome.take_late(rank, late)
                    late.clear()
            case AtDebugger():
                self._conversation.receive(rank, event)
            case Entering(collective=entry):
                self._agreement.enter(rank, entry)
            case _:
                self._outcome.take(update)
        if isinstance(event, Done):
            self._agreement.done(rank, event.shared, event.at_once, event.exchanged)
        if isinstance(event, Done | Died):
            self._conversation.ended(rank)

    def _draw(self, *, flush: bool = False) -> None:
        self._ask_values()
        blocks = self._fold.drain(time.monotonic(), flush)
        if self._screen is not None:
            if blocks:
                self._screen.blocks(blocks)
            self._screen.live_lines(self._outcome.live_lines())
            self._logged, rows = self._monitor.logged.since(self._logged)
            if rows := [row for row in rows if row.cell == self.number]:
                if self._run is not None:
                    self._run.total = self._monitor.logged.total(self.number)
                self._screen.logged(rows, self._run)

    def _ask_values(self) -> None:
        """Ask a rank for the values that the code of a run reads from earlier cells; its agent answers at once."""
        run = self._run
        if run is None or not run.number or self._values is not None:
            return
        reads, binds = sorted(run.read.reads), sorted(run.read.binds - run.read.reads)
        rank = next((self._monitor.ranks[rank] for rank in self.ranks if not self._monitor.ranks[rank].dead), None)
        if not reads or rank is None or self._monitor.state == "down":
            return

        self._values = self._lifeline.ask(rank.uuid, ReadValues(reads, binds))
        self._values.add_done_callback(self._take_values)

    def _take_values(self, answer: Future[Reply[PlainValues]]) -> None:
        with suppress(ConnectionError, RequestFailed, CancelledError):
            if self._run is not None:
                self._run.variables = answer.result().answer.values

    def _say_who_waits(self) -> None:
        """Report which ranks wait for which others, and unblock ranks whose collective cannot complete.

        Every `NOTIFY_EVERY` seconds, also report low memory and notify the user.
        """
        if (now := time.monotonic()) < self._look_at:  # a check costs as much as the rest of a short cell
            return
        self._look_at = now + LOOK_EVERY
        findings = self._unblocking.look()
        if self._screen is not None and findings:
            self._screen.blocks(_said(findings))
        if now >= self._check_at:
            self._check_at = now + NOTIFY_EVERY
            if low := self._low_memory.look(self._monitor.snapshot(), now):
                self._show(_said(low))
            if (notifier := self._notifier()) is not None:
                self._notify_who_waits(notifier, now)

    def _notify_who_waits(self, notifier: Notifier, now: float) -> None:
        """Notify the user of ranks that have waited long for others, and of ranks at a breakpoint."""
        views = {rank: self._monitor.snapshot().ranks[rank] for rank in self._outcome.open}
        at_breakpoint = [rank for rank, view in views.items() if view.state == "debugging"]
        if at_breakpoint and not self._stop_notified:
            notifier.needs_attention(f"{self.label}: {rank_label(at_breakpoint)} at a breakpoint")
        self._stop_notified = bool(at_breakpoint)
        waiting = {
            rank: view
            for rank, view in views.items()
            if view.state == "waiting" and view.collective is not None and (view.since or 0.0) >= HANGS_AFTER
        }
        places = {view.collective.number for view in waiting.values() if view.collective is not None}
        others = [rank for rank in views if rank not in waiting]
        number, at = self._hang_notified
        if not waiting or (len(places) == 1 and not others) or (min(places) == number) or now - at < NOTIFY_AGAIN:
            return  # all ranks are in the same collective: it may just be large
        self._hang_notified = min(places), now
        # Without source code: other people may read the notification.
        doing = alike({rank: _place(views[rank]) for rank in others})
        who = "; ".join(f"{rank_label(members)} {what}" for what, members in doing.items())
        who = who or "the ranks wait for each other"
        notifier.needs_attention(f"{self.label} hangs: {rank_label(list(waiting))} waited {HANGS_AFTER:g} s; {who}")

    def _close(self) -> None:
        status: RunStatus = "failed"
        try:
            status = self._end()
        finally:  # even if that fails: other threads wait for the cell's end
            self.sent.why = self.result.failure() if self.result is not None and not self.result.ok else ""
            self.sent.status = status
            self.shown.set()
        if (notifier := self._notifier()) is not None and self.result is not None:
            why = "it took longer than its limit" if self._timed_out else self.sent.why
            notifier.ended(self.label, "failed" if self._timed_out else status, why, self.result.seconds)

    def _end(self) -> RunStatus:
        """Show how the cell has ended, and re-form the world if necessary."""
        self._draw(flush=True)
        self._monitor.unlisten(self.number)
        for rank in self._outcome.open:  # it was to be unblocked, but still runs the cell
            self._outcome.results[rank].unblocked = None
        self._unblocking.wait()
        self._unblocking.decide()
        blocks = self._look_back()
        self.result = CellResult(self.number, self._outcome.results, time.monotonic() - self._started, self.mismatch)
        status = self._how_it_ended()
        if self._run is not None:
            self._run.collectives = CollectiveShare.of(self._outcome.timed, self.result.seconds)
        self.end_run(status)
        if self._recording is not None and self._monitor.state != "down":  # if it is down, nothing can be shown
            self.result.timeline = self._recording.finish(self.number, stuck=bool(self._outcome.open))
        if note := self._on_end(self):
            blocks.append(Block("text", self.ranks, note + "\n", "note"))
        if self._screen is not None:
            self._screen.blocks(blocks)
            self._screen.close()
        return status

    def end_run(self, status: RunStatus = "stopped") -> None:
        """Note how the run of the cell ended; a cell that can no longer be followed counts as stopped."""
        if self._run is None:
            return
        if self.result is not None and not self._outcome.open:
            self._monitor.logged.unfollow(self.number)
        if self._values is not None and wait([self._values], VALUES_WITHIN).done:
            self._take_values(self._values)  # its callback may not have run yet
        self._run.end(status)

    def _how_it_ended(self) -> RunStatus:
        interrupted = any((rank, self.number) in self._monitor.interrupted for rank in self.ranks)
        if self._stopped or self._monitor.state == "down":
            return "stopped"
        if self.result is not None and self.result.ok:
            return "ok"
        return "stopped" if interrupted else "failed"

    def _look_back(self) -> list[Block]:
        """Notes on the collectives of a cell that has ended: a mismatch, invalid and pending arrays."""
        blocks = []
        if self._check == "warn" and not self._outcome.open and self._first:
            self.mismatch = self._agreement.mismatch(self._first)
            if self.mismatch:
                told = self._unblocking.has_told(self.mismatch)
                what = "What ranks computed in it" if told else f"{self.mismatch}. What they computed there"
                text = f"{what}, and after it in this cell, is invalid.\n"
                blocks.append(Block("text", self.ranks, text, "stderr", own=True))
        return [*blocks, *_said(self._outcome.left_behind(stays=not (self.broke and self._monitor.breakable)))]

    @property
    def unblocks(self) -> bool:
        """Whether missing ranks now enter the collectives in which other ranks wait, so that these return."""
        return self.followed and self._unblocking.releasing

    @property
    def broke(self) -> bool:
        """Whether a collective was aborted, lost a neighbour, or left stray bytes: then the world must be re-formed."""
        return self.mismatch is not None or self._outcome.somebody_was_freed


def _place(view: RankView) -> str:
    return f"at line {view.line}" if view.line else view.state


def _said(findings: Sequence[CellFinding]) -> list[Block]:
    return [Block("text", each.ranks, each.text + "\n", "note") for each in findings]
