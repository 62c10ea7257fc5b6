"""Finds which ranks of a cell wait for which, and unblocks ranks: on request, or because the wait is hopeless."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence

from allranks.head.state.monitor import Monitor
from allranks.lifeline.head_end import Lifeline
from allranks.messages.requests import BROKEN, Decided, Interrupt, Refuse, Request, Unblock

from .enter_for_missing import Release
from .outcome import Outcome
from .stall import AFTER_FAILURE, STALL_AFTER, CellFinding, StallWatch
from .stalled_links import still_for, together

RELEASE_WITHIN = 4.5
"""Seconds before giving up on ranks that are unblocked one collective after the other (see `enter_for_missing`)."""
GO_ON_WITHIN = 60.0
"""Seconds for which unblocking goes on in the background once the prompt is back."""
LOOK_EVERY = 0.2
"""Seconds between two steps of unblocking in the background."""


class Unblocking:
    """Unblocks the ranks of one cell; `outcome` knows which ranks still run it."""

    def __init__(self, cell: int, ranks: Sequence[int], outcome: Outcome, monitor: Monitor, lifeline: Lifeline) -> None:
        self._cell, self._outcome, self._monitor, self._lifeline = cell, outcome, monitor, lifeline
        self._watch = StallWatch(ranks)
        self._release = Release(cell, monitor, lifeline, outcome.note_invalid)
        self.releasing = False
        """Whether missing ranks enter the collectives in which others wait."""
        self._releasing_since = float("inf")
        self._told_of_break = False
        self._decided: set[int] = set()
        """Failed ranks that were informed that the notebook unblocks the ranks waiting for them."""
        self.given_up = False
        """Whether the remaining ranks can never be unblocked."""

    def interrupt(self) -> None:
        """Interrupt every rank that still runs the cell."""
        self._watch.stopping = True
        self._monitor.interrupted |= {(rank, self._cell) for rank in self._outcome.open}
        for rank in sorted(self._outcome.open):  # a copy: another thread may track the cell, and remove ranks that end
            self._tell(rank, Interrupt(self._cell))

    def free(self, ranks: Sequence[int]) -> None:
        """Unblock these ranks if they wait in a collective.

        If collectives can be aborted, ranks that run other code go on; otherwise they are interrupted, too.
        """
        self._free(self._outcome.open & set(ranks))
        self.release()

    def release(self) -> None:
        """If collectives cannot be aborted, let missing ranks enter the ones in which others wait, from now on."""
        self._watch.stopping = True
        self.releasing = not self._monitor.breakable

    def has_told(self, disagreement: str | None) -> bool:
        """Whether this disagreement was reported while the cell ran."""
        return self._watch.was_told(disagreement)

    def wait(self) -> None:
        """Wait briefly until ranks have finished entering the collectives in which others wait."""
        self._release.wait()

    def look(self) -> list[CellFinding]:
        """Unblock ranks whose wait is hopeless; return new findings about why ranks do not go on."""
        since = self._outcome.since_failure
        snapshot = self._monitor.snapshot()
        findings, free = self._watch.look(snapshot, self._outcome.ended_how(), since)
        waiting = [rank for rank in self._outcome.open if snapshot.ranks[rank].state == "waiting"]
        if self._outcome.broken:  # no rank will enter a collective of this world any more
            free += [rank for rank in waiting if rank not in free]
            self._tell_of_break()
        self._free(free)
        if since is not None and since >= AFTER_FAILURE:
            self.decide()
        self.releasing = self.releasing or bool(free and not self._monitor.breakable)
        if self.releasing:
            self._release_waiting()
        elif since is not None and since > RELEASE_WITHIN and self._outcome.somebody_died:
            # When a neighbour in a ring has died, only the first two collectives in flight return. The cell ends, and
            # heal restarts these ranks with their variables.
            self.given_up = set(waiting) == self._outcome.open
        return findings

    def next_look(self) -> float | None:
        """Return the `time.monotonic` at which ranks that wait for a failed rank are unblocked at the latest.

        For a dead rank, that is earlier (`AFTER_DEATH`). None if no rank has failed, or if the time has passed.
        """
        since = self._outcome.since_failure
        return time.monotonic() + AFTER_FAILURE - since if since is not None and since < AFTER_FAILURE else None

    def decide(self) -> None:
        """Inform failed ranks that they need not unblock the others themselves."""
        for rank in self._outcome.failed() - self._decided:
            self._decided.add(rank)
            self._tell(rank, Decided(self._cell))

    def stuck_in(self) -> str:
        """Return a space and a sentence about the collective in which all ranks were stuck; empty if they were not."""
        snapshot = self._monitor.snapshot()
        collective, still = together(snapshot, self._watch.ranks), still_for(snapshot)
        if collective is None or still is None or still < STALL_AFTER:
            return ""
        return f" All ranks were in {collective}, and no byte had moved for {still:.0f} s."

    def go_on(self, left: Sequence[int]) -> None:
        """Go on unblocking the ranks in `left`, which did not end in time, in a thread: busy machines take longer.

        Does nothing if collectives can be aborted, or if a rank has died.
        """
        until = time.monotonic() + GO_ON_WITHIN

        def release() -> None:
            while still := [rank for rank in left if self._monitor.ranks[rank].cell == self._cell]:
                views = self._monitor.snapshot().ranks
                if time.monotonic() > until or self._monitor.state != "whole":
                    return
                self._release.step([rank for rank in still if views[rank].state == "waiting"], still)
                time.sleep(LOOK_EVERY)

        if self._monitor.breakable or self._outcome.somebody_died:
            return
        threading.Thread(target=release, name=f"allranks-release-{self._cell}", daemon=True).start()
        if together(self._monitor.snapshot(), self._watch.ranks) is None:  # else no missing rank can enter
            self._monitor.unblocks_until = until

    def _release_waiting(self) -> None:
        """Have missing ranks enter the collectives in which others wait, so that the waiting ranks return."""
        snapshot = self._monitor.snapshot()
        waiting = [rank for rank in self._outcome.open if snapshot.ranks[rank].state == "waiting"]
        if not waiting:
            return
        for rank in waiting:
            self._outcome.results[rank].unblocked = str(snapshot.ranks[rank].collective)
        self._release.step(waiting, self._outcome.open)
        since = min(self._releasing_since, now := time.monotonic())
        self._releasing_since = since
        # No rank can enter in a dead rank's place: the cell ends, and the ranks stay where they are.
        self.given_up = self._outcome.somebody_died and now - since > RELEASE_WITHIN

    def _tell_of_break(self) -> None:
        """Inform all ranks of a broken MPI world, once, so that ranks that are not blocked answer the blocked ones."""
        if not self._told_of_break and self._monitor.revocable:
            self._told_of_break = True
            for rank in self._monitor.alive():
                self._lifeline.tell(rank.uuid, Refuse(BROKEN))

    def _free(self, ranks: Iterable[int]) -> None:
        for rank in ranks:
            self._tell(rank, Unblock(self._cell) if self._monitor.breakable else Interrupt(self._cell))

    def _tell(self, rank: int, request: Request) -> None:
        self._lifeline.tell(self._monitor.ranks[rank].uuid, request)
