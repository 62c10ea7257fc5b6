"""An aborted collective raises in the user's code, also where that swallows signals and exceptions.

The agent sends SIGINT with an abort, but user code may have a handler of its own, ignore the signal, or catch
everything. So the next collective raises as well (`Ledger.refuse`), ``mx.eval`` does where it returns (`owed`), and a
cell that gets to its end all the same has failed (`sentence`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from . import poison

if TYPE_CHECKING:
    from .record import Record

PEER_LOST = "[ring] connection to a peer was lost"
"""What MLX raises where a neighbour died; an unblocked rank has lost them all."""
RELEASED = "the collectives of this cell were aborted, because not all ranks entered them"
"""Why a rank may enter no more of them."""
MOST_NAMED = 5
"""Collectives named of those that could not be marked."""


FAILED = bytearray(1)
"""Not 0 once a call of MPI has failed, and so a result is invalid: MLX does not look (0.32.4). Written by C code; 2 is
set where that was a call of the world that the rank is in."""


class CollectiveAborted(RuntimeError):
    """A collective did not take place, or may not be entered, since another rank did not come."""


def is_peer_loss(message: str) -> bool:
    """Whether MLX's ring says that a neighbour's socket was closed (mlx 0.32.4); user code may have wrapped it."""
    return PEER_LOST in message


def follows_abort(error: BaseException | None) -> bool:
    """Whether `error` is a CollectiveAborted, or was raised where one was handled."""
    seen = set[int]()
    while error is not None and id(error) not in seen:
        if isinstance(error, CollectiveAborted):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


class Aborted:
    """What was aborted in the running cell."""

    def __init__(self) -> None:
        self.owed: str | None = None
        """What ``mx.eval`` raises when it returns, since nothing has been raised yet."""
        self.sentence: str | None = None
        """Why the cell has failed."""
        self.unmarked: list[Record] = []
        """Collectives whose results may look like numbers."""
        self.on_failure: Callable[[], None] = lambda: None
        """Called where a call of MPI has `FAILED`; notes it."""
        self.watch: Callable[[], None] = lambda: None
        """Looks for other failures, and notes them."""

    def begin_cell(self) -> None:
        self.owed, self.sentence, self.unmarked = None, None, []

    def note(self, newest: Record, in_flight: Iterable[Record], pattern: bytes | None) -> None:
        """These were aborted, and give what `pattern` says (see `poison.is_marked`)."""
        where = f" (line {newest.line})" if newest.line is not None else ""
        self.owed = self.sentence = f"{newest.op} #{newest.number}{where} was aborted: its result is invalid"
        alike = {
            (each.op, each.dtype, each.line): each
            for each in in_flight
            if not poison.is_marked(each.op, each.dtype, pattern)
        }
        self.unmarked = list(alike.values())[-MOST_NAMED:]

    def note_earlier(self) -> None:
        """What failed belongs to a world that this rank has left."""
        self.owed = self.sentence = "a collective of an earlier world failed: its result is invalid"

    def look(self) -> None:
        """Note what has failed without an error of MLX's."""
        self.watch()
        if FAILED[0]:
            self.on_failure()

    def raised(self, error: BaseException) -> None:
        """``mx.eval`` raised; where that is the loss of a neighbour, user code may swallow it."""
        if self.sentence is None and is_peer_loss(str(error)):
            self.sentence = PEER_LOST

    def raise_owed(self) -> None:
        """Raise CollectiveAborted, once."""
        __tracebackhide__ = True
        self.look()
        owed, self.owed = self.owed, None
        if owed is not None:
            raise CollectiveAborted(owed)
