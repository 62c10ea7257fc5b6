"""The agent: the small thread inside each rank that owns the ledger, the meters and the lifeline.

It goes on while the main thread is blocked in a collective (MLX releases the GIL there), so it can always say where the
rank is, hand over what was printed, and interrupt Python code. It never evaluates an array.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from allranks.machine.lease import BUSY_EVERY, touch_busy
from allranks.messages import values
from allranks.messages.events import Answered, Entering, Failed, Hello, Leaving, Ready
from allranks.messages.host_messages import RankConfig
from allranks.messages.rank_lifeline import Lifeline
from allranks.messages.requests import Form, Question, Request, RunCell
from allranks.messages.wire import Buffer, encode
from allranks.rank.cell.calls import Calls
from allranks.rank.cell.comms import Comms
from allranks.rank.cell.recorder import CellRecorder
from allranks.rank.cell.stdio import RankStream
from allranks.rank.cell.tasks import Tasks
from allranks.rank.collectives.barrier import Barrier
from allranks.rank.collectives.ledger import Ledger
from allranks.rank.collectives.record import Record
from allranks.rank.debug.debugger import Debugger
from allranks.rank.metrics.log import Log
from allranks.rank.metrics.meters import Meters
from allranks.rank.modules.reload import Reloader
from allranks.rank.values import checkpoint
from allranks.rank.values.trial import Beginning
from allranks.rank.world import recompile
from allranks.rank.world.held_sockets import keep_readable
from allranks.rank.world.membership import World
from allranks.rank.world.reserve import Reserve

from .peers import Peers
from .report import Reporter
from .requests import Requests
from .unblocking import Unblocker

EXIT = os._exit  # the engine wraps os._exit for the user's calls; this one is ours
LEAVES_WITHIN = 5.0
"""Seconds that the last words of a process which ends itself get to leave, on a busy machine."""
SEND_EVERY = 0.03
"""Seconds between two batches of output: enough for an eye, and few enough messages for Jupyter."""
ORPHAN_AFTER = 60.0
"""Seconds without a notebook after which a rank ends itself, on top of its lease.

A last resort, long enough for a notebook that is stopped with Ctrl-Z or a machine that sleeps: the host process ends
its ranks as soon as the notebook's process is gone."""
PLAIN = (values.CannotTravel, KeyboardInterrupt, TimeoutError, RuntimeError, NameError)
"""Errors whose message says all; others are bugs and are reported with their traceback."""


