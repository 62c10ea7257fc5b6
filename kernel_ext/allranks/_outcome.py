"""What the ranks of one cell have told of it so far: what they put out, what they raised, who is still at it."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ._fold import Block, Fold
from ._monitor import Event
from ._result import RankResult
from ._stall import Ended
from ._views import collective
from .errors import RemoteError

RING_NOISE = re.compile(
    r"(\[ring\] (Socket \d+ was closed by the peer|Sending to socket \d+ failed.*|Too many send/recv errors.*)\n?)+"
)
"""What MLX writes to stderr, a dozen lines a rank, when a ring breaks; we say it in one (mlx 0.32.4)."""
PEER_LOST = "connection to a peer was lost"
"""What MLX's ring says when a neighbour's socket closed (mlx 0.32.4)."""
RANK_DEAD = re.compile(r"the world is broken: rank \d+ is dead")
"""What a rank is told that comes to its next collective when the world has just lost another."""


class Outcome:
    """Fed with the events of the cell; has what is to be shown of them, and one result for each rank."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self.results = {rank: RankResult(rank) for rank in ranks}
        self.open = set(ranks)
        """Ranks that are not done with the cell."""
        self.fold = Fold(ranks)
        """What they put out, with what is alike said once."""
        self.broken = False
        """Whether a rank was freed by breaking the world."""
        self._live: dict[int, str] = {}
        self._pending: dict[int, list[str]] = {}
        self._failed_at: float | None = None

    def take(self, event: Event) -> None:
        """An ``output``, ``done``, ``freed`` or ``dead``; others change nothing here."""
        what, rank, header, buffers = event
        result = self.results[rank]
        if what == "output":
            self._take_output(rank, header["items"])
            live = header["live"]
            if live is not None:
                self._live[rank] = live.get("stderr") or live.get("stdout") or ""
        elif what == "done":
            result.ok = header["ok"]
            result.lines, result.nbytes, result.cut = header["lines"], header["bytes"], header["cut"]
            result._packed, result._no_value = buffers, header.get("no_value")
            self._pending[rank] = header["pending"]
            if header["error"]:
                result.error = _remote_error(header["error"])
                self._note_peer_loss(rank, header["error"])
            if result.freed:
                result.void = tuple(header["void"])
            self._ended(rank)
        elif what == "freed":
            result.freed = str(collective(header["collective"])) if header["collective"] else "a collective"
            self.broken = self.broken or header.get("broke", False)
        elif what == "dead":
            result.dead = header["cause"]
            text = f"died: {header['cause']}\n"
            self.fold.feed(rank, [("text", "stderr", text)], time.monotonic())
            self._ended(rank)

    def take_late(self, rank: int, items: Sequence[Any]) -> None:
        """What the rank printed before the cell and after the previous one."""
        said = [("text", "stderr", "printed after the previous cell:\n"), *map(tuple, items)]
        self.fold.feed(rank, said, time.monotonic())

    def _take_output(self, rank: int, items: Sequence[Any]) -> None:
        result = self.results[rank]
        shown: list[tuple[Any, ...]] = []
        for item in items:
            if item[0] == "text":
                if RING_NOISE.fullmatch(item[2]):
                    continue
                result._text[item[1]].append(item[2])
            elif item[0] == "error":
                self._note_peer_loss(rank, item[1])
                if result.freed:
                    # MLX's "connection to a peer was lost", with a traceback, would only hide who failed.
                    item = ("text", "stderr", f"freed from {result.freed}\n")
            shown.append(tuple(item))
        self.fold.feed(rank, shown, time.monotonic())

    def _note_peer_loss(self, rank: int, error: Mapping[str, Any]) -> None:
        """A ring's break travels: the neighbours of a freed or dead rank raise too, and are no culprits either."""
        result = self.results[rank]
        lost = PEER_LOST in error["evalue"] or RANK_DEAD.match(error["evalue"])
        if lost and error["collective"] and not result.freed:
            result.freed = str(collective(error["collective"]))

    def _ended(self, rank: int) -> None:
        self.open.discard(rank)
        self._live.pop(rank, None)
        self.fold.finish(rank)
        if not self.results[rank].ok and self._failed_at is None:
            self._failed_at = time.monotonic()

    # What it comes to.

    @property
    def since_failure(self) -> float | None:
        """Seconds since the first rank failed; None while none has."""
        return None if self._failed_at is None else time.monotonic() - self._failed_at

    @property
    def somebody_died(self) -> bool:
        return any(result.dead for result in self.results.values())

    @property
    def somebody_was_freed(self) -> bool:
        return any(result.freed for result in self.results.values())

    def ended_how(self) -> dict[int, Ended]:
        """How those ended that are done with the cell."""
        ended = {}
        for rank, result in self.results.items():
            if rank in self.open:
                continue
            if result.dead:
                ended[rank] = Ended(f"is dead: {result.dead}", True, True)
            elif result.error and not result.freed:
                ended[rank] = Ended(f"raised {result.error}", True)
            elif result.freed:
                ended[rank] = Ended("was freed", False, came=True)
            else:
                ended[rank] = Ended("finished the cell", False)
        return ended

    def live_lines(self) -> dict[int, str]:
        """The unfinished line of each rank that has one."""
        return {rank: line for rank, line in self._live.items() if line}

    def left_behind(self) -> list[Block]:
        """Which variables hold garbage, and which will enter a collective, in words."""
        void = {rank: result.void for rank, result in self.results.items()}
        return [*_about(void, VOID), *_about(self._pending, PENDING)]


VOID = "{} may hold garbage: {it} {was} being computed when the collective was broken off. Make {them} anew"
PENDING = "pending: {} will enter a collective when evaluated, on all ranks together"
_ONE = {"it": "it", "was": "was", "them": "it"}
_SEVERAL = {"it": "they", "was": "were", "them": "them"}


def _about(names: Mapping[int, Sequence[str]], text: str) -> list[Block]:
    """One sentence for ranks with the same names."""
    alike: dict[tuple[str, ...], list[int]] = {}
    for rank, each in names.items():
        if each:
            alike.setdefault(tuple(each), []).append(rank)
    told = {each: text.format(", ".join(each), **(_ONE if len(each) == 1 else _SEVERAL)) for each in alike}
    return [Block("text", tuple(ranks), told[each] + "\n", "stderr") for each, ranks in alike.items()]


def _remote_error(error: Mapping[str, Any]) -> RemoteError:
    return RemoteError(error["ename"], error["evalue"], "\n".join(error["traceback"]), error["line"])
