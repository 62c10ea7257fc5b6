"""Turns what the ranks report into one Snapshot.

Everything that shows the world reads the Snapshot; everything that waits for the ranks waits on this monitor. Nothing
else polls them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING

from msgspec import structs

from allranks.messages.events import (
    AtDebugger,
    Began,
    CellEvent,
    CommMessages,
    Done,
    Event,
    Hello,
    Item,
    Leaving,
    Listens,
    LogCalls,
    Output,
    Ready,
    State,
    Unblocked,
    unpacked,
)
from allranks.messages.requests import Acknowledge, Exit, Request
from allranks.messages.wire import Buffer
from allranks_backends.views import Snapshot

from .cell_updates import CellUpdate, CellUpdates, Died
from .known_rank import Away, Rank
from .known_world import KnownWorld
from .logged import Logged
from .make_views import snapshot_of
from .traffic_history import History
from .widget_comms import NoComms, WidgetComms

if TYPE_CHECKING:
    from allranks.lifeline.open_questions import Reply
    from allranks.messages.requests import Joined


def unsent(_uuid: str, _request: Request) -> None:
    """Send nothing, for a monitor without ranks."""


def nothing_kept(_uuid: str) -> None:
    """Forget nothing, for a monitor without ranks."""


class Monitor(KnownWorld):
    """The world as the ranks and hosts report it. The lifeline and the host processes feed it, from their threads."""

    def __init__(
        self,
        name: str,
        comms: WidgetComms | None = None,
        tell: Callable[[str, Request], None] = unsent,
        forget: Callable[[str], None] = nothing_kept,
    ) -> None:
        """`tell` sends a request to the process with the given uuid; `forget` drops what is kept to be sent to it."""
        super().__init__(name)
        self._tell, self._forget_unsent = tell, forget
        self.adopting = False
        """Whether to track each rank's last cell, sent by the previous notebook, if its end was not acknowledged."""
        self.last_cell = 0
        """The highest cell number in the `Hello` of any rank: where a notebook that attaches goes on counting."""
        self.revocable = False
        """Whether ranks outside a broken collective must answer the ranks in it."""
        self.joining: Collection[Future[Reply[Joined]]] = ()
        """Pending answers of ranks that still wait for others in a world that was given up."""
        self.divided = False
        """Whether some ranks joined in the last attempt to form a world, and others did not."""
        self.left_pending: dict[int, tuple[str, ...]] = {}
        """By rank, names of variables that are invalid, since they wait for collectives of the previous world."""
        self.history = History()
        self.logged = Logged()
        self.comms = comms or NoComms()
        self.changed = threading.Condition()
        self.interrupted: set[tuple[int, int | None]] = set()
        """Interrupted cells: pairs of a rank and the number of its cell."""
        self.unblocks_until = 0.0
        """The `time.monotonic` until which ranks left over from a stopped cell are still being unblocked."""
        self._by_uuid: dict[str, Rank] = {}
        self._listeners: dict[int, CellUpdates] = {}

    def put(self, rank: Rank) -> None:
        """Add a new process: the next rank, or a replacement of the rank with its number."""
        with self.changed:
            for before in self.ranks[rank.rank : rank.rank + 1]:
                self._forget(before)
            self.ranks[rank.rank : rank.rank + 1] = [rank]
            self._by_uuid[rank.uuid] = rank

    def truncate(self, size: int) -> None:
        """Forget the ranks from number `size` on."""
        with self.changed:
            for rank in self.ranks[size:]:
                self._forget(rank)
            del self.ranks[size:]

    def _forget(self, rank: Rank) -> None:
        self._by_uuid.pop(rank.uuid, None)
        self._forget_unsent(rank.uuid)
        self.comms.gone(rank.uuid)
        self.times.forget(rank.rank)

    def adopted(self) -> dict[int, tuple[list[int], CellUpdates]]:
        """Return, by number, the cells of the previous notebook: their ranks, and their updates that ranks have kept.

        From now on, no further cells are adopted.
        """
        with self.changed:
            self.adopting = False
            return {
                cell: ([rank.rank for rank in self.ranks if rank.cell == cell or cell in rank.past], updates)
                for cell, updates in self._listeners.items()
            }

    def listen(self, cell: int, ranks: Sequence[int]) -> CellUpdates:
        """Return the queue of updates on one cell. Its ranks are busy until they are done with the cell or dead."""
        updates = CellUpdates()
        with self.changed:
            self._listeners[cell] = updates
            for rank in self.ranks:
                rank.interrupted = False
            for number in ranks:
                rank = self.ranks[number]
                rank.cell, rank.seen, rank.since = cell, 0, time.monotonic()
                rank.failed, rank.unblocked = None, False
                rank.report = structs.replace(rank.report, line=None, source=None, waiting=False)
        return updates

    def unlisten(self, cell: int) -> None:
        with self.changed:
            self._listeners.pop(cell, None)

    def wait(self, condition: Callable[[], bool], timeout: float) -> bool:
        """Wait until `condition` holds, and return whether it does; it is checked whenever something is received."""
        with self.changed:
            return self.changed.wait_for(condition, timeout)

    def receive(self, uuid: str, event: Event, buffers: Sequence[Buffer]) -> None:
        """Handle a message of a rank's agent, in the lifeline's thread. Raises NotUnderstood."""
        with self.changed:
            rank = self._by_uuid.get(uuid)
            if rank is None:
                if isinstance(event, Hello):  # the rank was replaced while its host was out of reach
                    self._tell(uuid, Exit())
                return
            rank.received_at = time.monotonic()
            try:
                self._take(rank, event, buffers)
            finally:
                self.changed.notify_all()

    def _take(self, rank: Rank, event: Event, buffers: Sequence[Buffer]) -> None:
        match event:
            case Hello():
                self._greeted(rank, event)
            case Ready():
                rank.ready, rank.folder = True, event.folder
                rank.report = structs.replace(rank.report, memory=event.memory)  # so that the first status shows it
            case State():
                self._reported(rank, event)
            case LogCalls():
                self.logged.take(rank.rank, rank.uuid, event.first, event.calls)
            case CommMessages():
                self.comms.take(rank.uuid, event, buffers, len(self.alive()))
            case Listens(port=port):
                rank.listens = port
            case Leaving():
                rank.leaving = event
            case AtDebugger():
                rank.since = time.monotonic()
                rank.debugger = event if event.open or event.stepping else None
                self._pass_on(rank, event.cell, event)
            case Output() | Done():
                if self._is_new(rank, event):
                    self._take_new(rank, event, buffers)
                elif isinstance(event, Done) and event.cell in rank.past:  # the rank missed the acknowledgement
                    self._tell(rank.uuid, Acknowledge(event.cell))
            case CellEvent():
                if isinstance(event, Began):
                    rank.late.extend(unpacked(event.late))
                elif isinstance(event, Unblocked):
                    rank.unblocked |= event.cell == rank.cell and not event.in_task
                    self.state = "broken" if event.broke else self.state
                self._pass_on(rank, event.cell, event)

    def _greeted(self, rank: Rank, hello: Hello) -> None:
        rank.connected, rank.pid = True, hello.pid
        rank.connected_at = rank.connected_at or time.monotonic()
        rank.ready = rank.ready or hello.ready
        if self.adopting and hello.open:
            # A cell of the previous notebook: the rank now sends all messages of the cell that it has kept.
            rank.cell = hello.cell
            self._listeners.setdefault(hello.cell, CellUpdates())
        self.last_cell = max(self.last_cell, hello.cell)

    def _reported(self, rank: Rank, state: State) -> None:
        waits_or_waited = state.waiting or rank.report.waiting
        if state.waiting != rank.report.waiting:
            rank.since = time.monotonic()
        rank.report, rank.entered = state, state.entered
        if self.history.due(time.time()):
            self.history.add(self.snapshot())
        if waits_or_waited:  # the rest of a report is polled
            self._pass_on(rank, state.cell, state)

    def _take_new(self, rank: Rank, event: Output | Done, buffers: Sequence[Buffer]) -> None:
        if isinstance(event, Output):
            self._pass_on(rank, event.cell, event, items=unpacked(event.items))
            return
        items: list[Item] = []
        try:
            items = unpacked(event.output)
        finally:  # the cell is over, even if its last output is not understood
            self._ended(rank, event)
            uneventful = event.ok and not event.output and not buffers and event.no_value is None
            can_wait = uneventful and any(each.cell == event.cell for each in self.ranks)
            self._pass_on(rank, event.cell, event, buffers, items, can_wait=can_wait)
            self._tell(rank.uuid, Acknowledge(event.cell))

    def _ended(self, rank: Rank, done: Done) -> None:
        rank.past.add(done.cell)
        rank.invalid = () if done.cell in self._listeners else done.invalid
        rank.debugger = None
        rank.cell, rank.since, rank.entered = None, time.monotonic(), done.entered
        if done.timed is not None:
            members = sum(each.cell == done.cell or done.cell in each.past for each in self.ranks)
            self.times.add(done.cell, rank.rank, done.timed, members)
        rank.unblocked = done.error is not None and (done.error.aborted or rank.unblocked)
        raised = done.error.ename if done.error is not None and not rank.unblocked else None
        was_stopped = (rank.rank, done.cell) in self.interrupted  # the cell's own code may raise KeyboardInterrupt, too
        rank.interrupted = was_stopped and raised == KeyboardInterrupt.__name__
        rank.failed = None if rank.interrupted else raised
        rank.report = structs.replace(rank.report, running=False, waiting=False)

    def _is_new(self, rank: Rank, event: Output | Done) -> bool:
        """Whether this is the next message of the rank's cell, not one sent again after a reconnect."""
        if event.cell != rank.cell or event.seq <= rank.seen:
            return False
        rank.seen = event.seq
        return True

    def _pass_on(
        self,
        rank: Rank,
        cell: int | None,
        event: Event,
        buffers: Sequence[Buffer] = (),
        items: Sequence[Item] = (),
        *,
        can_wait: bool = False,
    ) -> None:
        if cell in self._listeners:
            updates, update = self._listeners[cell], CellUpdate(rank.rank, event, buffers, items)
            if can_wait:
                updates.put_later(update)
            else:
                updates.put(update)

    def disconnected(self, uuid: str) -> None:
        """Note that the rank's connection closed. Whether the rank is dead is reported by its parent or its host."""
        with self.changed:
            rank = self._by_uuid.get(uuid)
            if rank is not None:
                rank.connected = False
                self.changed.notify_all()

    def host_away(self, name: str, *, away: bool, why: str = "") -> None:
        """Note that a host is out of reach, or is reached again; its ranks go on.

        `why` is the reason why the last login failed; empty before the first attempt.
        """
        with self.changed:
            if why and name not in self.away:  # the host came back after the failed attempt
                return
            if away:
                self.away[name] = Away(self.away[name].since if name in self.away else time.monotonic(), why)
            else:
                self.away.pop(name, None)
            for rank in (each for each in self.ranks if each.host == name):
                rank.host_back_at = 0.0 if away else time.monotonic()
            self.changed.notify_all()

    def died(self, number: int, cause: str) -> None:
        """Note that the rank's process has ended, for `cause`."""
        with self.changed:
            rank = self.ranks[number]
            if rank.dead is not None or self.state == "down":
                return
            if rank.leaving:
                line = rank.leaving.line or rank.report.line
                cause = f"{rank.leaving.call} called" + (f" at line {line}" if line else "")
            elif rank.cell is not None and rank.report.line:
                cause += f"; last seen at line {rank.report.line}: {rank.report.source or ''}".rstrip(": ")
            rank.dead, rank.connected, rank.since = cause, False, time.monotonic()
            rank.debugger = None
            self.comms.gone(rank.uuid)
            cell, rank.cell = rank.cell, None
            if self.state == "whole":
                self.state = "broken"
            if cell is not None and cell in self._listeners:
                self._listeners[cell].put(CellUpdate(number, Died(cause)))
            self.changed.notify_all()

    def explain(self, before: str, cause: str) -> None:
        """Replace the assumed cause `before` of ranks' deaths by the real `cause`."""
        with self.changed:
            for rank in self.ranks:
                if rank.dead is not None and rank.dead.startswith(before):
                    rank.dead = cause + rank.dead.removeprefix(before)
            self.changed.notify_all()

    def begins_replay(self, rank: Rank) -> None:
        """Note that an idle rank enters collectives that it missed: it is busy from now on."""
        with self.changed:
            rank.replaying = True

    def ends_replay(self, rank: Rank, entered: int | None) -> None:
        """Note that the rank has finished entering collectives that it missed.

        `entered` is its number of collectives so far; None if it did not answer.
        """
        with self.changed:
            rank.replaying = False
            if entered is not None:
                rank.entered = entered
            self.changed.notify_all()

    def is_stopped(self, uuid: str) -> bool:
        """Whether a rank's process is known to be stopped, so that it cannot answer now."""
        rank = self._by_uuid.get(uuid)
        return rank is not None and rank.process_is_stopped()

    def unblocks_for(self) -> float | None:
        """Seconds for which ranks left over from a stopped cell will still be unblocked; None if none are."""
        left = self.unblocks_until - time.monotonic()
        return left if left > 0 and self.state == "whole" else None

    def snapshot(self) -> Snapshot:
        """Return the Snapshot of the world as it is now."""
        with self.changed:
            return snapshot_of(self)
