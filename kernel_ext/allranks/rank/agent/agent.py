"""The agent: the small thread inside each rank that owns the ledger, the meters and the lifeline.

It keeps running while the main thread is blocked in a collective (MLX releases the GIL there), so it can always report
the rank's location, send printed output, and interrupt Python code. It never evaluates an array.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

from allranks.lifeline.rank_end import RankLifeline
from allranks.machine.lease import BUSY_EVERY, touch_busy
from allranks.messages.events import Answered, Failed, Hello, Leaving, Ready
from allranks.messages.host_messages import RankConfig
from allranks.messages.requests import Form, Question, Request, RunCell
from allranks.messages.value_types import Namespace
from allranks.messages.wire import Buffer, encode
from allranks.pickling import pickle_values
from allranks.rank.cell import tracebacks
from allranks.rank.cell.arrival_order import Turns
from allranks.rank.cell.called_functions import CalledFunctions
from allranks.rank.cell.changed_names import CellNames
from allranks.rank.cell.output_capture import divert_cells
from allranks.rank.cell.rank_comms import Comms
from allranks.rank.cell.recorder import CellRecorder
from allranks.rank.cell.stdio import RankStream, note
from allranks.rank.collectives.aborted import CollectiveAborted
from allranks.rank.collectives.ledger import Ledger
from allranks.rank.debug import introspection
from allranks.rank.debug.debugger import Debugger
from allranks.rank.main_thread.background_tasks import Tasks, UserThreads
from allranks.rank.main_thread.barrier import Barrier
from allranks.rank.main_thread.main_thread_calls import MainThread
from allranks.rank.main_thread.running_cell import RunningCell
from allranks.rank.main_thread.steps import Steps
from allranks.rank.metrics.log import Log
from allranks.rank.metrics.meters import Meters
from allranks.rank.modules.reload import Reloader
from allranks.rank.values.ask_trial_load import Beginning
from allranks.rank.world import recompile
from allranks.rank.world.given_names import GivenNames
from allranks.rank.world.held_sockets import keep_readable
from allranks.rank.world.membership import World
from allranks.rank.world.peer_datagrams import Peers
from allranks.rank.world.reserved_descriptors import Reserve
from allranks.rank.world.stop_main_thread import Unblocker

from .handlers.handle_cells import CellHandlers
from .handlers.handle_collectives import CollectiveHandlers
from .handlers.handle_files import FileHandlers, ReloadHandlers
from .handlers.handle_hosts import HostHandlers
from .handlers.handle_introspection import IntrospectionHandlers
from .handlers.handle_saved_states import StateHandlers
from .handlers.handle_shares import ShareHandlers
from .handlers.handle_variables import CheckpointHandlers, VariableHandlers
from .handlers.handler_table import RequestTable
from .rank_report import EVERY_RUNNING, Reporter

EXIT = os._exit  # Python's own; for the user's code, `Agent._announce_exit` replaces os._exit
LEAVES_WITHIN = 5.0
"""Timeout, in seconds, for sending the last messages of a process that ends itself, on a busy machine."""
SEND_EVERY = 0.03
"""Seconds between two batches of output: often enough for a reader, and few enough messages for Jupyter."""
LATE_WITHIN = 1.0
"""Maximum delay, in seconds, of output that the user's threads print while no cell runs."""
ORPHAN_AFTER = 60.0
"""Seconds without a notebook after which a rank ends itself, on top of its lease; never if its lease is None.

A last resort, since the host process ends its ranks as soon as the notebook's process is gone. Long enough for a
notebook that is stopped with Ctrl-Z or a machine that sleeps."""
PLAIN = (pickle_values.NotPicklable, KeyboardInterrupt, TimeoutError, RuntimeError, NameError)
"""Errors whose message is enough for the user; other errors are bugs and are reported with their traceback."""


class Engine(Protocol):
    """The interface of the rank's ipyparallel engine that the agent uses."""

    loop: Any
    """The main thread's Tornado loop."""

    def console_command(self) -> str:
        """Listen for a console; returns its connection file."""

    def register_again(self) -> None:
        """Register with ipyparallel's controller again."""


