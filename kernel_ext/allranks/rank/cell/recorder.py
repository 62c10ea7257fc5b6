"""Records a cell on this rank: its output, how it ended, and the events that the notebook has yet to receive."""

from __future__ import annotations

import os
import traceback
from bdb import BdbQuit
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import structs

from allranks.lifeline.rank_end import RankLifeline
from allranks.lifeline.transfers import is_large
from allranks.messages.cell_options import CellRequest
from allranks.messages.events import Began, CellError, Done, EvaluatedAtOnce, Output, Timed, packed
from allranks.messages.wire import Buffer
from allranks.pickling import pickle_values
from allranks.rank.collectives.aborted import CollectiveAborted, follows_abort, is_peer_loss
from allranks.rank.collectives.exchanges import exchanged
from allranks.rank.collectives.ledger import Ledger
from allranks.rank.collectives.trace import TRACE
from allranks.rank.debug.debugger import ENDED, Debugger
from allranks.rank.main_thread.barrier import Barrier
from allranks.rank.main_thread.running_cell import RunningCell
from allranks.rank.metrics.log import Log
from allranks.rank.world.membership import World
from allranks.rank.world.stop_main_thread import Unblocker

from . import tracebacks
from .called_functions import CalledFunctions
from .changed_names import CellNames
from .kept_events import KeptEvents
from .output_buffer import LIMIT, OutputBuffer
from .rank_comms import Comms
from .whole_output import Printed