class Agent:
    """One per rank process. `call_main` runs a function in the main thread once that is idle."""

    reloader: Reloader
    """Made before the first cell, and after what the engine itself imports."""

    def __init__(self, config: RankConfig, call_main: Callable[[Callable[[], None]], None]) -> None:
        self.config, self.call_main = config, call_main
        self.main = threading.main_thread()
        self.user_ns: dict[str, Any] = {}
        self.shell: Any = None
        self.ledger = recompile.Generation.ledger = Ledger()
        self.meters = Meters(self.ledger)
        self.lifeline = Lifeline(
            config.lifeline_url,
            config.lifeline_key.encode(),
            config.uuid.encode(),
            on_connect=self._greet,
            on_message=self._handle,
            on_tick=self._tick,
        )
        self.reserve = Reserve()
        self.world = World(self)
        self.barrier = Barrier(self)
        self.cell = CellRecorder(self)
        self.calls = Calls(self)
        self.tasks = Tasks()
        self.debugger = Debugger(self)
        self.reporter = Reporter(self)
        self.unblocker = Unblocker(self)
        self.peers = Peers(self)
        self.log = Log(self)
        self.comms = Comms(self)
        self._requests = Requests(self)
        self.run_cell: Callable[[RunCell], None]
        """Runs a cell in its turn. Set by `output_capture` before the rank is ready."""
        self.open_console: Callable[[], str] = str
        """Has the engine listen for a console; returns its connection file. Set by the engine."""
        self.register_again: Callable[[], None] = lambda: None
        """Registers the engine with ipyparallel's controller again. Set by the engine."""
        self.beginning = Beginning.now()
        self._ready = False
        self._threads: set[int | None] = set()
        """Those that were there before the user's code."""
        self._sent_output_at = 0.0
        self._alone = 0.0
        """Seconds without a notebook."""
        self._ticked_at = time.monotonic()
        self._busy_at = 0.0

    def start(self) -> None:
        self.lifeline.start()

    def engine_ready(self, shell: Any) -> None:
        """The ipyparallel engine can take cells: called by the engine when it has registered."""
        shell.user_ns.update(self.user_ns)
        self.user_ns = shell.user_ns
        self.reloader = Reloader(self.user_ns)
        self.shell = shell
        self.beginning = Beginning.now()  # IPython has put its part on sys.path
        shell.user_ns_hidden["log"] = self.log.function  # no variable of the user's
        self.world.names.hand_out()
        self.cell.forget_output()
        if isinstance(sys.stderr, RankStream) and sys.stderr.pipe is not None:
            keep_readable(self.config.holder, sys.stderr.pipe)
        self._threads = {each.ident for each in threading.enumerate()}
        self._ready = True
        lacks = self.config.cwd and not os.path.isdir(os.path.expanduser(self.config.cwd))
        self.lifeline.send(Ready(self.meters.memory(), self.beginning.directory if lacks else ""))

    def enter_folder(self, folder: str) -> None:
        """Make `folder` the working folder of this process, and of the trials that load variables as it would."""
        os.chdir(folder)
        self.beginning = replace(self.beginning, directory=os.getcwd())

    def has_threads(self) -> bool:
        """Whether there are threads that the user's code has started."""
        ours = (each.ident in self._threads or each.name.startswith("allranks") for each in threading.enumerate())
        return not all(ours)

    def user_variables(self) -> dict[str, Any]:
        """What the user made: nothing before the engine is ready, when a world may be joined already."""
        if self.shell is None:
            return {}
        return checkpoint.user_variables(self.user_ns, self.shell.user_ns_hidden, self.world.names.given())

    def _greet(self) -> None:
        """Tell a notebook that has just connected who this is and what it missed."""
        self._alone = 0.0
        self.reporter.forget()
        self.log.forget_told()
        config, cell = self.config, self.cell
        self.lifeline.send(
            Hello(config.token, config.rank, os.getpid(), config.host, self._ready, cell.number, cell.open)
        )
        self.comms.resend()
        self.cell.resend()
        self.debugger.resend()

    def _handle(self, request: Request, buffers: Sequence[Buffer]) -> None:
        """Handle a request where its type says; the answer, or what went wrong, carries the number of the question."""

        def handle() -> None:
            answer: Answered | Failed | None = None
            out: Sequence[Buffer] = ()
            try:
                answered = self._requests.handle(request, buffers)
                if answered is not None and isinstance(request, Question):
                    answer, out = Answered(request.number, encode(answered.answer)), answered.buffers
            except BaseException as error:
                if isinstance(request, Question):
                    foreseen = isinstance(error, PLAIN)
                    text = str(error) or type(error).__name__
                    told = "" if foreseen else traceback.format_exc()
                    answer = Failed(request.number, type(error).__name__, text, told)
                else:
                    traceback.print_exc()
            if answer is not None:
                self.lifeline.send(answer, out)

        if isinstance(request, Form):
            self.world.asked_to_form()
        if request.runs == "main":
            # The message's memory belongs to ZeroMQ's frame, which the closure keeps alive.
            self.call_main(handle)
        elif request.runs == "thread":
            threading.Thread(target=handle, name=f"allranks-{type(request).__name__}", daemon=True).start()
        else:
            handle()

    def _tick(self) -> float:
        """Do what is due; returns the seconds until something is due again."""
        now = time.monotonic()
        self._end_if_orphaned(now)
        due = (
            self.unblocker.tick(now),
            self.log.tick(now),
            self.comms.tick(now),
            self._send_output(now),
            self.reporter.tick(now),
        )
        return min(*due, self.world.help())

    def _send_output(self, now: float) -> float:
        due = self._sent_output_at + SEND_EVERY
        if not self.cell.ended and now < due:
            return max(0.001, due - now)
        if self.cell.send_output():
            self._sent_output_at = now
        return self.reporter.every

    def _end_if_orphaned(self, now: float) -> None:
        # A process that was stopped, or whose machine slept, may still find its notebook: only its waking hours count.
        step, self._ticked_at = min(now - self._ticked_at, 2.0), now
        lease = self.config.lease
        if self.lifeline.connected:
            self._alone = 0.0
        elif self.cell.running and lease != 0:
            self._alone = 0.0
            if now - self._busy_at >= BUSY_EVERY:
                self._busy_at = now
                touch_busy(self.config.directory)
        else:
            self._alone += step
        if lease is not None and self._alone > ORPHAN_AFTER + lease:
            self.world.jaccl.release()
            EXIT(0)

    def interrupt_main(self) -> None:
        """SIGINT to the main thread, also where that waits in its event loop, as a cell with `await` does.

        Its handler of such a cell (ipykernel 7.4) only asks the loop to call something, which wakes no loop that waits.
        """
        signal.pthread_kill(self.main.ident or 0, signal.SIGINT)
        self.call_main(lambda: None)

    def ask_to_enter(self, record: Record) -> None:
        """Tell the notebook which collective this rank is about to enter (see `rank.collectives.barrier`)."""
        collective = self.reporter.collective(record)
        self.lifeline.send(Entering(self.cell.number, collective))

    def end_process(self, code: int = 1) -> None:
        """End without any clean-up: the main thread may be blocked for good.

        In a world of MPI that goes on without this rank, by a signal: there an exit is an error that may end others, or
        is not noticed (Open MPI 5.0.11).
        """
        self.world.jaccl.release()
        if self.world.mpi.is_in_place:
            os.kill(os.getpid(), signal.SIGKILL)
        EXIT(code)

    def last_words(self, call: str) -> None:
        """Before the process ends itself: send the output so far and where it stands."""
        line = self.reporter.line()
        self.cell.output.end()
        self.cell.send_output()
        self.lifeline.send(Leaving(call, line))
        self.lifeline.close(LEAVES_WITHIN)
