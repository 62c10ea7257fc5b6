"""When to draw again the picture and tables of a dashboard that the notebook saves.

Each drawing marks the notebook as changed, and takes longer than a short cell. So the copy is drawn again when it would
say something new, and its figures at the end of a cell and now and then while ranks work.
"""

from __future__ import annotations

from allranks_backends.views import AT_REST, NOT_RESPONDING, Snapshot

AFTER_CELL = 2.0
"""Minimum seconds between two drawings that differ only in the figures of cells that have ended."""
WHILE_BUSY = 10.0
"""Seconds between two drawings otherwise: while ranks work, and after a change of their states between cells."""
STANDS_STILL = AT_REST | NOT_RESPONDING | {"planned", "dead", "debugging"}
"""States of a rank whose figures say nothing new: drawing them would only mark the notebook as changed."""


class SavedCopy:
    """Knows what the notebook has saved, and what has happened since. `now` is in seconds, of any steady clock."""

    def __init__(self) -> None:
        self.stale = False
        """Whether the copy lacks logged values, or shows a previous world."""
        self._latest: Snapshot | None = None
        self._saved: Snapshot | None = None
        self._saved_at = float("-inf")
        self._cell_saved_at = float("-inf")
        """When the copy was last drawn after a cell."""
        self._cell_ended = False
        """Whether a cell has ended since the copy was drawn."""

    def shown(self, snapshot: Snapshot) -> None:
        """Call with every Snapshot that the dashboard shows."""
        self._latest = snapshot

    def cell_ended(self) -> None:
        """Call when a cell of the ranks has ended."""
        self._cell_ended = True

    def saved(self, now: float) -> None:
        """Call when the copy was drawn: it is that of the last Snapshot."""
        self._saved, self._saved_at = self._latest, now
        if self._cell_ended:
            self._cell_saved_at = now
        self._cell_ended = self.stale = False

    def is_due(self, now: float, at_once: bool = False) -> bool:
        """Whether to draw the copy again. With `at_once`, what is new in words, or was logged, awaits no interval.

        Nor do the figures of a cell, unless those of another one were drawn in the last `AFTER_CELL` seconds: nbclient
        drops what comes after the end of the notebook's cell.
        """
        if self._latest is None or (self._latest is self._saved and not self.stale):
            return False
        if self._saved is None:
            return True
        if self._cell_ended and now - self._cell_saved_at >= AFTER_CELL:
            return True
        is_new = self.stale or _standing(self._latest) != _standing(self._saved)
        if at_once:
            return is_new
        return now - self._saved_at >= WHILE_BUSY and (is_new or _works(self._latest))


def _standing(snapshot: Snapshot) -> object:
    """Everything that the picture and tables say in words, without figures that change all the time."""
    ranks = [
        (
            view.rank,
            view.host,
            view.pid,
            view.state,
            view.cause,
            view.away is None,
            view.suspended,
            view.silent is None,
        )
        for view in snapshot.ranks
    ]
    return snapshot.state, snapshot.generation, snapshot.peak, snapshot.straggler, bool(snapshot.notes), ranks


def _works(snapshot: Snapshot) -> bool:
    """Whether figures change because ranks work."""
    return any(view.state not in STANDS_STILL or view.tasks for view in snapshot.ranks)
