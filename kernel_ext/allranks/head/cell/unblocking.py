"""Who waits in a cell for whom, and who is unblocked: on request, or because the wait is hopeless."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence

from allranks.head.state.monitor import Monitor
from allranks.messages.lifeline import Lifeline
from allranks.messages.requests import BROKEN, Decided, Interrupt, Refuse, Request, Unblock

from .outcome import Outcome
from .release import Release
from .stall import AFTER_FAILURE, STALL_AFTER, Finding, StallWatch
from .together import still_for, together

RELEASE_WITHIN = 4.5
"""Seconds until ranks are given up that must be released one collective after the other (see `head.cell.release`)."""
GO_ON_WITHIN = 60.0
"""Seconds in which that goes on when the prompt is back."""
LOOK_EVERY = 0.2
"""Seconds between two looks then."""


class Unblocking:
    """Of the ranks of one cell; `outcome` knows which still run it."""

    def __init__(self, cell: int, ranks: Sequence[int], outcome: Outcome, monitor: Monitor, lifeline: Lifeline) -> None:
        self._cell, self._outcome, self._monitor, self._lifeline = cell, outcome, monitor, lifeline
        self._watch = StallWatch(ranks)
        self._release = Release(cell, monitor, lifeline, outcome.note_invalid)
        self.releasing = False
        """Whether missing ranks enter what others wait in."""
        self._releasing_since = float("inf")
        self._told_of_break = False
        self._decided: set[int] = set()
        """Ranks that failed and know that those which wait for them are unblocked from here."""
        self.given_up = False
        """Whether those that are left can never be unblocked."""

    def interrupt(self) -> None:
        """SIGINT to every rank that still runs the cell."""
        self._watch.stopping = True
        self._monitor.interrupted |= {(rank, self._cell) for rank in self._outcome.open}
        for rank in sorted(self._outcome.open):  # another thread may follow the cell, and see ranks end
            self._tell(rank, Interrupt(self._cell))

    def free(self, ranks: Sequence[int]) -> None:
        """Unblock those of `ranks` that wait in a collective; their other code goes on."""
        self._free(self._outcome.open & set(ranks))
        self.release()

    def release(self) -> None:
        """Where nothing can be aborted: from now on have missing ranks enter what others wait in."""
        self._watch.stopping = True
        self.releasing = not self._monitor.breakable

    def has_told(self, disagreement: str | None) -> bool:
        """Whether this disagreement was reported while the cell ran."""
        return self._watch.was_told(disagreement)

    def wait(self) -> None:
        """Until ranks that enter what others wait in are through, for a moment."""
        self._release.wait()

    def look(self) -> list[Finding]:
        """Unblock those whose wait is hopeless; returns what is new of who waits for whom."""
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
            # What a ring has on its way beyond the second collective never returns when a neighbour has died: the cell
            # ends, and heal restores what these ranks hold after a restart.
            self.given_up = set(waiting) == self._outcome.open
        return findings

    def next_look(self) -> float | None:
        """When those that wait for a rank which failed are to be unblocked."""
        since = self._outcome.since_failure
        return time.monotonic() + AFTER_FAILURE - since if since is not None and since < AFTER_FAILURE else None

    def decide(self) -> None:
        """Ranks that failed need not tell the others themselves."""
        for rank in self._outcome.failed() - self._decided:
            self._decided.add(rank)
            self._tell(rank, Decided(self._cell))

    def stuck_in(self) -> str:
        """Which collective all ranks are in while nothing moves, as a sentence about the past; or nothing."""
        snapshot = self._monitor.snapshot()
        collective, still = together(snapshot, self._watch.ranks), still_for(snapshot)
        if collective is None or still is None or still < STALL_AFTER:
            return ""
        return f" All ranks were in {collective}, and no byte had moved for {still:.0f} s."

    def go_on(self, left: Sequence[int]) -> None:
        """Unblock those that did not end in time, beside what the user does next: busy machines take longer."""
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
        if together(self._monitor.snapshot(), self._watch.ranks) is None:  # else no rank can enter for another
            self._monitor.unblocks_until = until

    def _release_waiting(self) -> None:
        """Where nothing can be aborted: have the missing ranks enter, so that the waiting ones return."""
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
        """Have ranks that are not blocked themselves answer those that are; a ring needs no such help."""
        if not self._told_of_break and self._monitor.revocable:
            self._told_of_break = True
            for rank in self._monitor.alive():
                self._lifeline.tell(rank.uuid, Refuse(BROKEN))

    def _free(self, ranks: Iterable[int]) -> None:
        for rank in ranks:
            self._tell(rank, Unblock(self._cell) if self._monitor.breakable else Interrupt(self._cell))

    def _tell(self, rank: int, request: Request) -> None:
        self._lifeline.tell(self._monitor.ranks[rank].uuid, request)
