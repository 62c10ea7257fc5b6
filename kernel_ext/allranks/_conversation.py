"""The one prompt through which a user talks to the ranks of a cell that stand in the debugger."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from allranks_backends._plan import RankView, Snapshot, rank_label

from ._debug import numbers, on_its_way
from ._fold import Block
from ._keyboard import Read, ask
from ._lifeline import Lifeline
from ._monitor import Monitor

SETTLE = 0.7
"""Seconds after a stop in which other ranks may come to theirs, or to wait for those that stand."""
PATIENCE = 1.5
"""Seconds for a rank to come back to its prompt before another rank's is taken."""
HELP = (
    "pdb's commands go to this rank (n, s, c, p x, up, where, q); @1 goes to rank 1, @all n to every rank that stands."
)


class Conversation:
    """Fed by the cell with what its ranks' debuggers say; `read` is ``input``, or None where nobody can type."""

    def __init__(self, monitor: Monitor, lifeline: Lifeline, read: Read | None) -> None:
        self._monitor, self._lifeline, self._read = monitor, lifeline, read
        self._stands: dict[int, dict[str, Any]] = {}
        self._unshown: dict[int, str] = {}
        self._rank: int | None = None
        """Whose prompt it is."""
        self._moved = 0.0
        """When something last changed."""
        self._helped = False
        self._said = ""
        self._over = False

    def heard(self, rank: int, said: dict[str, Any]) -> None:
        """What a rank's debugger says."""
        if said["text"]:
            self._unshown[rank] = self._unshown.get(rank, "") + said["text"]
        if said["open"]:
            self._stands[rank] = said
            self._moved = time.monotonic()
        else:
            self._stands.pop(rank, None)
            if not on_its_way(said) and rank == self._rank:
                self._rank = None

    def ended(self, rank: int) -> None:
        """The rank is done with the cell."""
        self.heard(rank, {"open": False, "stepping": False, "text": ""})

    def end(self) -> None:
        """The cell is stopped: ask no more."""
        self._over = True

    @property
    def open(self) -> bool:
        """Whether a rank stands, and somebody can type."""
        return bool(self._stands) and self._read is not None and not self._over

    def next_look(self) -> float | None:
        """When to look at `due` though nothing is heard."""
        if not self.open:
            return None
        return time.monotonic() if self._rank in self._stands else self._moved + self._grace

    def due(self, views: Sequence[RankView]) -> bool:
        """Whether to ask now; `views` are of the ranks that still run the cell."""
        if not self.open:
            return False
        # A rank whose stop is known to the snapshot may not have been heard here yet.
        settled = all(view.rank in self._stands or view.state in ("waiting", "stopped") for view in views)
        return self._rank in self._stands or settled or time.monotonic() >= self._moved + self._grace

    @property
    def _grace(self) -> float:
        return SETTLE if self._rank is None else PATIENCE

    def said(self) -> list[Block]:
        """What is to be shown: equal words of several ranks once."""
        groups: dict[str, list[int]] = {}
        for rank, text in sorted(self._unshown.items()):
            groups.setdefault(text, []).append(rank)
        self._unshown.clear()
        blocks = [Block("text", tuple(ranks), text) for text, ranks in groups.items()]
        if self._read is None and not self._over:
            for rank, where in sorted(self._stands.items()):
                text = f"stands in the debugger at line {where['line']}: %distributed debug -r {rank} goes there\n"
                blocks.append(Block("text", (rank,), text, "stderr"))
            self._stands.clear()
        return blocks

    def meanwhile(self, snapshot: Snapshot, ranks: Sequence[int]) -> list[Block]:
        """What the others do, where that has changed, and once what can be typed."""
        here = self._turn()
        others = [rank for rank in ranks if rank != here]
        text = f"meanwhile: {snapshot.doing(others)}\n" if others else ""
        new, self._said = text if text != self._said else "", text
        if not self._helped:
            self._helped, new = True, new + HELP + "\n"
        return [Block("text", (here,), new, "stderr")] if new else []

    def _turn(self) -> int:
        return self._rank if self._rank in self._stands and self._rank is not None else min(self._stands)

    def ask(self, deadline: float | None) -> str | None:
        """Ask for one command, and send it; returns what to say to the user. Raises KeyboardInterrupt for Ctrl-C."""
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
            there = (
                f"{rank_label(list(self._stands))} {'stands' if len(self._stands) == 1 else 'stand'} in the debugger"
            )
            self._said = ""
            return f"{there}." if not who else f"@{who}: there is nobody to talk to; {there}."
        if who != "all":
            self._rank = chosen[0]
        if command:
            self._send(chosen, command)
        return None

    def _send(self, ranks: Sequence[int], command: str) -> None:
        self._moved = time.monotonic()
        for rank in ranks:
            del self._stands[rank]
            order = {"do": "debug", "command": command, "number": next(numbers)}
            self._lifeline.tell(self._monitor.ranks[rank].uuid, order)
