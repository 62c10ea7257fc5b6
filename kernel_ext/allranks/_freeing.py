"""Who waits in a cell for whom, and who is freed: at a user's word, or because the wait is hopeless."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence

from ._lifeline import Lifeline
from ._monitor import Monitor
from ._outcome import Outcome
from ._release import Release
from ._stall import Finding, StallWatch

RELEASE_WITHIN = 4.5
"""Seconds until ranks are given up that must be released one collective after the other (see `_release`)."""
GO_ON_WITHIN = 60.0
"""Seconds in which that goes on when the prompt is back."""
LOOK_EVERY = 0.2
"""Seconds between two looks then."""


class Freeing:
    """Of the ranks of one cell, of which `outcome` knows who is still at it."""

    def __init__(self, cell: int, ranks: Sequence[int], outcome: Outcome, monitor: Monitor, lifeline: Lifeline) -> None:
        self._cell, self._outcome, self._monitor, self._lifeline = cell, outcome, monitor, lifeline
        self._watch = StallWatch(ranks)
        self._release = Release(monitor, lifeline)
        self.releasing = False
        """Whether missing ranks enter what others wait in."""
        self._releasing_since = float("inf")
        self.given_up = False
        """Whether those that are left can never be freed."""

    def interrupt(self) -> None:
        """SIGINT to every rank that still runs the cell."""
        for rank in sorted(self._outcome.open):  # another thread may follow the cell, and see ranks end
            self._order(rank, "interrupt")

    def free(self, ranks: Sequence[int]) -> None:
        """Free those of `ranks` that wait in a collective; their other code goes on."""
        self._free(self._outcome.open & set(ranks))
        self.release()

    def release(self) -> None:
        """Where nothing can be broken: from now on let missing ranks enter what others wait in."""
        self.releasing = not self._monitor.breakable

    def look(self) -> list[Finding]:
        """Free those whose wait is hopeless; returns what is new of who waits for whom."""
        since = self._outcome.since_failure
        snapshot = self._monitor.snapshot()
        findings, free = self._watch.look(snapshot, self._outcome.ended_how(), since)
        waiting = [rank for rank in self._outcome.open if snapshot.ranks[rank].state == "waiting"]
        if self._outcome.broken:  # nobody will come to what is left of this world
            free += [rank for rank in waiting if rank not in free]
        self._free(free)
        self.releasing = self.releasing or bool(free and not self._monitor.breakable)
        if self.releasing:
            self._release_waiting()
        elif since is not None and since > RELEASE_WITHIN and self._outcome.somebody_died:
            # What a ring has on its way beyond the second collective never returns when a neighbour has died: the cell
            # ends, and heal carries what these ranks hold over a restart.
            self.given_up = set(waiting) == self._outcome.open
        return findings

    def go_on(self, left: Sequence[int]) -> bool:
        """Release those that did not end in time, beside what the user does next: busy machines take longer.

        False where there is nothing to release.
        """

        def release() -> None:
            until = time.monotonic() + GO_ON_WITHIN
            while still := [rank for rank in left if self._monitor.ranks[rank].cell == self._cell]:
                views = self._monitor.snapshot().ranks
                if time.monotonic() > until or self._monitor.state != "whole":
                    return
                self._release.step([rank for rank in still if views[rank].state == "waiting"])
                time.sleep(LOOK_EVERY)

        if self._monitor.breakable or self._outcome.somebody_died:
            return False
        threading.Thread(target=release, name=f"allranks-release-{self._cell}", daemon=True).start()
        return True

    def _release_waiting(self) -> None:
        """Where nothing can be broken: let the missing ranks enter, so that the waiting ones return."""
        snapshot = self._monitor.snapshot()
        waiting = [rank for rank in self._outcome.open if snapshot.ranks[rank].state == "waiting"]
        if not waiting:
            return
        for rank in waiting:
            self._outcome.results[rank].freed = str(snapshot.ranks[rank].collective)
        self._release.step(waiting)
        since = min(self._releasing_since, now := time.monotonic())
        self._releasing_since = since
        # Nobody can come in a dead rank's place: the cell ends, and the ranks stay where they are.
        self.given_up = self._outcome.somebody_died and now - since > RELEASE_WITHIN

    def _free(self, ranks: Iterable[int]) -> None:
        for rank in ranks:
            self._order(rank, "free" if self._monitor.breakable else "interrupt")

    def _order(self, rank: int, order: str) -> None:
        self._lifeline.tell(self._monitor.ranks[rank].uuid, {"do": order, "cell": self._cell})
