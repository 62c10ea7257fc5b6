"""The single debugger prompt of a cell, for all its ranks that are stopped in pdb."""

from __future__ import annotations

import time
from collections.abc import Sequence

from allranks.head.state.monitor import Monitor
from allranks.lifeline.head_end import Lifeline
from allranks.messages.events import AtDebugger
from allranks.messages.requests import Debug
from allranks.notebook.fold import Block
from allranks.notebook.keyboard import Read, ask
from allranks_backends.plan import alike, rank_label
from allranks_backends.views import NOT_RESPONDING, RankView, Snapshot

from .debug import numbers, on_its_way

SETTLE = 0.7
"""Seconds between a stop of a rank and the prompt: other ranks may stop, too, or begin to wait for stopped ranks."""
PATIENCE = 1.5
"""Seconds that a rank gets to return to its prompt before another rank is chosen."""
HELP = (
    "pdb commands go to this rank (n, s, c, p x, up, where, q); @1 switches to rank 1, @all n sends n to all of them."
)


class Conversation:
    """The debugger prompt of one cell. The cell passes it the messages of its ranks' debuggers (`receive`).

    `read` is ``input``, or None if there is no keyboard.
    """

    def __init__(self, monitor: Monitor, lifeline: Lifeline, read: Read | None) -> None:
        self._monitor, self._lifeline, self._read = monitor, lifeline, read
        self._stands: dict[int, AtDebugger] = {}
        self._unshown: dict[int, str] = {}
        self._rank: int | None = None
        """The rank whose prompt is shown; None if none was chosen."""
        self._moved = 0.0
        """The `time.monotonic` at which a rank last stopped, or was last sent a command."""
        self._helped = False
        self._said = ""
        self._over = False

    def receive(self, rank: int, said: AtDebugger) -> None:
        """Take a message of a rank's debugger."""
        if said.text:
            self._unshown[rank] = self._unshown.get(rank, "") + said.text
        if said.open:
            self._stands[rank] = said
            self._moved = time.monotonic()
        else:
            self._stands.pop(rank, None)
            if not on_its_way(said) and rank == self._rank:
                self._rank = None

    def ended(self, rank: int) -> None:
        """Note that the rank has ended the cell."""
        self.receive(rank, AtDebugger(None, open=False, stepping=False, text=""))

    def end(self) -> None:
        """Show no more prompts: the cell is being stopped."""
        self._over = True

    @property
    def open(self) -> bool:
        """Whether a rank is stopped in the debugger and the user can type."""
        return bool(self._stands) and self._read is not None and not self._over

    def next_look(self) -> float | None:
        """When (`time.monotonic`) to check `due` even if nothing is received; None if no prompt can be shown."""
        if not self.open:
            return None
        return time.monotonic() if self._rank in self._stands else self._moved + self._grace

    def due(self, views: Sequence[RankView]) -> bool:
        """Whether to ask the user now; `views` has the ranks that still run the cell."""
        if not self.open:
            return False
        # The snapshot may know of a stop whose message has not been received here yet.
        settled = all(view.rank in self._stands or view.state in {"waiting", *NOT_RESPONDING} for view in views)
        return self._rank in self._stands or settled or time.monotonic() >= self._moved + self._grace

    @property
    def _grace(self) -> float:
        return SETTLE if self._rank is None else PATIENCE

    def said(self) -> list[Block]:
        """The output to show, in which equal output of several ranks appears once.

        If the user cannot type, notes say which ranks have stopped, and how to debug them.
        """
        groups = alike(dict(sorted(self._unshown.items())))
        self._unshown.clear()
        blocks = [Block("text", tuple(ranks), text, own=True) for text, ranks in groups.items()]
        if self._read is None and not self._over:
            for rank, where in sorted(self._stands.items()):
                text = f"in the debugger at line {where.line}: enter it with %distributed debug -r {rank}\n"
                blocks.append(Block("text", (rank,), text, "note"))
            self._stands.clear()
        return blocks

    def meanwhile(self, snapshot: Snapshot, ranks: Sequence[int]) -> list[Block]:
        """What the other ranks do, if that has changed; the first time also what can be typed."""
        here = self._turn()
        others = [rank for rank in ranks if rank != here]
        text = f"meanwhile: {snapshot.doing(others)}\n" if others else ""
        new, self._said = text if text != self._said else "", text
        if not self._helped:
            self._helped, new = True, new + HELP + "\n"
        return [Block("text", (here,), new, "note")] if new else []

    def _turn(self) -> int:
        return self._rank if self._rank in self._stands and self._rank is not None else min(self._stands)

    def ask(self, deadline: float | None) -> str | None:
        """Ask for one command and send it; returns a message for the user, or None. Raises KeyboardInterrupt."""
        assert self._read is not None
        self._rank = rank = self._turn()
        held = self._monitor.ranks[rank]
        stop = self._stands[rank]
        try:
            typed = ask(self._read, f"(Pdb) rank {rank}: ", self._monitor, lambda: held.debugger is not stop, deadline)
        except EOFError:
            typed = "q"
        if typed is None:
            return None
        if not typed.startswith("@"):
            self._send([rank], typed)
            return None
        who, _, command = typed[1:].strip().partition(" ")
        chosen = list(self._stands) if who == "all" else [int(who)] if who.isdecimal() else []
        if not chosen or not self._stands.keys() >= set(chosen):
            there = f"{rank_label(list(self._stands))} {'is' if len(self._stands) == 1 else 'are'} in the debugger"
            self._said = ""
            return f"{there}." if not who else f"@{who}: not in the debugger; {there}."
        if who != "all":
            self._rank = chosen[0]
        if command:
            self._send(chosen, command)
        return None

    def _send(self, ranks: Sequence[int], command: str) -> None:
        self._moved = time.monotonic()
        for rank in ranks:
            del self._stands[rank]
            self._lifeline.tell(self._monitor.ranks[rank].uuid, Debug(next(numbers), command))
