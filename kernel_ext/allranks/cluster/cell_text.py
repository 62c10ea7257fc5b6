"""What a cell printed, read from the ranks: to be shown, searched and saved, also what the page has no room for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

from allranks.files.transfer import FileTransfer
from allranks.head.state.known_rank import Rank
from allranks.head.world.ranks import Ranks
from allranks.messages.questions import RequestFailed
from allranks.messages.requests import ReadPrinted
from allranks.notebook.fold import Block, Fold
from allranks.notebook.stop import Stop
from allranks.notebook.writer import Writer

SHOWN = 50
"""Lines of each rank that are shown by default."""
FOUND = 200
"""Lines of each rank that are shown of those that were searched for."""
AT_ONCE = 4096
"""Lines of each rank that are written together."""
LINE = 400
"""Bytes that a line is taken to have where the last lines are read."""


class CellText:
    """What a cell printed on some ranks; see `Cluster.printed`. Its text is on the ranks, and read when it is asked."""

    def __init__(self, living: Ranks, cell: int, ranks: Sequence[int]) -> None:
        self._living, self._cell, self.ranks = living, cell, list(ranks)
        self._stop = Stop()
        self._transfer = FileTransfer(living, self._stop.raise_if_pressed, _explained)
        self.nbytes = dict[int, int]()
        """Bytes that each rank printed, as far as it was read."""
        self.not_kept = dict[int, str]()
        """Ranks whose text does not go on to its end, and why."""

    def lines(self, rank: int, offset: int = 0) -> Iterator[str]:
        """Its lines, each with its end, from this byte on. Raises CannotCopy."""
        rest = b""
        while part := self._part(rank, offset):
            offset += len(part)
            *whole, rest = (rest + part).split(b"\n")
            for line in whole:
                yield line.decode(errors="replace") + "\n"
        if rest:
            yield rest.decode(errors="replace") + "\n"

    def last(self, count: int = SHOWN) -> list[Block]:
        """The last lines of each rank, equal ones of several ranks once. Raises CannotCopy."""
        found = dict[int, Sequence[str]]()
        for rank in self.ranks:
            self._part(rank, 1 << 62)  # for its length
            first = max(self.nbytes[rank] - count * LINE, 0)
            found[rank] = [*self.lines(rank, first)][-count:]
        return self._folded(found)

    def find(self, text: str, most: int = FOUND) -> tuple[list[Block], dict[int, int]]:
        """The first lines of each rank with this text, and how many each rank has. Raises CannotCopy."""
        found, counts = dict[int, Sequence[str]](), dict[int, int]()
        for rank in self.ranks:
            with_it = [line for line in self.lines(rank) if text in line]
            found[rank], counts[rank] = with_it[:most], len(with_it)
        return self._folded(found), counts

    def save(self, path: Path) -> int:
        """Write all lines with their ranks, in the order in which each rank printed them; returns how many.

        Raises CannotCopy, and OSError.
        """
        writer, fold, count = Writer(self.ranks), Fold(self.ranks, 0.0, 0.0), 0
        left = {rank: self.lines(rank) for rank in self.ranks}
        with path.open("w", encoding="utf-8") as file:
            while left:
                for rank, lines in list(left.items()):
                    some = [("text", "stdout", line) for line in islice(lines, AT_ONCE)]
                    fold.feed(rank, some, 0.0)
                    if len(some) < AT_ONCE:
                        fold.finish(rank)
                        del left[rank]
                for block in fold.drain(0.0, flush=not left):
                    file.write(writer.labelled(block.ranks, block.content))
                    count += block.content.count("\n")
        return count

    def _part(self, rank: int, offset: int) -> bytes:
        replies = self._transfer.replies({rank: ReadPrinted(cell=self._cell, offset=offset)})
        answer = replies[rank].answer
        self.nbytes[rank] = answer.nbytes
        if answer.not_kept:
            self.not_kept[rank] = answer.not_kept
        return bytes(replies[rank].buffers[0])

    def _folded(self, found: Mapping[int, Sequence[str]]) -> list[Block]:
        fold = Fold(self.ranks)
        for rank, lines in found.items():
            fold.feed(rank, [("text", "stdout", line) for line in lines], 0.0)
        return fold.drain(0.0, flush=True)


def _explained(rank: Rank, _host: str, error: Exception | None) -> str:
    if error is None:
        return f"rank {rank.rank} is dead, and what it printed has gone with it: name others with -r."
    return f"rank {rank.rank}: {error}.{'' if isinstance(error, RequestFailed) else ' Try again.'}"
