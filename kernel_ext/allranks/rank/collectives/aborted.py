"""Makes an aborted collective raise in the user's code, even if that code swallows signals and exceptions.

The agent sends SIGINT with an abort, but user code may have a handler of its own, ignore the signal, or catch
everything. So the next collective raises as well (`Ledger.refuse`), ``mx.eval`` raises when it returns (`owed`), and a
cell that still reaches its end has failed (`sentence`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from . import poison

if TYPE_CHECKING:
    from .record import Record

PEER_LOST = "[ring] connection to a peer was lost"
"""Message of MLX's error if a ring's connection to a neighbour is closed, as after the neighbour died."""
RELEASED = "the collectives of this cell were aborted, because not all ranks entered them"
"""Why a rank may enter no more collectives in the cell."""
MOST_NAMED = 5
"""Maximum number of collectives in `Aborted.unmarked`, which the notebook names: the last ones."""


FAILED = bytearray(1)
"""Not 0 once an MPI call has failed, so that a result is invalid: MLX does not check (0.32.4).

C code writes it; the bit of value 2 is set if the call belonged to the world that the rank is in."""


class CollectiveAborted(RuntimeError):
    """Raised by a collective that was aborted, or that may not be entered. The message says why."""


def is_peer_loss(message: str) -> bool:
    """Whether `message` has the ring's error for a closed socket (mlx 0.32.4); user code may have wrapped it."""
    return PEER_LOST in message


def follows_abort(error: BaseException | None) -> bool:
    """Whether `error` is a CollectiveAborted, or was raised from one or while one was being handled."""
    seen = set[int]()
    while error is not None and id(error) not in seen:
        if isinstance(error, CollectiveAborted):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


class Aborted:
    """Whether collectives of the running cell were aborted, and which error is still to be raised for that."""

    def __init__(self) -> None:
        self.owed: str | None = None
        """The message that ``mx.eval`` raises when it returns; None if nothing was aborted or the error was raised."""
        self.sentence: str | None = None
        """Why the cell has failed; None if none of its collectives was aborted or failed."""
        self.unmarked: list[Record] = []
        """Aborted collectives whose results may look like valid numbers."""
        self.on_failure: Callable[[], None] = lambda: None
        """Called once `FAILED` is set, to note the failure."""
        self.watch: Callable[[], None] = lambda: None
        """Called to look for other failures and note them."""

    def begin_cell(self) -> None:
        self.owed, self.sentence, self.unmarked = None, None, []

    def note(self, newest: Record, in_flight: Iterable[Record], pattern: bytes | None) -> None:
        """Note that `in_flight` were aborted and deliver `pattern` (see `poison.is_marked`); errors name `newest`."""
        where = f" (line {newest.line})" if newest.line is not None else ""
        self.owed = self.sentence = f"{newest.op} #{newest.number}{where} was aborted: its result is invalid"
        alike = {
            (each.op, each.dtype, each.line): each
            for each in in_flight
            if not poison.is_marked(each.op, each.dtype, pattern)
        }
        self.unmarked = list(alike.values())[-MOST_NAMED:]

    def note_earlier(self) -> None:
        """Note a failure in a world that this rank has left."""
        self.owed = self.sentence = "a collective of an earlier world failed: its result is invalid"

    def look(self) -> None:
        """Note the failures for which MLX raised no error."""
        self.watch()
        if FAILED[0]:
            self.on_failure()

    def raised(self, error: BaseException) -> None:
        """Note that an evaluation raised: losing a neighbour fails the cell, even if user code swallows the error."""
        if self.sentence is None and is_peer_loss(str(error)):
            self.sentence = PEER_LOST

    def raise_owed(self) -> None:
        """Raise CollectiveAborted with the message `owed`, if there is one; the next call does not raise it again."""
        __tracebackhide__ = True
        self.look()
        owed, self.owed = self.owed, None
        if owed is not None:
            raise CollectiveAborted(owed)
