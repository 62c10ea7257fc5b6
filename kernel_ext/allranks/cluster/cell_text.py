"""What a cell printed, read from the ranks to be shown, searched and saved, even if it is too long for the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from allranks.errors import CannotCopy, CellInterrupted, UsageError
from allranks.files.transfer import FileTransfer
from allranks.head.state.known_rank import Rank
from allranks.head.state.shared_advice import HEALS
from allranks.head.world.ranks import Ranks
from allranks.lifeline.open_questions import Reply
from allranks.machine.private_files import private_file
from allranks.messages.requests import PrintedPart, ReadPrinted
from allranks.notebook.fold import Block, Fold
from allranks.notebook.page_room import LONGEST, PageRoom
from allranks.notebook.safe_text import plain
from allranks.notebook.stop_button import Stop
from allranks_backends.plan import alike, rank_label

SHOWN = 50
"""Lines of each rank that are shown by default."""
FOUND = 200
"""Lines that a search returns by default, over all ranks."""
AT_ONCE = 4096
"""Lines of each rank that `CellText.save` reads at a time."""
LINE = 400
"""Assumed bytes per line when the last lines are read."""
LARGEST = 1 << 24
"""Maximum number of bytes that are read per rank for its last lines, however long the lines are."""
WITHIN = 30.0
"""Seconds that a rank gets to answer."""
DEAD = "dead"
END = 1 << 62
"""An offset beyond the end of any text, so that an answer has only its size."""


class CellText:
    """What a cell printed on some ranks; see `Cluster.printed`. The text stays on the ranks and is read on demand.

    Output of a running cell is read up to the point that it had reached when this object was made.
    """

    def __init__(self, living: Ranks, cell: int, ranks: Sequence[int]) -> None:
        """Raises CannotCopy if the output of no rank can be read, and CellInterrupted."""
        self._cell, self._stop = cell, Stop()
        self._transfer = FileTransfer(living, self._stop.raise_if_pressed, _why, WITHIN)
        with self._interruptible():
            question = ReadPrinted(cell=cell, offset=END)
            found, failed = self._transfer.outcomes(dict.fromkeys(ranks, question), doing=_doing)
        self.ranks = list(found)
        """The ranks whose output can be read."""
        self.missing = {rank: str(error) for rank, error in failed.items()}
        """Why the output of each other rank is missing, by rank, as a clause."""
        self.nbytes = {rank: reply.answer.nbytes for rank, reply in found.items()}
        """Bytes of output that can be read, by rank."""
        self.incomplete = {rank: why for rank, reply in found.items() if (why := reply.answer.incomplete)}
        """Why the output of a rank is incomplete, by rank."""
        if not found:
            raise CannotCopy(self.missing_text())

    def missing_text(self) -> str:
        """The ranks whose output is missing, one line per reason, and what to type; empty if there are none."""
        lines = [_missing_text(ranks, why) for why, ranks in alike(self.missing).items()]
        if any(why.startswith(DEAD) for why in self.missing.values()):
            lines[-1] += f" {HEALS}."
        return "\n".join(lines)

    def lines(self, rank: int, offset: int = 0) -> Iterator[str]:
        """The rank's lines, each with its newline, from byte `offset` on. Raises CannotCopy and UsageError."""
        if rank in self.missing:
            raise CannotCopy(_missing_text([rank], self.missing[rank]))
        if rank not in self.nbytes:
            raise UsageError(f"no output of rank {rank} was asked for, only of {rank_label(self.ranks)}.")
        pieces = list[bytes]()
        while offset < self.nbytes[rank]:
            part = bytes(self._part(rank, offset).buffers[0])
            offset += len(part)
            first, *others = part.split(b"\n")
            pieces.append(first)
            for begun in others:
                yield b"".join(pieces).decode(errors="replace") + "\n"
                pieces = [begun]
        if rest := b"".join(pieces):
            yield rest.decode(errors="replace") + "\n"

    def last(self, count: int = SHOWN) -> list[Block]:
        """The last `count` lines of each rank, as blocks; lines that are equal on several ranks appear once.

        Raises CannotCopy, CellInterrupted, and UsageError if `count` is below 1.
        """
        if count < 1:
            raise UsageError(f"last({count}): use 1 or more lines.")
        with self._interruptible():
            return self._folded({rank: self._last(rank, count) for rank in self.ranks})

    def _last(self, rank: int, count: int) -> list[str]:
        window = count * LINE
        while True:
            first = max(self.nbytes[rank] - window, 0)
            lines = [*self.lines(rank, first)]
            if not first or len(lines) > count:  # lines[0] may have begun before the window
                return [_shortened(line) for line in lines[-count:]]
            if window >= LARGEST:
                return [f"…{lines[0][-LONGEST:]}", *map(_shortened, lines[1:])]
            window = min(4 * window, LARGEST)

    def find(self, text: str, most: int = FOUND) -> tuple[list[Block], dict[int, int]]:
        """The first lines with this text, at most `most` over all ranks, and the number of such lines by rank.

        Raises CannotCopy and CellInterrupted.
        """
        found, counts = dict[int, Sequence[str]](), dict.fromkeys(self.ranks, 0)
        with self._interruptible():
            for rank in self.ranks:
                found[rank] = hits = list[str]()
                for line in self.lines(rank):
                    if text in line:
                        counts[rank] += 1
                        if len(hits) < most:
                            hits.append(_shortened(line, text))
        room = PageRoom(most)
        return [shown for block in self._folded(found) if (shown := room.take(block))], counts

    def save(self, path: str | Path) -> int:
        """Write all lines with their ranks, each rank's lines in the order of printing; returns the number of lines.

        A file that exists is replaced once the new one is complete. Raises CannotCopy, also if the file cannot be
        written, and CellInterrupted.
        """
        from allranks.notebook.output_writer import Writer  # imports IPython, which a script need not

        writer, fold, count = Writer(self.ranks), Fold(self.ranks, 0.0, 0.0), 0
        left = {rank: self.lines(rank) for rank in self.ranks}
        path = Path(path).expanduser().resolve()
        if path.exists() and not path.is_file():
            raise CannotCopy(f"{path} is not a regular file.")
        try:
            with self._interruptible(), private_file(path) as file:
                while left:
                    for rank, lines in list(left.items()):
                        some = list(islice(lines, AT_ONCE))
                        fold.feed(rank, [("text", "stdout", some)], 0.0)
                        if len(some) < AT_ONCE:
                            fold.finish(rank)
                            del left[rank]
                    for block in fold.drain(0.0, flush=not left):
                        file.write(writer.labelled(block.ranks, block.content).encode())
                        count += block.content.count("\n")
        except OSError as error:
            raise CannotCopy(f"{path} cannot be written ({error.strerror}).") from None
        return count

    def _part(self, rank: int, offset: int) -> Reply[PrintedPart]:
        found, failed = self._transfer.outcomes({rank: ReadPrinted(cell=self._cell, offset=offset)}, doing=_doing)
        if failed:
            raise CannotCopy(_missing_text([rank], str(failed[rank])))
        return found[rank]

    def _folded(self, found: Mapping[int, Sequence[str]]) -> list[Block]:
        fold = Fold(self.ranks)
        for rank, lines in found.items():
            fold.feed(rank, [("text", "stdout", lines)], 0.0)
        return fold.drain(0.0, flush=True)

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        try:
            with self._stop.noted():
                yield
        except KeyboardInterrupt:
            raise CellInterrupted("stopped while output was read; nothing was written") from None


def _shortened(line: str, text: str = "") -> str:
    """Shorten the line to the `LONGEST` characters around `text`."""
    if len(line) <= LONGEST:
        return line
    line = plain(line.removesuffix("\n"))
    begin = max(min(line.find(text) - LONGEST // 4, len(line) - LONGEST), 0)
    end = begin + LONGEST
    return f"{'…' if begin else ''}{line[begin:end]}{'…' if end < len(line) else ''}\n"


def _doing(_rank: int) -> str:
    return "its output is being read"


def _why(rank: Rank, _host: str, error: Exception | None) -> str:
    if error is None:
        return f"{DEAD} ({rank.dead})"
    return str(error) or f"no answer within {WITHIN:.0f} s"


def _missing_text(ranks: Sequence[int], why: str) -> str:
    return f"Output of {rank_label(ranks)} is missing: {why}."
