"""What the ranks of one cell have reported so far: their output, their errors, and which ranks still run it."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from allranks.errors import RemoteError
from allranks.head.state.cell_updates import CellUpdate, Died
from allranks.head.state.make_views import collective
from allranks.messages.events import CellError, Done, Item, LedgerEntry, Output, Timed, Unblocked
from allranks.messages.wire import Buffer
from allranks_backends.plan import alike, rank_label

from .absent_ranks import EndedRank
from .rank_result import RankResult
from .stall import CellFinding

RING_NOISE = re.compile(
    r"(\[ring\] (Socket \d+ was closed by the peer|Sending to socket \d+ failed.*|Too many send/recv errors.*)\n?)+"
)
"""Matches what MLX writes to stderr when a ring breaks, a dozen lines a rank; we report it in one line (mlx 0.32.4)."""


class OutputSink(Protocol):
    """Takes the output of ranks (`notebook.fold.Fold`)."""

    def feed(self, rank: int, items: Iterable[Item], now: float) -> None: ...
    def feed_before(self, rank: int, items: Iterable[Item], now: float) -> None: ...
    def finish(self, rank: int) -> None: ...


class Outcome:
    """Handles the events of a cell: passes its output on, and holds one result for each rank."""

    def __init__(self, ranks: Sequence[int], output: OutputSink) -> None:
        self.results = {rank: RankResult(rank) for rank in ranks}
        self.open = set(ranks)
        """Ranks that are not done with the cell."""
        self._output = output
        self.timed: dict[int, Sequence[Timed]] = {}
        """The timed collectives of each rank that is done; empty unless the cell ran with ``--timing``."""
        self.broken = False
        """Whether a rank was unblocked by breaking the world."""
        self._live: dict[int, str] = {}
        self._pending: dict[int, tuple[str, ...]] = {}
        self._failed_at: float | None = None

    def take(self, update: CellUpdate) -> None:
        """Handle an `Output`, `Done`, `Unblocked` or `Died`; ignore other updates."""
        rank, event = update.rank, update.event
        result = self.results.get(rank)
        if result is None:  # the rank ended the cell before this notebook attached, and still reports
            return
        match event:
            case Output():
                self._take_output(rank, update.items)
                if event.live is not None:
                    self._live[rank] = event.live.get("stderr") or event.live.get("stdout") or ""
            case Done():
                self._take_output(rank, update.items)
                self._take_end(rank, event, update.buffers)
            case Unblocked():
                if not event.in_task:
                    result.unblocked = _blocked_in(event.collective)
                self.broken = self.broken or event.broke
            case Died(cause):
                result.dead = cause
                self._output.feed(rank, [("text", "stderr", [f"died: {cause}\n"])], time.monotonic())
                self._ended(rank)

    def _take_end(self, rank: int, done: Done, buffers: Sequence[Buffer]) -> None:
        result = self.results[rank]
        result.ok = done.ok and not result.unblocked  # the cell may have swallowed the error of the abort
        result.settled = done.settled
        result.lines, result.nbytes = done.lines, done.nbytes
        result.cut = {"lines": done.cut.lines, "bytes": done.cut.nbytes}
        result._packed, result._no_value = buffers, done.no_value
        self._pending[rank] = done.pending
        if done.timed is not None:
            self.timed[rank] = done.timed
        if done.error is not None:
            result.error = _remote_error(done.error)
            self._note_peer_loss(rank, done.error)
        if result.unblocked:
            result.invalid = done.invalid
            result.unmarked = tuple(str(collective(each)) for each in done.unmarked)
        self._ended(rank)

    def note_invalid(self, rank: int, names: Sequence[str]) -> None:
        """Note invalid variables of a rank that was done with the cell and then entered collectives for others."""
        if rank in self.results:
            result = self.results[rank]
            result.invalid = tuple(dict.fromkeys((*result.invalid, *names)))

    def take_late(self, rank: int, items: Sequence[Item]) -> None:
        """Show what the rank printed between the previous cell and this one."""
        said = [("text", "note", ["printed after the previous cell:\n"]), *items]
        self._output.feed_before(rank, said, time.monotonic())

    def _take_output(self, rank: int, items: Sequence[Item]) -> None:
        result = self.results[rank]
        shown: list[Item] = []
        for item in items:
            match item:
                case ("text", "stdout", list(prints)):
                    result._text["stdout"] += prints
                case ("text", "stderr" | "note" as stream, list(prints)):
                    prints = [text for text in prints if not RING_NOISE.fullmatch(text)]
                    result._text["stderr"] += prints
                    item = ("text", stream, prints)
                case ("bar", "stdout" | "stderr" as stream, str(text), _):
                    result._text[stream].append(text)
                case ("error", _, CellError() as error):
                    self._note_peer_loss(rank, error)
                    if result.unblocked:
                        # MLX's "connection to a peer was lost", with a traceback, would only hide who failed.
                        item = ("text", "stderr", [f"unblocked from {result.unblocked}\n"])
            shown.append(item)
        self._output.feed(rank, shown, time.monotonic())

    def _note_peer_loss(self, rank: int, error: CellError) -> None:
        """Note that a rank raised only because a neighbour in the ring was unblocked or died: it is not to blame."""
        result = self.results[rank]
        if error.aborted and not result.unblocked:
            result.unblocked = _blocked_in(error.collective)

    def _ended(self, rank: int) -> None:
        self.open.discard(rank)
        self._live.pop(rank, None)
        self._output.finish(rank)
        if not self.results[rank].ok and self._failed_at is None:
            self._failed_at = time.monotonic()

    # The outcome.

    @property
    def since_failure(self) -> float | None:
        """Seconds since the first rank failed; None while none has."""
        return None if self._failed_at is None else time.monotonic() - self._failed_at

    def failed(self) -> set[int]:
        """Return the ranks that are alive and whose cell failed."""
        return {rank for rank, each in self.results.items() if rank not in self.open and not each.ok and not each.dead}

    @property
    def somebody_died(self) -> bool:
        return any(result.dead for result in self.results.values())

    @property
    def somebody_was_freed(self) -> bool:
        return any(result.unblocked for result in self.results.values())

    def ended_how(self) -> dict[int, EndedRank]:
        """Return how the cell ended on the ranks that are done with it."""
        ended = {}
        for rank, result in self.results.items():
            if rank in self.open:
                continue
            if result.dead:
                ended[rank] = EndedRank(f"died: {result.dead}", True, True)
            elif result.error and not result.unblocked:
                ended[rank] = EndedRank(f"raised {result.error}", True)
            elif result.unblocked:
                ended[rank] = EndedRank("was unblocked", False, came=True)
            else:
                ended[rank] = EndedRank("finished the cell", False, settled=result.settled)
        return ended

    def live_lines(self) -> dict[int, str]:
        """The unfinished line of each rank that has one."""
        return {rank: line for rank, line in self._live.items() if line}

    def left_behind(self, *, stays: bool) -> list[CellFinding]:
        """Report invalid variables, pending variables, and aborted collectives whose results may look right.

        Pending variables are reported only if the world `stays`: otherwise their collectives cannot run.
        """
        unmarked = {rank: result.unmarked for rank, result in self.results.items()}
        invalid = {rank: result.invalid for rank, result in self.results.items()}
        return [
            *_about(unmarked, UNMARKED, "; "),
            *_about(invalid, INVALID),
            *_about(self._pending if stays else {}, PENDING),
        ]


INVALID = "{} {be} invalid: {its} collective was aborted. Recompute {them}"
PENDING = "pending: {} will run a collective when evaluated; evaluate {them} on all ranks together"
UNMARKED = "{} {was} aborted and could not be set to NaN: what was computed from {them} is invalid and may look right"
_ONE = {"be": "is", "its": "its", "was": "was", "them": "it"}
_SEVERAL = {"be": "are", "its": "their", "was": "were", "them": "them"}


def invalid_text(names: Mapping[int, Sequence[str]]) -> str:
    """Return one sentence for each group of ranks with the same invalid names."""
    return " ".join(f"{rank_label(each.ranks)}: {each.text}." for each in _about(names, INVALID))


def _about(names: Mapping[int, Sequence[str]], text: str, between: str = ", ") -> list[CellFinding]:
    """Return one finding for each group of ranks with the same names."""
    same = alike({rank: tuple(each) for rank, each in names.items() if each})
    return [
        CellFinding(tuple(ranks), text.format(between.join(each), **(_ONE if len(each) == 1 else _SEVERAL)))
        for each, ranks in same.items()
    ]


def _remote_error(error: CellError) -> RemoteError:
    return RemoteError(error.ename, error.evalue, "\n".join(error.traceback), error.line, error.place)


def _blocked_in(entry: LedgerEntry | None) -> str:
    """Return the collective as text; without an entry, ``a collective``: an abort may come before any was called."""
    return str(collective(entry)) if entry is not None else "a collective"
