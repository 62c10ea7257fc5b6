"""The notebook's end of a rank's debugger: sends commands and receives pdb's output."""

from __future__ import annotations

import itertools
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING

from allranks.errors import Busy, UsageError, WorldBroken
from allranks.head.state.shared_advice import HEALS, died_text
from allranks.lifeline.open_questions import Reply, RequestFailed
from allranks.messages.events import AtDebugger
from allranks.messages.requests import Debug, Interrupt, LookBack, Nothing
from allranks.notebook.keyboard import Read, ask
from allranks_backends.views import AT_REST

if TYPE_CHECKING:
    from allranks.head.state.known_rank import Rank
    from allranks.head.state.monitor import Monitor
    from allranks.head.world.ranks import Ranks
    from allranks.lifeline.head_end import Lifeline

OPEN_WITHIN = 10.0
"""Seconds that an idle rank may take to start a post-mortem."""
LEAVE_WITHIN = 2.0
"""Seconds that a post-mortem may take to end when it is interrupted."""
numbers = itertools.count(time.time_ns())
"""Numbers of commands: an answer names the last command received. They begin at the current time, so that a notebook
that takes the cluster over later uses higher numbers."""


class RankDebugger:
    """A rank stopped in pdb: `ask` sends a command, `close` (or ``with``) ends the debugger."""

    def __init__(self, rank: Rank, monitor: Monitor, lifeline: Lifeline) -> None:
        self._rank, self._monitor, self._lifeline = rank, monitor, lifeline
        self._cell = rank.debugger.cell if rank.debugger is not None else None
        self.text = rank.debugger.text if rank.debugger is not None else ""
        """What pdb printed when the rank stopped."""

    @property
    def rank(self) -> int:
        return self._rank.rank

    @property
    def open(self) -> bool:
        """Whether the rank waits for a command or executes one."""
        said = self._rank.debugger
        return said is not None and said.open and said.cell == self._cell

    def ask(self, command: str, timeout: float | None = None) -> str:
        """Send a command such as ``p x``, ``up``, ``where``, ``n`` or ``c``, and return what pdb prints.

        A command that resumes the code returns when the rank stops again or has left the debugger (see `open`). Raises
        TimeoutError after `timeout` seconds (the rank continues nevertheless), UsageError if the debugger is closed,
        and WorldBroken if the rank dies.
        """
        if not self.open:
            raise UsageError(f"rank {self.rank} is no longer in the debugger.")
        number = next(numbers)
        self._lifeline.tell(self._rank.uuid, Debug(number, command))
        if not self._monitor.wait(lambda: self._answered(number), 1e9 if timeout is None else timeout):
            doing = self._monitor.snapshot().ranks[self.rank].doing
            raise TimeoutError(f"rank {self.rank} did not return to its prompt within {timeout:g} s: it is {doing}.")
        if self._rank.dead:
            raise WorldBroken(f"rank {self.rank} died in the debugger ({self._rank.dead}). {HEALS}.")
        said = self._rank.debugger
        return said.text if said is not None else ""

    def _answered(self, number: int) -> bool:
        said = self._rank.debugger
        return self._rank.dead is not None or said is None or (said.answered >= number and not on_its_way(said))

    def ask_user(self, read: Read) -> str | None:
        """Return what the user types (``q`` at the end of input), or None once the rank has left the debugger.

        Raises KeyboardInterrupt.
        """
        try:
            return ask(read, f"(Pdb) rank {self.rank}: ", self._monitor, lambda: not self.open, None)
        except EOFError:
            return "q"

    def leave(self) -> str:
        """End a post-mortem, even while it runs code; a rank at a breakpoint stays there. Returns a message."""
        if self._cell is None:
            if self.open:
                self._lifeline.tell(self._rank.uuid, Interrupt(None))
                self._monitor.wait(lambda: not self.open, LEAVE_WITHIN)
            return f"rank {self.rank} has left the debugger."
        stays = f"is still there; return with %distributed debug -r {self.rank}" if self.open else "continues"
        return f"rank {self.rank} {stays}."

    def close(self) -> None:
        """Quit the debugger: ends the post-mortem, or the cell at its breakpoint. Does nothing if it is closed."""
        while self.open:
            self.ask("q")

    def __enter__(self) -> RankDebugger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<RankDebugger of rank {self.rank}: {self._monitor.snapshot().ranks[self.rank].doing}>"


def on_its_way(said: AtDebugger) -> bool:
    """Whether the code has been resumed and may stop at a prompt again."""
    return not said.open and said.stepping


def enter(ranks: Ranks, number: int) -> RankDebugger:
    """The debugger of a rank at a breakpoint, or else a post-mortem of its last error. Raises UsageError and Busy."""
    monitor, lifeline = ranks.monitor, ranks.lifeline
    rank = monitor.ranks[number]
    if rank.dead:
        raise UsageError(f"nothing to debug: {died_text([rank])}. {HEALS}.")
    if rank.debugger is None or not rank.debugger.open:
        if monitor.busy([number]):
            raise Busy(
                f"rank {number} is {monitor.snapshot().ranks[number].doing}, not at a breakpoint. Put breakpoint() "
                "into the cell to stop there, or debug it once it has raised an error."
            )
        answer = lifeline.ask(rank.uuid, LookBack())
        if not monitor.wait(lambda: answer.done() or _stands(rank), OPEN_WITHIN):
            raise Busy(f"rank {number} did not answer within {OPEN_WITHIN:g} s: it is busy with something else.")
        if answer.done():
            raise UsageError(_why_not(number, answer))
    return RankDebugger(rank, monitor, lifeline)


def rank_to_debug(monitor: Monitor) -> int:
    """The rank to debug: the first one at a breakpoint, otherwise one whose last cell raised.

    Of several that raised, it is the rank with the newest cell. If none raised, it is a rank that was stopped or
    unblocked. Raises UsageError if there is nothing to debug.
    """
    newest = sorted(monitor.ranks, key=lambda rank: -max(rank.past, default=0))
    ended = [rank for rank in newest if rank.state in AT_REST]
    at_breakpoint = [rank for rank in monitor.ranks if rank.state == "debugging"]
    failed = [rank for rank in ended if rank.failed]
    stopped = [rank for rank in ended if rank.unblocked or rank.interrupted]
    if found := at_breakpoint or failed or stopped:
        return found[0].rank
    dead = died_text(monitor.ranks)
    raise UsageError(
        "nothing to debug: no rank is at a breakpoint and none raised in its last cell"
        + (f"; {dead}. {HEALS}." if dead else "")
    )


def _stands(rank: Rank) -> bool:
    return rank.dead is not None or (rank.debugger is not None and rank.debugger.open)


def _why_not(number: int, answer: Future[Reply[Nothing]]) -> str:
    try:
        answer.result()
    except RequestFailed as error:
        return str(error)
    except ConnectionError:
        return f"rank {number} ended in the meantime. {HEALS}."
    return f"rank {number} has left the debugger."
