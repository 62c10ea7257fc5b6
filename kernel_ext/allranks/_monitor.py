"""What the ranks tell, turned into one Snapshot.

Everything that shows the world reads the Snapshot; everything that waits for the ranks waits on this monitor. Nothing
else polls them.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from allranks_backends._plan import Link, Snapshot, WorldState

from ._comms import MirroredComms
from ._history import History
from ._known_rank import Header, Rank
from ._logged import Logged
from ._profile import Profile
from ._views import host_views, link_view, notes, rank_view

Event = tuple[str, int, Header, Sequence[Any]]
"""(what, rank, header, buffers): ``output``, ``done``, ``began`` of a cell, or ``dead``."""


class Monitor:
    """Fed by the lifeline and the host processes, from their threads."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.backend = ""
        self.state: WorldState = "starting"
        self.epoch = 0
        self.adopting = False
        """Whether cells that this notebook did not send are followed."""
        self.last_cell = 0
        """The highest number of a cell that any rank has seen."""
        self.breakable = False
        """Whether a blocked collective can be made to raise."""
        self.ranks: list[Rank] = []
        self.links: Sequence[Link] = ()
        """Every way the backend sends."""
        self.peak: float | None = None
        """Highest bus bandwidth that `bench` measured, in bytes a second."""
        self.history = History()
        self.logged = Logged()
        self.comms = MirroredComms()
        self.profile = Profile()
        self.changed = threading.Condition()
        self.acknowledge: Callable[[str, int], None] = lambda _uuid, _cell: None
        self._by_uuid: dict[str, Rank] = {}
        self._listeners: dict[int, queue.SimpleQueue[Event | None]] = {}

    def put(self, rank: Rank) -> None:
        """Know a new process: the next rank, or one in place of another that had its number."""
        with self.changed:
            if rank.rank < len(self.ranks):
                self._forget(self.ranks[rank.rank])
                self.ranks[rank.rank] = rank
            else:
                self.ranks.append(rank)
            self._by_uuid[rank.uuid] = rank

    def truncate(self, size: int) -> None:
        """Forget the ranks from number `size` on."""
        with self.changed:
            for rank in self.ranks[size:]:
                self._forget(rank)
            del self.ranks[size:]

    def _forget(self, rank: Rank) -> None:
        self._by_uuid.pop(rank.uuid, None)
        self.comms.gone(rank.uuid)

    def adopted(self) -> dict[int, tuple[list[int], queue.SimpleQueue[Event | None]]]:
        """The cells of the notebook before: their ranks, and their events from the first one kept."""
        with self.changed:
            self.adopting = False
            return {
                cell: ([rank.rank for rank in self.ranks if rank.cell == cell or cell in rank.past], events)
                for cell, events in self._listeners.items()
            }

    def listen(self, cell: int, ranks: Sequence[int]) -> queue.SimpleQueue[Event | None]:
        """Events of one cell. The ranks are busy from now on, until they are done with it or dead."""
        events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        with self.changed:
            self._listeners[cell] = events
            for number in ranks:
                rank = self.ranks[number]
                rank.cell, rank.seen, rank.failed, rank.since = cell, 0, None, time.monotonic()
                rank.report = {
                    key: value for key, value in rank.report.items() if key not in ("line", "source", "waiting")
                }
        return events

    def unlisten(self, cell: int) -> None:
        with self.changed:
            self._listeners.pop(cell, None)

    def wait(self, condition: Callable[[], bool], timeout: float) -> bool:
        """Wait until `condition` holds; it is looked at whenever something was heard."""
        with self.changed:
            return self.changed.wait_for(condition, timeout)

    def heard(self, uuid: str, header: Header, buffers: Sequence[Any]) -> None:
        """A message of a rank's agent, in the lifeline's thread."""
        with self.changed:
            rank = self._by_uuid.get(uuid)
            if rank is None:
                return
            rank.heard = time.monotonic()
            getattr(self, f"_on_{header['say']}")(rank, header, buffers)
            self.changed.notify_all()

    def _on_hello(self, rank: Rank, header: Header, _: Sequence[Any]) -> None:
        rank.connected, rank.pid = True, header["pid"]
        rank.ready = rank.ready or header["ready"]
        if self.adopting and header["open"]:
            # A cell of the notebook before: the rank now sends all that is kept of it.
            rank.cell = header["cell"]
            self._listeners.setdefault(header["cell"], queue.SimpleQueue())
        self.last_cell = max(self.last_cell, header["cell"])

    def _on_ready(self, rank: Rank, header: Header, _: Sequence[Any]) -> None:
        rank.ready = True
        rank.report = {**rank.report, **header}  # memory, so that the first status shows it

    def _on_state(self, rank: Rank, header: Header, _: Sequence[Any]) -> None:
        if header.get("waiting") != rank.report.get("waiting"):
            rank.since = time.monotonic()
        rank.report, rank.seq = header, header["seq"]
        if self.history.due(time.time()):
            self.history.add(self.snapshot())
        self._tell(rank, "state", header, ())

    def _on_logged(self, rank: Rank, header: Header, _: Sequence[Any]) -> None:
        self.logged.take(rank.rank, rank.uuid, header["first"], header["calls"])

    def _on_comms(self, rank: Rank, header: Header, buffers: Sequence[Any]) -> None:
        self.comms.take(rank.uuid, header, buffers, len(self.alive()))

    def _on_leaving(self, rank: Rank, header: Header, _: Sequence[Any]) -> None:
        rank.leaving = header

    def _on_began(self, rank: Rank, header: Header, _: Sequence[Any]) -> None:
        rank.late.extend(header.pop("late", ()))
        self._tell(rank, "began", header, ())

    def _on_freed(self, rank: Rank, header: Header, _: Sequence[Any]) -> None:
        if header.get("broke"):
            self.state = "broken"
        self._tell(rank, "freed", header, ())

    def _on_debugger(self, rank: Rank, header: Header, _: Sequence[Any]) -> None:
        rank.since = time.monotonic()
        rank.debugger = header if header["open"] or header["stepping"] else None
        self._tell(rank, "debugger", header, ())

    def _on_enter(self, rank: Rank, header: Header, _: Sequence[Any]) -> None:
        self._tell(rank, "enter", header, ())

    def _on_output(self, rank: Rank, header: Header, _: Sequence[Any]) -> None:
        if self._is_new(rank, header):
            self._tell(rank, "output", header, ())

    def _on_done(self, rank: Rank, header: Header, buffers: Sequence[Any]) -> None:
        if not self._is_new(rank, header):
            return
        rank.past.add(header["cell"])
        rank.debugger = None
        rank.cell, rank.since, rank.seq = None, time.monotonic(), header["at_seq"]
        if "timed" in header:
            members = sum(each.cell == header["cell"] or header["cell"] in each.past for each in self.ranks)
            self.profile.add(header["cell"], rank.rank, header["timed"], members)
        rank.failed = header["error"]["ename"] if header.get("error") else None
        rank.report = {**rank.report, "running": False, "waiting": False}
        self._tell(rank, "done", header, buffers)
        self.acknowledge(rank.uuid, header["cell"])

    def _is_new(self, rank: Rank, header: Header) -> bool:
        """Whether this is the next message of the rank's cell, not one sent again after a reconnect."""
        if header["cell"] != rank.cell or header["seq"] <= rank.seen:
            return False
        rank.seen = header["seq"]
        return True

    def _tell(self, rank: Rank, what: str, header: Header, buffers: Sequence[Any]) -> None:
        cell = header.get("cell")
        if isinstance(cell, int) and cell in self._listeners:
            self._listeners[cell].put((what, rank.rank, header, buffers))

    def disconnected(self, uuid: str) -> None:
        """The rank's connection closed; whether it is dead is for its parent or its host to say."""
        with self.changed:
            rank = self._by_uuid.get(uuid)
            if rank is not None:
                rank.connected = False
                self.changed.notify_all()

    def died(self, number: int, cause: str) -> None:
        """The rank's process has ended."""
        with self.changed:
            rank = self.ranks[number]
            if rank.dead is not None or self.state == "down":
                return
            if rank.leaving:
                line = rank.leaving.get("line") or rank.report.get("line")
                cause = f"{rank.leaving['call']} called" + (f" at line {line}" if line else "")
            elif rank.cell is not None and rank.report.get("line"):
                cause += f"; it was last seen at line {rank.report['line']}: {rank.report.get('source', '')}".rstrip(
                    ": "
                )
            rank.dead, rank.connected, rank.since = cause, False, time.monotonic()
            rank.debugger = None
            self.comms.gone(rank.uuid)
            cell, rank.cell = rank.cell, None
            if self.state == "whole":
                self.state = "broken"
            if cell is not None and cell in self._listeners:
                self._listeners[cell].put(("dead", number, {"cause": cause}, ()))
            self.changed.notify_all()

    def busy(self, ranks: Sequence[int]) -> list[Rank]:
        """Those of `ranks` that still run a cell."""
        return [rank for rank in (self.ranks[number] for number in ranks) if rank.busy]

    def alive(self) -> list[Rank]:
        return [rank for rank in self.ranks if rank.dead is None]

    def snapshot(self) -> Snapshot:
        """Everything there is to show, now."""
        with self.changed:
            return Snapshot(
                self.name,
                self.backend,
                self.state,
                self.epoch,
                tuple(rank_view(rank, self.profile) for rank in self.ranks),
                time.time(),
                notes(self.state, self.ranks),
                hosts=host_views(self.ranks),
                links=tuple(link_view(link, self.ranks) for link in self.links),
                peak=self.peak,
                straggler=self.profile.straggler,
            )
