"""When a dashboard draws again what the notebook saves; `now` is given, so nothing waits."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from allranks_backends.views import RankState, RankView, Snapshot
from allranks_widgets._saved_copy import AFTER_CELL, WHILE_BUSY, SavedCopy

SHORT, STEP = AFTER_CELL / 4, 0.1


def world(*states: RankState, **changes: Any) -> Snapshot:
    ranks = tuple(RankView(rank, "a", pid=100 + rank, state=state) for rank, state in enumerate(states))
    return dataclasses.replace(Snapshot("main", "ring", "whole", 1, ranks), **changes)


def changed(snapshot: Snapshot, rank: int, **fields: Any) -> Snapshot:
    ranks = tuple(dataclasses.replace(view, **fields) if view.rank == rank else view for view in snapshot.ranks)
    return dataclasses.replace(snapshot, ranks=ranks)


IDLE = world("idle", "idle")


class Clock:
    """A copy that is drawn whenever it is due, and the seconds at which it was drawn."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.copy, self.now, self.drawn = SavedCopy(), 1000.0, list[float]()
        self.copy.shown(snapshot)
        self.copy.saved(self.now)

    def show(self, snapshot: Snapshot, seconds: float) -> int:
        """Show `snapshot` ten times a second for `seconds`, with other figures; return how often it was drawn."""
        before = len(self.drawn)
        for _ in range(round(seconds / STEP)):
            self.now += STEP
            self.copy.shown(dataclasses.replace(snapshot, at=self.now))
            self._draw_if(self.copy.is_due(self.now))
        return len(self.drawn) - before

    def notebook_cell_ended(self) -> bool:
        due = self.copy.is_due(self.now, at_once=True)
        self._draw_if(due)
        return due

    def _draw_if(self, due: bool) -> None:
        if due:
            self.drawn.append(self.now)
            self.copy.saved(self.now)


CHANGES = {
    "a host is out of reach": changed(IDLE, 1, away=3),
    "a rank is suspended": changed(IDLE, 1, suspended=True),
    "a rank is silent": changed(IDLE, 1, silent=4),
    "there is a note": dataclasses.replace(IDLE, notes=("Rank 1 is slow.",)),
    "a rank was healed": dataclasses.replace(changed(IDLE, 1, pid=200), generation=2),
    "a rank was replaced": changed(IDLE, 1, pid=200),
    "a rank moved to another host": changed(IDLE, 1, host="b"),
    "a rank died": changed(IDLE, 1, state="dead", cause="killed by SIGKILL"),
    "the world is broken": dataclasses.replace(IDLE, state="broken"),
    "a bench has ended": dataclasses.replace(IDLE, peak=1e9),
    "a straggler was found": dataclasses.replace(IDLE, straggler="rank 1 was last"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_between_cells_is_saved_once_within_one_interval(change: str) -> None:
    clock = Clock(IDLE)
    assert clock.show(CHANGES[change], WHILE_BUSY + 1) == 1
    assert clock.show(CHANGES[change], 5 * WHILE_BUSY) == 0, "nothing more changes"
    assert clock.show(IDLE, WHILE_BUSY + 1) == 1, "and that it is over"


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_is_saved_at_the_end_of_a_cell_of_the_notebook(change: str) -> None:
    clock = Clock(IDLE)
    clock.show(CHANGES[change], SHORT)
    assert clock.notebook_cell_ended() and not clock.notebook_cell_ended()


@pytest.mark.parametrize("states", [("idle", "dead"), ("debugging", "idle"), ("failed", "unblocked")])
def test_figures_of_ranks_that_run_nothing_are_not_saved(states: tuple[RankState, ...]) -> None:
    clock = Clock(world(*states))
    assert clock.show(world(*states), 5 * WHILE_BUSY) == 0
    assert not clock.notebook_cell_ended()


def test_figures_of_ranks_that_work_are_saved_now_and_then() -> None:
    busy = world("running", "waiting")
    clock = Clock(busy)
    drawn = clock.show(busy, 3 * WHILE_BUSY + 1)
    assert drawn == 3
    pending = changed(IDLE, 0, tasks=True)
    clock = Clock(pending)
    assert clock.show(pending, WHILE_BUSY + 1) == 1, "an asyncio task counts as work"


def test_the_figures_after_a_cell_are_saved_soon_and_once() -> None:
    clock = Clock(IDLE)
    clock.show(IDLE, WHILE_BUSY)
    clock.copy.cell_ended()
    assert clock.show(IDLE, STEP) == 1, "the last drawing was long ago"
    clock.copy.cell_ended()
    assert not clock.notebook_cell_ended(), "only figures are new, and others were saved a moment ago"
    assert clock.show(IDLE, SHORT) == 0
    assert clock.show(IDLE, AFTER_CELL) == 1
    assert clock.show(IDLE, 5 * WHILE_BUSY) == 0


def test_the_first_cell_after_the_dashboard_is_displayed_is_saved_at_its_end() -> None:
    clock = Clock(IDLE)
    clock.now += STEP
    clock.copy.shown(dataclasses.replace(IDLE, at=clock.now))
    clock.copy.cell_ended()
    assert clock.notebook_cell_ended()


def test_many_short_cells_are_saved_once_an_interval() -> None:
    clock, seconds = Clock(IDLE), 20.0
    for _ in range(round(seconds / STEP)):
        clock.copy.cell_ended()
        clock.show(IDLE, STEP)
        clock.notebook_cell_ended()
    assert seconds / AFTER_CELL / 2 <= len(clock.drawn) <= seconds / AFTER_CELL


def test_logged_values_are_saved_at_the_end_of_a_cell_and_while_it_runs() -> None:
    clock = Clock(IDLE)
    clock.copy.stale = True
    assert clock.notebook_cell_ended() and not clock.copy.stale
    clock.copy.stale = True
    assert clock.show(IDLE, WHILE_BUSY + 1) == 1 and not clock.copy.stale


def test_the_first_state_of_a_world_is_saved_at_once() -> None:
    copy = SavedCopy()
    assert not copy.is_due(0.0, at_once=True), "there is nothing to draw"
    copy.saved(0.0)  # that there is no data yet
    copy.shown(IDLE)
    assert copy.is_due(0.1)


def test_the_same_snapshot_is_not_saved_twice() -> None:
    copy = SavedCopy()
    copy.shown(IDLE)
    copy.saved(0.0)
    copy.cell_ended()
    assert not copy.is_due(5 * WHILE_BUSY) and not copy.is_due(5 * WHILE_BUSY, at_once=True)