class CellRecorder:
    """Records each of the notebook's cells in turn; `output` also takes text that is printed between cells."""

    def __init__(
        self,
        directory: str,
        cell: RunningCell,
        names: CellNames,
        calls: CalledFunctions,
        ledger: Ledger,
        barrier: Barrier,
        world: World,
        unblocker: Unblocker,
        debugger: Debugger,
        log: Log,
        comms: Comms,
        lifeline: RankLifeline,
    ) -> None:
        self._cell, self._names, self._calls, self._ledger, self._barrier = cell, names, calls, ledger, barrier
        self._world, self._unblocker, self._debugger, self._log = world, unblocker, debugger, log
        self._comms, self._lifeline = comms, lifeline
        self._begun: dict[str, int] = {}
        """The highest number of a cell that began here, by sender (the notebook's end of a lifeline)."""
        self.ended = False
        self._first_number = 0
        self.widgets = False
        """Whether the page that the cell came from shows widgets."""
        self._printed = Printed(Path(directory))
        self.output = OutputBuffer(lifeline.wake_soon, printed=self._printed)
        os.register_at_fork(after_in_child=self.output.drop_in_child)
        self._kept = KeptEvents(lifeline)
        self._error: CellError | None = None
        self._began: Began | None = None
        """The report that this cell began, until the agent sends it; its end, if that comes first, says as much."""
        self._final: tuple[Done, Sequence[Buffer]] | None = None

    def is_copy(self, request: CellRequest) -> bool:
        """Whether the cell has begun here already: a cell that seemed lost is sent again, but runs only once."""
        return request.number <= self._begun.get(request.sender, 0)

    def begin(self, request: CellRequest, file: str | None) -> None:
        """Begin one of the notebook's cells, in the main thread."""
        options, cell, ledger = request.options, self._cell, self._ledger
        cell.number = number = request.number
        self._begun[request.sender] = number
        strict = options.check == "strict"
        self._debugger.begin_cell(number, options.breakpoints)
        self._calls.begin_cell(number)
        ledger.begin_cell(
            guard=self._barrier.enter if strict else None,
            ordered=strict or bool(options.ordered),
            watch_order=options.check == "warn",
            timing=options.timing,
            after=cell.waits_since if self._names.pending else ledger.seq,
        )
        self.output.end()
        late, _ = self.output.take()
        self._comms.send_opens()
        self.output.reset(options.max_output or LIMIT)
        self._printed.begin(number)
        self._kept.begin_cell()
        self._error, self.ended = None, False
        cell.enter(file)
        self.widgets = request.widgets
        self._first_number = ledger.number
        ledger.invalid.begin_cell()
        ledger.aborted.begin_cell()
        cell.interrupt.begin_cell(number)
        self._unblocker.begin_cell(number)
        if not self._names.pending:
            cell.waits_since = ledger.seq
        self._names.begin()
        cell.run()
        TRACE.end()
        if options.timeline:
            TRACE.begin(number)
        self._began = Began(number, packed(late))
        self._lifeline.wake_soon()

    def forget_output(self) -> None:
        """Drop the output so far: the start of the engine printed it, not the user's code."""
        self.output.take()
        self.output.reset()

    def read_printed(self, cell: int, offset: int) -> tuple[bytes, int, str]:
        """Same as `Printed.read`, including text that was only just printed."""
        self.output.keep()
        return self._printed.read(cell, offset)

    def error(self, content: Mapping[str, Any], raised: BaseException | None = None) -> None:
        """Note the error that made the cell fail, in IPython's form; `raised` is what the cell raised, if known."""
        line, message = tracebacks.place_of_error(raised, self._cell.file)
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
        """Note the `error` that the cell raised, if none is noted yet: IPython only prints a UsageError, say."""
        if self._error is None and isinstance(error, BdbQuit):
            self._raised("BdbQuit", ENDED, [f"BdbQuit: {ENDED}"])
        elif self._error is None:
            try:
                message = str(error)
            except Exception:
                message = ""
            line, _ = tracebacks.place_of_error(error, self._cell.file)
            self._error = self._described(type(error).__name__, message, [], line, error)

    def _described(
        self, name: str, message: str, traceback: list[str], line: int | None, raised: BaseException | None
    ) -> CellError:
        """The report of an error; it says whether the cell failed only because a collective was aborted."""
        collective = self._cell.current_collective()
        lost = collective is not None and is_peer_loss(message)
        aborted = lost or self._ledger.aborted.sentence is not None or follows_abort(raised)
        return CellError(name, message, traceback, line, self._cell.place, collective, aborted)

    def end(self, value: object, wants_value: bool) -> None:
        """End the cell, in the main thread."""
        TRACE.end()
        ledger = self._ledger
        if (refusal := ledger.chain.refusal) is not None and self._error is None:
            self._raised("RuntimeError", refusal, [f"RuntimeError: {refusal}"])
        self._fail_if_aborted()
        try:
            self._final = self._summed_up(value, wants_value)
        except Exception as error:  # the head must learn of the end, whatever fails here
            self._raised(type(error).__name__, str(error), traceback.format_exc().splitlines())
            self._final = (self._done(entered=ledger.number, shared=(0, 0)), [])
        ledger.end_cell()
        if self._error is not None and not self._error.aborted:
            self._unblocker.failed(self._cell.number)
        self._cell.running = False
        ledger.aborted.owed = None  # an abort that came while the cell ended must not raise an error in other code
        self.ended = True
        self._lifeline.wake()

    def _fail_if_aborted(self) -> None:
        """Fail the cell if a collective was aborted but the user's code swallowed the error or never got one."""
        aborted = self._ledger.aborted
        aborted.look()
        aborted.owed = None
        if aborted.sentence is not None and self._error is None:
            name = CollectiveAborted.__name__
            self._raised(name, aborted.sentence, [f"{name}: {aborted.sentence}"])

    def _done(self, **rest: Any) -> Done:
        number, output = self._cell.number, self.output
        return Done(number, self._error is None, self._error, output.lines, output.nbytes, output.cut, **rest)

    def _summed_up(self, value: object, wants_value: bool) -> tuple[Done, Sequence[Buffer]]:
        """The report on how the cell ended, and its packed value."""
        if not_logged := self._log.end_cell(failed=self._error is not None):
            self.output.write("note", not_logged)
        if shadowed := self._names.shadowed(self._error, self._cell.file):
            self.output.write("note", shadowed)
        if taken := self._names.taken():
            self.output.write("note", taken)
        self.output.end()
        no_value: str | None = None
        buffers: Sequence[Buffer] = ()
        if wants_value and self._error is None:
            try:
                with self._cell.interrupt.allowed():
                    buffers = pickle_values.pack(value)
            except pickle_values.NotPicklable as error:
                no_value = str(error) + self._calls.left_here(value)
            except KeyboardInterrupt:  # packing evaluates arrays, and so may wait for other ranks
                no_value = "interrupted while computing the value"
            # Checked only now: a collective may have been aborted during packing, too.
            self._fail_if_aborted()
            if self._error is not None:
                buffers = ()
        ledger, cell = self._ledger, self._cell
        invalid = tuple(self._invalid())
        shared = ledger.fingerprint(self._first_number)
        entered = shared[0] > 0 and ledger.order.settled < ledger.seq
        done = self._done(
            entered=ledger.number,
            shared=shared,
            pending=tuple(self._names.left_pending(entered=entered, failed=self._error is not None)),
            invalid=invalid,
            unmarked=tuple(cell.collective(each) for each in ledger.aborted.unmarked),
            settled=ledger.settled(),
            timed=tuple(Timed(*each) for each in ledger.timed) if ledger.timed else None,
            no_value=no_value,
            at_once=self._at_once(),
            exchanged=exchanged(ledger),
        )
        return done, buffers

    def _at_once(self) -> EvaluatedAtOnce | None:
        ledger = self._ledger
        numbers, threads = ledger.order.at_once.numbers, ledger.order.at_once.names
        entries = tuple(self._cell.collective(each) for each in ledger.records(numbers))
        return EvaluatedAtOnce(entries, threads) if entries or threads else None

    def _invalid(self) -> list[str]:
        """Names of the user's variables that may be invalid."""
        ledger, error = self._ledger, self._error
        lost = error is not None and is_peer_loss(error.evalue)
        if lost or self._unblocker.broke or (ledger.refuse is not None and not ledger.refused_in_cell):
            with suppress(Exception):  # a variable that cannot be inspected must not hide how the cell ended
                return self._names.spoiled(error, self._cell.file)
        elif ledger.invalid.asked:
            ledger.invalid.watch(self._world.streams(), self._world.is_whole)
        return []

    def send_output(self) -> bool:
        """Send new output, and after the last output the cell's end. Returns False if there was nothing to send."""
        if not self._cell.running and not self.ended:
            return False
        ended = self.ended
        if (began := self._began) is not None:
            self._began = None
            if began.late or not ended:
                self._lifeline.send(began)
        items, live = self.output.take()
        self._comms.send_opens()
        output = packed(items)
        final, buffers = self._final if ended and self._final else (None, ())
        if final is not None and not is_large(buffers):
            final = structs.replace(final, output=output)
        elif items or live is not None:
            self._kept.send(Output(self._cell.number, output, live))
        if final is not None:
            self.ended = False
            self._final = None
            self._log.send_rest()
            self._kept.send(final, buffers)
        return bool(items or live is not None or ended)

    def drop_value(self) -> None:
        """Stop sending the ended cell's value, since the user has interrupted the cell. In the agent's thread."""
        self._kept.drop_value("interrupted while it was sent")

    @property
    def open(self) -> bool:
        """Whether the notebook has yet to learn how the cell ended."""
        return self._cell.running or self.ended or bool(self._kept)

    def resend(self) -> None:
        """Send all events of this cell again, after a reconnect."""
        self._kept.resend()

    def acknowledge(self, number: int) -> None:
        """Forget the events of the ended cell `number`, since the notebook has all of them."""
        if number == self._cell.number and not self._cell.running:
            self._kept.acknowledged()
