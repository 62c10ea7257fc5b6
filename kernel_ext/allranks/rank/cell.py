"""One cell on this rank: what it printed, how it ended, and what the notebook has yet to hear of it."""

from __future__ import annotations

import linecache
import traceback
from bdb import BdbQuit
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any

from . import values
from .debugger import ENDED
from .names import Names
from .outlet import LIMIT, Item, Outlet
from .trace import TRACE

if TYPE_CHECKING:
    from .agent import Agent

PEER_LOST = "[ring] connection to a peer was lost"
"""What MLX raises where a neighbour died; a freed rank has lost them all."""


class CellRecorder:
    """Begins and ends with each cell the notebook sent; its outlet also takes what is printed between cells."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.names = Names(agent)
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
            after=self.waits_since if self.names.pending else ledger.seq,
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
        if not self.names.pending:
            self.waits_since = ledger.seq
        self.names.begin()
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
        if taken := self.names.taken():
            self.outlet.write("stderr", taken)
        self.outlet.end()
        final: dict[str, Any] = {"void": self._void()}
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
        return self._outcome() | final, buffers

    def _void(self) -> list[str]:
        """The user's variables that may hold garbage."""
        ledger, error = self._agent.ledger, self._error
        lost = error is not None and PEER_LOST in error["evalue"]
        if lost or self._agent.freeing.broke or ledger.refuse is not None:
            with suppress(Exception):  # a variable that can be looked at in no way must not hide how the cell ended
                return self.names.spoiled(error, self.file)
        elif ledger.void.asked:
            ledger.void.watch(self._agent.world.streams(), self._agent.world.is_whole)
        return []

    def _collectives(self) -> dict[str, Any]:
        """What the notebook compares across ranks, and what still waits for a collective."""
        ledger = self._agent.ledger
        count, checksum = ledger.fingerprint(self.first_seq)
        pending = self.names.left_pending(entered=bool(count), failed=self._error is not None)
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


__all__ = ["CellRecorder", "Item"]
