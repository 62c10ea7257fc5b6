"""The debugger of a rank: ``breakpoint()`` in a cell, and a look back (post-mortem) at what a cell raised.

The main thread is in pdb and waits for commands, which the agent receives over the lifeline and passes on; pdb's output
is sent over the lifeline, too.
"""

from __future__ import annotations

import gc
import importlib
import pdb
import queue
import sys
import threading
import traceback
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from allranks.lifeline.rank_end import RankLifeline
from allranks.messages.events import AtDebugger
from allranks.messages.value_types import Namespace
from allranks.rank.collectives.ledger import Ledger
from allranks.rank.main_thread.running_cell import RunningCell

from .rank_pdb import RankPdb

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

PASSED_OVER = (
    "breakpoint() was skipped: no interactive input here. It stops cells of a notebook or of IPython, and those begun "
    "with cluster.begin(code, breakpoints=True), for cluster.debug(rank)."
)
ENDED = "the cell was quit in the debugger (q)"


class Debugger:
    def __init__(
        self,
        rank: int,
        cell: RunningCell,
        ledger: Ledger,
        user_ns: Namespace,
        shell: Callable[[], InteractiveShell],
        note: Callable[[str], None],
        lifeline: RankLifeline,
    ) -> None:
        """`shell` returns IPython's shell, which exists before the first cell. `note` shows a sentence in the cell."""
        self._rank, self._cell, self._ledger, self._user_ns = rank, cell, ledger, user_ns
        self._shell, self._note, self._lifeline = shell, note, lifeline
        self._commands: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
        self._pdb: RankPdb | None = None
        self._number: int | None = None
        self._answered = 0
        self._last: AtDebugger | None = None
        self.stops = False
        """Whether ``breakpoint()`` stops: only if commands can be typed."""
        self.at_prompt = False
        """Whether the main thread waits for a command."""
        self.looking_back = False
        """Whether a look back is open: the rank is busy then, though no cell runs."""
        self._error: BaseException | None = None

    @property
    def open(self) -> bool:
        """Whether the rank is at a prompt of the debugger, or runs a command that was typed there."""
        return self._last is not None and self._last.open

    # Called by the engine, in the main thread.

    def install(self, shell: Any) -> None:
        """Replace the functions by which code enters the debugger of Python or IPython, and the magic ``%debug``."""
        sys.breakpointhook = pdb.set_trace = self._break
        pdb.post_mortem = self._break_at_error
        ipython: Any = importlib.import_module("IPython.core.debugger")
        ipython.set_trace = self._break

        def debug(_line: str, _cell: str = "") -> None:
            print(f"%debug does not work on a rank. Run %distributed debug -r {self._rank} in a separate cell.")

        shell.register_magic_function(debug, "line_cell", "debug")

    def begin_cell(self, number: int, stops: bool) -> None:
        """Begin a cell, and `forget` the previous cell's error. `stops`: whether ``breakpoint()`` stops the cell."""
        self._number, self.stops = number, stops
        self.forget()

    def end_cell(self, error: BaseException | None) -> None:
        """End the cell, and keep the `error` that it raised for a look back; None if it raised none."""
        self._error = error
        self.stops = False
        if self._pdb is not None:
            # pdb traces every frame, up to the frames that run the engine.
            sys.settrace(None)
            frame: FrameType | None = sys._getframe()
            while frame is not None:
                frame.f_trace = None
                frame = frame.f_back
            self._pdb.clear_all_breaks()
            self._pdb = None

    def forget(self) -> None:
        """Drop the error that the last cell raised, and the variables in the frames of its traceback."""
        error, self._error = self._error, None
        if error is None:
            return
        for name in ("last_type", "last_value", "last_traceback", "last_exc"):
            if hasattr(sys, name):
                setattr(sys, name, None)
        shell = self._shell()
        for name in ("tb", "evalue", "etype"):
            if hasattr(shell.InteractiveTB, name):
                setattr(shell.InteractiveTB, name, None)
        shell.last_execution_result = None
        seen: set[int] = set()
        while isinstance(error, BaseException) and id(error) not in seen:
            # Other holders of the exception keep its message, but not its variables.
            seen.add(id(error))
            traceback.clear_frames(error.__traceback__)
            error = error.__cause__ or error.__context__
        gc.collect()  # pdb and the traceback formatter leave the frames in reference cycles

    # Ways in.

    def _break(self, *_: object, **__: object) -> None:
        __tracebackhide__ = True
        if self._may_stop():
            self._pdb = self._pdb or self._new_pdb()
            self._pdb.set_trace(sys._getframe().f_back)

    def _break_at_error(self, t: TracebackType | BaseException | None = None) -> None:
        __tracebackhide__ = True
        raised = t.__traceback__ if isinstance(t, BaseException) else t or sys.exc_info()[2]
        if raised is None:
            raise ValueError("no traceback to debug")
        if self._may_stop():
            self._new_pdb().interaction(None, raised)

    def _may_stop(self) -> bool:
        if not self.stops:
            self._note(PASSED_OVER)
        elif threading.current_thread() is not threading.main_thread():
            self._note("breakpoint() was skipped: it stops the main thread only.")
            return False
        return self.stops

    def look_back(self) -> None:
        """Debug the last cell's error, in the frames of its traceback, until the user quits or interrupts.

        Raises RuntimeError if the cell raised no error, or raised it before any line of its code ran.
        """
        error, rank = self._error, self._rank
        if error is None:
            raise RuntimeError(f"nothing to debug: the last cell of rank {rank} raised no error.")
        debugger = self._new_pdb()
        if error.__traceback__ is None or not debugger.get_stack(None, error.__traceback__)[0]:
            raise RuntimeError(f"{type(error).__name__} was raised on rank {rank} before any line of the cell ran.")
        self._number, self.looking_back = None, True
        try:
            with self._cell.interrupt.allowed():
                debugger.message("".join(traceback.format_exception_only(type(error), error)).rstrip())
                debugger.reset()
                debugger.interaction(None, error.__traceback__)
        except KeyboardInterrupt:
            pass  # it ends the look back, and nothing else
        finally:
            self.looking_back = False
            self._tell(open=False, stepping=False, text=debugger.take())

    def held(self) -> list[tuple[str, object]]:
        """Names and values of the local variables in the frames of the last cell's error, which the next cell drops."""
        at, found = self._error.__traceback__ if self._error is not None else None, []
        while at is not None:
            if at.tb_frame.f_locals is not self._user_ns:
                found += list(at.tb_frame.f_locals.items())
            at = at.tb_next
        return found

    def _new_pdb(self) -> RankPdb:
        while not self._commands.empty():  # meant for an earlier stop
            self._commands.get_nowait()
        return RankPdb(self._user_ns, self._ledger, self._read, self._went_on)

    # Commands and answers.

    def put(self, number: int, command: str) -> None:
        """Queue a command that the user typed. Called in the agent's thread."""
        self._commands.put((number, command))

    def resend(self) -> None:
        """Send the open prompt again, to a new notebook."""
        if self._last is not None and self._last.open:
            self._lifeline.send(self._last)

    def _read(self, printed: str) -> str:
        self._tell(open=True, stepping=True, text=printed)
        try:
            self.at_prompt = True
            number, command = self._commands.get()
        finally:
            self.at_prompt = False
        self._answered = number
        return command + "\n"

    def _went_on(self, stepping: bool) -> None:
        if not self.looking_back:
            self._tell(open=False, stepping=stepping, text="")

    def _tell(self, *, open: bool, stepping: bool, text: str) -> None:
        line, source = None, None
        if not self.looking_back and (frame := self._cell.user_frame()) is not None:
            line, source = self._cell.line_of(frame)
        self._last = AtDebugger(self._number, open, stepping, text, self._answered, line, source)
        self._lifeline.send(self._last)