class Agent:
    """One per rank process."""

    def __init__(self, config: RankConfig, engine: Engine) -> None:
        """Make the parts of a rank, each after the parts it uses; functions stand for objects that exist only later."""
        self.config = config
        self._shell: Any = None
        self._ready = False
        self.user_ns = user_ns = Namespace()  # IPython's shell uses this very dict (9.18)

        def shell() -> Any:
            return self._shell

        def group() -> Any:
            return self.world.group

        def is_broken() -> bool:
            return self.world.broken_up

        self.lifeline = lifeline = RankLifeline(
            config.lifeline_url,
            config.lifeline_key.encode(),
            config.uuid.encode(),
            on_connect=self._greet,
            on_message=self._handle,
            on_tick=self._tick,
        )
        self.ledger = ledger = recompile.Generation.ledger = Ledger()
        self.meters = meters = Meters(ledger)
        self.reserve = reserve = Reserve()
        self.beginning = Beginning.now()

        self.main = main = MainThread(engine.loop.add_callback)
        self.threads = threads = UserThreads()
        self.cell = cell = RunningCell(main, ledger, user_ns, Tasks(engine.loop.asyncio_loop))
        self.steps = steps = Steps.current = Steps(main, cell)
        barrier = Barrier(cell, ledger, lifeline)
        self.debugger = debugger = Debugger(config.rank, cell, ledger, user_ns, shell, note, lifeline)
        self.reporter = Reporter(cell, ledger, meters, debugger, reserve, steps, lifeline)
        blocked = self.reporter.is_blocked

        self.log = log = Log(cell, ledger, group, is_broken, steps.end, lifeline)
        self.names = names = GivenNames(user_ns, ledger, log.function, group, shell)
        peers = Peers(config.token, lifeline)
        self.world = world = World(
            config, user_ns, names, ledger, meters, reserve, main, cell, threads, blocked, peers, lifeline
        )
        self.unblocker = unblocker = Unblocker(main, cell, blocked, ledger, barrier, debugger, world, peers, lifeline)

        self.comms = comms = Comms(main, shell, lifeline)
        self.calls = calls = CalledFunctions(cell, user_ns, names, shell)
        cell_names = CellNames(user_ns, names, ledger)
        self.recorder = recorder = CellRecorder(
            config.directory, cell, cell_names, calls, ledger, barrier, world, unblocker, debugger, log, comms, lifeline
        )
        RankStream.output = recorder.output

        self.requests = RequestTable(
            CellHandlers(cell, recorder, calls, comms, unblocker, engine.register_again, self.end_process),
            CollectiveHandlers(world, peers, cell, ledger, barrier, unblocker, debugger, user_ns, names),
            HostHandlers(),
            VariableHandlers(config.rank, user_ns, names, ledger, cell),
            CheckpointHandlers(config, self.beginning, world, user_ns, names, cell_names, ledger),
            StateHandlers(config.rank, user_ns, names, ledger),
            FileHandlers(self.beginning),
            ShareHandlers(),
            IntrospectionHandlers(cell, recorder, debugger, user_ns, shell, engine.console_command),
        )

        self._sent_output_at = 0.0
        self._alone = 0.0
        """Seconds without a notebook, as `_end_if_orphaned` counts them."""
        self._ticked_at = time.monotonic()
        self._busy_at = 0.0

    def start(self) -> None:
        self._announce_exit()
        self.lifeline.start()

    def engine_ready(self, kernel: Any) -> None:
        """Finish the set-up with the shell and report that the rank is ready; the engine calls this once registered."""
        self._shell = shell = kernel.shell
        run = divert_cells(kernel, self.cell, self.recorder, self.calls, self.comms, self.debugger)
        turns = Turns(kernel)
        self.requests.accept(RunCell, lambda cell, _: turns.put(partial(run, cell.code, cell.cell), cell.after))
        introspection.install(shell, self.config.rank)
        tracebacks.end_at_the_user(shell, self.reserve.lent)
        self.debugger.install(shell)
        # Only now: the reloader leaves alone all modules that the engine itself has imported.
        reloader = Reloader(self.user_ns)
        self.requests.add(ReloadHandlers(reloader, self.beginning, self.main, self.cell, self.ledger))
        self.beginning.renew()  # IPython has added its entries to sys.path
        shell.user_ns_hidden["log"] = self.log.function  # not one of the user's variables
        self.names.hand_out()
        self.recorder.forget_output()
        if isinstance(sys.stderr, RankStream) and sys.stderr.pipe is not None:
            keep_readable(self.config.holder, sys.stderr.pipe)
        self.threads.begin()
        self._ready = True
        lacks = self.config.cwd and not os.path.isdir(os.path.expanduser(self.config.cwd))
        self.lifeline.send(Ready(self.meters.memory(), self.beginning.directory if lacks else ""))

    def _greet(self) -> None:
        """Inform a notebook that has just connected which rank this is, and resend the messages that it missed."""
        self._alone = 0.0
        self.reporter.report_soon()
        self.log.forget_told()
        config, number, is_open = self.config, self.cell.number, self.recorder.open
        self.lifeline.send(Hello(config.token, config.rank, os.getpid(), config.host, self._ready, number, is_open))
        self.comms.resend()
        self.log.send_rest()  # before the message that a cell is over
        self.recorder.resend()
        self.debugger.resend()

    def _handle(self, request: Request, buffers: Sequence[Buffer]) -> None:
        """Handle a request in the thread that its type names; the answer or error carries the question's number."""

        def handle() -> None:
            handled = sys.exc_info()[1]  # an error that the user's code may be handling where a step ends
            try:
                answered = self.requests.handle(request, buffers)
                if answered is not None and isinstance(request, Question):
                    answer = Answered(request.number, encode(answered.answer))
                    self.lifeline.send(answer, answered.buffers)
            except BaseException as error:
                if isinstance(request, Question):
                    foreseen = isinstance(error, PLAIN)
                    text = str(error) or type(error).__name__
                    told = "" if foreseen else traceback.format_exc()
                    self.lifeline.send(Failed(request.number, type(error).__name__, text, told))
                else:
                    traceback.print_exc()
                if self.cell.running and (stop := _stop_of_the_cell(error, handled)) is not None:
                    raise stop from None  # it was raised between two steps of the cell

        if isinstance(request, Form):
            self.world.asked_to_form()
        if isinstance(request, RunCell):
            self.lifeline.tick_later()
        if request.runs == "main":
            # The message's memory belongs to ZeroMQ's frame, which the closure keeps alive.
            (self.steps if request.in_steps else self.main).call(handle)
        elif request.runs == "thread":
            threading.Thread(target=handle, name=f"allranks-{type(request).__name__}", daemon=True).start()
        else:
            handle()

    def _tick(self) -> float:
        """Do the work that is due; returns the seconds until more is due."""
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
        if not self.recorder.ended and now < due:
            return max(0.001, due - now)
        if self.recorder.send_output():
            self._sent_output_at = now
        return EVERY_RUNNING if self.cell.running else LATE_WITHIN

    def _end_if_orphaned(self, now: float) -> None:
        # A process that was stopped, or whose machine slept, may still find its notebook: only time awake counts.
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
            self.world.release()
            EXIT(0)

    def end_process(self, code: int = 1) -> None:
        """Release JACCL's resources, and end the process without any other clean-up.

        Python's own clean-up needs the main thread, which may be blocked indefinitely.

        In an MPI world whose other ranks go on without this one, a signal ends the process: Open MPI (5.0.11) takes an
        exit for an error that may end other ranks, or does not notice it.
        """
        self.world.release()
        if self.world.mpi.is_in_place:
            os.kill(os.getpid(), signal.SIGKILL)
        EXIT(code)

    def _announce_exit(self) -> None:
        """Make ``os._exit`` first send the output so far, and the line that called it.

        ``os._exit`` ends the process without any clean-up, so this is the only chance to report what the rank did last.
        """
        owner = os.getpid()

        def exit_process(code: int) -> None:
            if os.getpid() == owner:
                if self.lifeline.connected:
                    self._last_words(f"os._exit({code})")
                self.end_process(code)
            EXIT(code)

        os._exit = exit_process  # type: ignore[assignment]

    def _last_words(self, call: str) -> None:
        """Send the output so far and the main thread's line, before the process ends itself."""
        line = self.cell.line()
        self.recorder.output.end()
        self.recorder.send_output()
        self.lifeline.send(Leaving(call, line))
        self.lifeline.close(LEAVES_WITHIN)


def _stop_of_the_cell(error: BaseException | None, handled: BaseException | None) -> BaseException | None:
    """The error that stopped the cell: `error` itself, or one in its chain of contexts; None if there is none.

    The search ends at the error that was already being `handled`, since the cell has seen that one.
    """
    while error is not None and not isinstance(error, (KeyboardInterrupt, CollectiveAborted)):
        error = error.__context__ if error.__context__ is not handled else None
    return error
