"""One cell on this rank: what it printed, how it ended, and what the notebook has yet to receive of it."""

from __future__ import annotations

import linecache
import traceback
from bdb import BdbQuit
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from allranks.messages import values
from allranks.messages.cell_options import CellRequest
from allranks.messages.events import Began, CellError, Done, EvaluatedAtOnce, Output, Timed, packed
from allranks.messages.wire import Buffer
from allranks.rank.collectives.aborted import CollectiveAborted, follows_abort, is_peer_loss
from allranks.rank.collectives.exchanges import exchanged
from allranks.rank.collectives.trace import TRACE
from allranks.rank.debug.debugger import ENDED

from . import tracebacks
from .interrupt import Interrupt
from .kept_events import KeptEvents
from .names import Names
from .output_buffer import LIMIT, OutputBuffer
from .printed import Printed
from .tasks import Task

if TYPE_CHECKING:
    from allranks.rank.agent.agent import Agent


class CellRecorder:
    """Begins and ends with each cell the notebook sent; its output also takes what is printed between cells."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.names = Names(agent)
        self.number = 0
        self._begun: dict[str, int] = {}
        """The highest number of a cell that began here, by the notebook's end of the lifeline that sent it."""
        self.running = False
        self.ended = False
        self.first_number = 0
        self.waits_since = 0
        """Number of the collective after which those come that this cell may wait in."""
        self.tasks = WeakSet[Task]()
        """The asyncio tasks of earlier cells that were pending when this one began."""
        self.interrupt = Interrupt(agent.ledger.aborted)
        self.widgets = False
        """Whether the page that the cell came from shows widgets."""
        self.file: str | None = None
        """Whose lines are the cell's: its own, or that of the function it calls, which `place` names."""
        self.place = ""
        self.namespace: dict[str, Any] | None = None
        """By whose frames the user's code is known, where it is not by the user's namespace."""
        self.printed = Printed(Path(agent.config.directory))
        self.output = OutputBuffer(agent.lifeline.wake, printed=self.printed)
        self._kept = KeptEvents(agent.lifeline)
        self._error: CellError | None = None
        self._final: tuple[Done, Sequence[Buffer]] | None = None

    def is_copy(self, request: CellRequest) -> bool:
        """Whether the cell has begun here already: one that seemed lost is sent again, and carried out once."""
        return request.number <= self._begun.get(request.sender, 0)

    def begin(self, request: CellRequest, file: str | None) -> None:
        """Called in the main thread when a cell of the notebook's starts."""
        options = request.options
        self.number = number = request.number
        self._begun[request.sender] = number
        strict = options.check == "strict"
        ledger = self._agent.ledger
        self._agent.debugger.begin_cell(number, options.breakpoints)
        self._agent.calls.begin_cell(number)
        ledger.begin_cell(
            guard=self._agent.barrier.enter if strict else None,
            ordered=strict or bool(options.ordered),
            watch_order=options.check == "warn",
            timing=options.timing,
            after=self.waits_since if self.names.pending else ledger.seq,
        )
        self.output.end()
        late, _ = self.output.take()
        self._agent.comms.send_opens()
        self.output.reset(options.max_output or LIMIT)
        self.printed.begin(number)
        self._kept.begin_cell()
        self._error, self.ended = None, False
        self.file, self.place, self.namespace = file, "", None
        self.widgets = request.widgets
        ledger.user_ns = self._agent.user_ns
        self.first_number = ledger.number
        ledger.invalid.begin_cell()
        ledger.aborted.begin_cell()
        self.interrupt.begin_cell(number)
        self._agent.unblocker.begin_cell(number)
        if not self.names.pending:
            self.waits_since = ledger.seq
        self.names.begin()
        self.tasks = WeakSet(self._agent.tasks.pending())
        self.running = True
        TRACE.end()
        if options.timeline:
            TRACE.begin(number)
        self._agent.lifeline.send(Began(number, packed(late)))

    def enter(self, file: str, place: str, namespace: dict[str, Any]) -> None:
        """The cell calls a function: from here on, its lines are those of that one's file."""
        self.file, self.place, self.namespace = file, place, namespace
        self._agent.ledger.user_ns = namespace

    def forget_output(self) -> None:
        """Drop what was printed so far: the engine's own start is no user's output."""
        self.output.reset()

    def error(
        self, content: Mapping[str, Any], line: int | None, message: str = "", raised: BaseException | None = None
    ) -> None:
        """The cell raised: the error as IPython formatted it, the line of the cell, and a better message if any."""
        lines = tracebacks.without_hidden(content.get("traceback", []))
        self._raised(content.get("ename", ""), message or content.get("evalue", ""), lines, line, raised)

    def _raised(
        self,
        name: str,
        message: str,
        traceback: list[str],
        line: int | None = None,
        raised: BaseException | None = None,
    ) -> None:
        self._error = self._described(name, message, traceback, line, raised)
        self.output.error(self._error)

    def note_error(self, error: BaseException) -> None:
        """The cell raised `error`, which IPython may have printed only (a UsageError, an ExceptionGroup)."""
        if self._error is None and isinstance(error, BdbQuit):
            self._raised("BdbQuit", ENDED, [f"BdbQuit: {ENDED}"])
        elif self._error is None:
            try:
                message = str(error)
            except Exception:
                message = ""
            line, _ = tracebacks.place_of_error(error, self.file)
            self._error = self._described(type(error).__name__, message, [], line, error)

    def _described(
        self, name: str, message: str, traceback: list[str], line: int | None, raised: BaseException | None
    ) -> CellError:
        """The report of an error, with whether the cell failed only because a collective was aborted."""
        collective = self._agent.reporter.current_collective()
        lost = collective is not None and is_peer_loss(message)
        aborted = lost or self._agent.ledger.aborted.sentence is not None or follows_abort(raised)
        return CellError(name, message, traceback, line, self.place, collective, aborted)

    def end(self, value: Any, wants_value: bool) -> None:
        """Called in the main thread when the cell is over."""
        TRACE.end()
        ledger = self._agent.ledger
        if (refusal := ledger.chain.refusal) is not None and self._error is None:
            self._raised("RuntimeError", refusal, [f"RuntimeError: {refusal}"])
        self._fail_if_aborted()
        try:
            self._final = self._summed_up(value, wants_value)
        except Exception as error:  # the head must know of the end, whatever goes wrong at it
            self._raised(type(error).__name__, str(error), traceback.format_exc().splitlines())
            self._final = (self._done(entered=ledger.number, shared=(0, 0)), [])
        ledger.end_cell()
        if self._error is not None and not self._error.aborted:
            self._agent.unblocker.failed(self.number)
        self.running = False
        self.ended = True
        self._agent.lifeline.wake()

    def _fail_if_aborted(self) -> None:
        """The user's code has swallowed that a collective was aborted, or nothing has told it."""
        aborted = self._agent.ledger.aborted
        aborted.look()
        aborted.owed = None
        if aborted.sentence is not None and self._error is None:
            name = CollectiveAborted.__name__
            self._raised(name, aborted.sentence, [f"{name}: {aborted.sentence}"])

    def _done(self, **rest: Any) -> Done:
        output = self.output
        return Done(self.number, self._error is None, self._error, output.lines, output.nbytes, output.cut, **rest)

    def _summed_up(self, value: Any, wants_value: bool) -> tuple[Done, Sequence[Buffer]]:
        """How the cell ended, and the packed value."""
        if (not_logged := self._agent.log.end_cell()) and self._error is None:
            self.output.write("stderr", not_logged)
        if shadowed := self.names.shadowed(self._error, self.file):
            self.output.write("stderr", shadowed)
        if taken := self.names.taken():
            self.output.write("stderr", taken)
        self.output.end()
        no_value: str | None = None
        buffers: Sequence[Buffer] = ()
        if wants_value and self._error is None:
            try:
                with self.interrupt.allowed():
                    buffers = values.pack(value)
            except values.CannotTravel as error:
                no_value = str(error) + self._agent.calls.left_here(value)
            except KeyboardInterrupt:  # packing evaluates arrays, and so may wait for other ranks
                no_value = "interrupted while computing the value"
            # Only now: packing may have been aborted, too.
            self._fail_if_aborted()
            if self._error is not None:
                buffers = ()
        ledger, reporter = self._agent.ledger, self._agent.reporter
        invalid = tuple(self._invalid())
        shared = ledger.fingerprint(self.first_number)
        entered = shared[0] > 0 and ledger.order.settled < ledger.seq
        done = self._done(
            entered=ledger.number,
            shared=shared,
            pending=tuple(self.names.left_pending(entered=entered, failed=self._error is not None)),
            invalid=invalid,
            unmarked=tuple(reporter.collective(each) for each in ledger.aborted.unmarked),
            settled=ledger.settled(),
            timed=tuple(Timed(*each) for each in ledger.timed) if ledger.timed else None,
            no_value=no_value,
            at_once=self._at_once(),
            exchanged=exchanged(ledger),
        )
        return done, buffers

    def _at_once(self) -> EvaluatedAtOnce | None:
        ledger = self._agent.ledger
        numbers, threads = ledger.order.at_once.numbers, ledger.order.at_once.names
        entries = tuple(self._agent.reporter.collective(each) for each in ledger.records(numbers))
        return EvaluatedAtOnce(entries, threads) if entries or threads else None

    def _invalid(self) -> list[str]:
        """The user's variables that may be invalid."""
        ledger, error = self._agent.ledger, self._error
        lost = error is not None and is_peer_loss(error.evalue)
        if lost or self._agent.unblocker.broke or (ledger.refuse is not None and not ledger.refused_in_cell):
            with suppress(Exception):  # a variable that can be looked at in no way must not hide how the cell ended
                return self.names.spoiled(error, self.file)
        elif ledger.invalid.asked:
            ledger.invalid.watch(self._agent.world.streams(), self._agent.world.is_whole)
        return []

    def send_output(self) -> bool:
        """Send what is new, and the end after the last output; False if there was nothing."""
        if not self.running and not self.ended:
            return False
        ended = self.ended
        items, live = self.output.take()
        self._agent.comms.send_opens()
        if items or live is not None:
            self._kept.send(Output(self.number, packed(items), live))
        if ended and self._final:
            self.ended = False
            final, buffers = self._final
            self._final = None
            self._agent.log.send_rest()
            self._kept.send(final, buffers)
        return bool(items or live is not None or ended)

    def drop_value(self) -> None:
        """The cell is over, and is not waited for any more. From the lifeline's thread."""
        self._kept.drop_value("interrupted while it was sent")

    @property
    def open(self) -> bool:
        """Whether a notebook does not know yet how the cell ended."""
        return self.running or self.ended or bool(self._kept)

    def resend(self) -> None:
        """After a reconnect: everything of this cell again."""
        self._kept.resend()

    def acknowledge(self, number: int) -> None:
        """The notebook has the whole cell: nothing need be kept."""
        if number == self.number and not self.running:
            self._kept.acknowledged()

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
