"""One cell on this rank: what it printed, how it ended, and what the notebook has yet to hear of it."""

from __future__ import annotations

import linecache
import traceback
import weakref
from bdb import BdbQuit
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

from . import values
from .debugger import ENDED
from .outlet import LIMIT, Item, Outlet
from .pending import names_in, pending_names
from .trace import TRACE

if TYPE_CHECKING:
    from .agent import Agent


PENDING_WITHIN = 0.02
"""Seconds spent on finding arrays that a cell left pending."""
PEER_LOST = "[ring] connection to a peer was lost"
"""What MLX raises where a neighbour died; a freed rank has lost them all."""
INSTEAD = {
    "mx": "`import mlx.core as mx` brings MLX back.",
    "world": "`world = mx.distributed.init()` brings the group of all ranks back.",
    "rank": "this rank's number is world.rank().",
    "size": "the number of ranks is world.size().",
}
"""Where to find what a name stood for, when the user has taken it."""


class CellRecorder:
    """Begins and ends with each cell the notebook sent; its outlet also takes what is printed between cells."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.number = 0
        self.running = False
        self.ended = False
        self.first_seq = 0
        self.waits_since = 0
        """Number of the collective after which those come that this cell may wait in."""
        self.interruptible = False
        """Whether SIGINT raises KeyboardInterrupt: in the user's code, but not in the engine around it."""
        self.freed = False
        """The next signal comes with the collective that the main thread waited in: it did not take place."""
        self._bound_before: dict[str, tuple[int, weakref.ref[Any] | None]] = {}
        """Which object each of the user's names was when the cell began."""
        self._stopped: int | None = None
        """The cell that was to be stopped before its code ran."""
        self.widgets = False
        """Whether the page that the cell came from shows widgets."""
        self.file: str | None = None
        self.outlet = Outlet(agent.lifeline.wake)
        self._sequence = 0
        self._unacknowledged: list[tuple[dict[str, Any], list[Any]]] = []
        self._error: dict[str, Any] | None = None
        self._final: tuple[dict[str, Any], list[Any]] | None = None
        self._pending: list[str] = []
        """The user's names that the cell before left to be computed by a collective."""
        self._said_taken: set[str] = set()

    def begin(self, options: Mapping[str, Any], file: str | None) -> None:
        """Called in the main thread when a cell of the notebook's starts; `options` came with it."""
        self.number = number = options["cell"]
        limit = options.get("limit")
        strict = options.get("check") == "strict"
        ledger = self._agent.ledger
        self._agent.debugger.begin_cell(number, bool(options.get("breakpoints")))
        ledger.begin_cell(
            guard=self._agent.gate.enter if strict else None,
            ordered=strict or bool(options.get("ordered")),
            watch_order=options.get("check") == "warn",
            profile=bool(options.get("profile")),
            after=self.waits_since if self._pending else ledger.seq,
        )
        self.outlet.end()
        late, _ = self.outlet.take()
        self._agent.comms.send_opens()
        self.outlet.reset(limit or LIMIT)
        self._unacknowledged.clear()
        self._sequence, self._error, self.ended = 0, None, False
        self.file, self.widgets = file, bool(options.get("widgets"))
        self.first_seq = ledger.seq
        ledger.void.begin_cell()
        self._agent.freeing.broke = False
        if not self._pending:
            self.waits_since = ledger.seq
        self._bound_before = {name: (id(value), _reference(value)) for name, value in self._agent.user_ns.items()}
        self.running = True
        TRACE.end()
        if options.get("timeline"):
            TRACE.begin(number)
        header: dict[str, Any] = {"say": "began", "cell": number}
        if late:
            header["late"] = late
        self._agent.lifeline.send(header)

    def stop(self, number: int) -> None:
        """Cell `number`, whose code does not run yet, is to end as soon as it begins."""
        self._stopped = number

    @contextmanager
    def interrupted_here(self) -> Iterator[None]:
        """Within, SIGINT raises KeyboardInterrupt."""
        try:
            self.interruptible = True
            if self._stopped == self.number:
                self._stopped = None
                raise KeyboardInterrupt
            yield
        finally:
            self.interruptible = False

    def on_signal(self) -> None:
        """SIGINT, in the main thread."""
        freed, self.freed = self.freed, False
        if self.interruptible:
            self._stopped = None
            if freed:
                raise RuntimeError(PEER_LOST)
            raise KeyboardInterrupt
        if self.running:
            self._stopped = self.number

    def forget_output(self) -> None:
        """Drop what was printed so far: the engine's own start is no user's output."""
        self.outlet.reset()

    def error(self, content: dict[str, Any], line: int | None, message: str = "") -> None:
        """The cell raised: the error as IPython formatted it, the line of the cell, and a better message if any."""
        self._error = {
            "ename": content.get("ename", ""),
            "evalue": message or content.get("evalue", ""),
            "traceback": [part for part in content.get("traceback", []) if "skipping hidden" not in part],
            "line": line,
            "collective": self._agent.reporter.current_collective(),
        }
        self.outlet.rich("error", self._error)

    def note_error(self, error: BaseException) -> None:
        """The cell raised `error`, which IPython may have printed only (a UsageError, an ExceptionGroup)."""
        if self._error is None and isinstance(error, BdbQuit):
            self.error({"ename": "BdbQuit", "traceback": [f"BdbQuit: {ENDED}"]}, None, ENDED)
        elif self._error is None:
            try:
                message = str(error)
            except Exception:
                message = ""
            self._error = {
                "ename": type(error).__name__,
                "evalue": message,
                "traceback": [],
                "line": None,
                "collective": self._agent.reporter.current_collective(),
            }

    def end(self, value: Any, wants_value: bool) -> None:
        """Called in the main thread when the cell is over."""
        TRACE.end()
        try:
            self._final = self._summed_up(value, wants_value)
        except Exception as error:  # the notebook must hear of the end, whatever goes wrong at it
            lines = traceback.format_exc().splitlines()
            self.error({"ename": type(error).__name__, "evalue": str(error), "traceback": lines}, None)
            unknown = {"at_seq": self._agent.ledger.seq, "shared": [0, 0], "pending": [], "void": []}
            self._final = ({**self._outcome(), **unknown}, [])
        self.running = False
        self.ended = True
        self._agent.lifeline.wake()

    def _outcome(self) -> dict[str, Any]:
        counted = {"lines": self.outlet.lines, "bytes": self.outlet.nbytes, "cut": self.outlet.cut}
        return {"say": "done", "cell": self.number, "ok": self._error is None, "error": self._error, **counted}

    def _summed_up(self, value: Any, wants_value: bool) -> tuple[dict[str, Any], list[Any]]:
        """What the notebook is told of the end, and the packed value."""
        if (not_logged := self._agent.log.end_cell()) and self._error is None:
            self.outlet.write("stderr", not_logged)
        if taken := self._names_taken():
            self.outlet.write("stderr", taken)
        self.outlet.end()
        final: dict[str, Any] = {}
        try:
            final["void"] = self._void()
        except Exception:  # a variable that can be looked at in no way must not hide how the cell ended
            final["void"] = []
        buffers: list[Any] = []
        if wants_value and self._error is None:
            try:
                with self.interrupted_here():
                    buffers = values.pack(value)
            except values.CannotTravel as error:
                final["no_value"] = str(error)
            except KeyboardInterrupt:  # packing evaluates arrays, and so may wait for other ranks
                final["no_value"] = "it was interrupted while its value was computed"
        final |= self._collectives()
        self._pending = final["pending"]
        if self._error is not None:
            final["pending"] = []
        return self._outcome() | final, buffers

    def was_bound(self, name: str) -> bool:
        """Whether the user's name stands for the same object as when the cell began."""
        number, reference = self._bound_before.get(name, (0, None))
        value = self._agent.user_ns.get(name)
        # Where an object has gone, the next one may have its place in memory.
        return number == id(value) and (reference is None or reference() is value)

    def _names_taken(self) -> str:
        """A line on the names every cell starts with that this one gave to something else; once for each name."""
        taken = self._agent.world.taken() - self._said_taken
        self._said_taken |= taken
        lines = [f"{name} is now a variable of yours: {INSTEAD[name]}\n" for name in sorted(taken)]
        return "".join(lines)

    def _void(self) -> list[str]:
        """The user's variables that hold garbage, if a collective was broken off in this cell."""
        ledger, error = self._agent.ledger, self._error
        lost = error is not None and PEER_LOST in error["evalue"]
        if not (lost or self._agent.freeing.broke or ledger.refuse is not None):
            if ledger.void.asked:
                ledger.void.watch(self._agent.world.streams(), self._agent.world.is_whole)
            return []
        user_ns, line = self._agent.user_ns, error["line"] if error is not None else None
        named = names_in(linecache.getline(self.file or "", line)) if line else set()
        # What was computed before this cell is fine, unless it was left to be computed.
        looked_at = [
            user_ns[name] for name in named & user_ns.keys() if name in self._pending or not self.was_bound(name)
        ]
        found = ledger.void.break_off(ledger.order.last_entered(), *looked_at)
        return ledger.void.names(self._agent.user_variables(), found)

    def _collectives(self) -> dict[str, Any]:
        """What the notebook compares across ranks, and what still waits for a collective."""
        ledger = self._agent.ledger
        count, checksum = ledger.fingerprint(self.first_seq)
        user_ns, pending = self._agent.user_ns, self._pending
        if self._error is not None:  # what it made belongs to a world that may be broken
            pending = pending_names(user_ns, set(pending), PENDING_WITHIN) if pending else []
        elif count or pending:
            pending = pending_names(user_ns, within=PENDING_WITHIN)
        told: dict[str, Any] = {"at_seq": ledger.seq, "shared": [count, checksum], "pending": pending}
        if ledger.timed:
            told["timed"] = list(ledger.timed)
        return told

    def send_output(self) -> bool:
        """Send what is new, and the end after the last output; False if there was nothing."""
        if not self.running and not self.ended:
            return False
        ended = self.ended
        items, live = self.outlet.take()
        self._agent.comms.send_opens()
        if items or live is not None:
            self._send({"say": "output", "cell": self.number, "items": items, "live": live})
        if ended and self._final:
            self.ended = False
            final, buffers = self._final
            self._final = None
            self._agent.log.send_rest()
            self._send(final, buffers)
        return bool(items or live is not None or ended)

    def _send(self, header: dict[str, Any], buffers: list[Any] | None = None) -> None:
        self._sequence += 1
        header["seq"] = self._sequence
        self._unacknowledged.append((header, buffers or []))
        self._agent.lifeline.send(header, buffers or ())

    @property
    def open(self) -> bool:
        """Whether a notebook has yet to hear how the cell ended."""
        return self.running or self.ended or bool(self._unacknowledged)

    def resend(self) -> None:
        """After a reconnect: everything of this cell again; the notebook drops by `seq` what it already has."""
        for header, buffers in self._unacknowledged:
            self._agent.lifeline.send(header, buffers)

    def acknowledge(self, number: int) -> None:
        """The notebook has the whole cell: nothing need be kept."""
        if number == self.number and not self.running:
            self._unacknowledged.clear()

    def line_of(self, frame: FrameType) -> tuple[int, str]:
        """Line of the cell where the main thread stands, and its text.

        A function the user defined in an earlier cell is running for a line of this one: that line is named.
        """
        found = frame
        at: FrameType | None = frame
        while at is not None:
            if at.f_globals is frame.f_globals:
                found = at
                if at.f_code.co_filename == self.file:
                    break
            at = at.f_back
        return found.f_lineno, linecache.getline(found.f_code.co_filename, found.f_lineno).strip()[:80]


def _reference(value: Any) -> weakref.ref[Any] | None:
    try:
        return weakref.ref(value)
    except TypeError:  # numbers, text and containers take none
        return None


__all__ = ["CellRecorder", "Item"]
