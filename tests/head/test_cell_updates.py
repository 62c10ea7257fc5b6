"""How updates on a cell reach the thread that tracks it: uneventful ends wait, all else comes at once and in order."""

from __future__ import annotations

import queue
import threading
import time
from typing import Any

import pytest

from allranks.head.state import cell_updates
from allranks.head.state.cell_updates import CellUpdate, CellUpdates, Died
from allranks.head.state.monitor import Monitor
from allranks.messages.events import Began, State, Text
from tests.head.whole_world import BOOM, CELL, came, done, known, put_out, whole_world


@pytest.fixture
def monitor() -> Monitor:
    monitor = whole_world()
    monitor.put(known(2))
    return monitor


@pytest.fixture(autouse=True)
def nothing_comes_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell_updates, "SHORT", 3600.0)
    monkeypatch.setattr(cell_updates, "LATER", 600.0)


def woken(updates: CellUpdates) -> bool:
    """Whether the thread that follows the cell would be woken; it would get the first update."""
    return not updates._queue.empty()


def test_the_thread_is_woken_once_for_ranks_that_end_without_output(monitor: Monitor) -> None:
    updates = monitor.listen(CELL, [0, 1, 2])
    monitor.receive("rank-1", done(), ())
    monitor.receive("rank-0", done(), ())
    assert not woken(updates)
    monitor.receive("rank-2", done(), ())
    assert woken(updates)
    assert [rank for rank, _ in came(updates)] == [1, 0, 2]


@pytest.mark.parametrize(
    "end",
    [
        done(output=(Text("stdout", ["a\n"]),)),
        done(ok=False, error=BOOM),
        done(no_value="a lock"),
    ],
    ids=["output", "error", "no value"],
)
def test_an_end_with_something_to_show_comes_at_once(monitor: Monitor, end: Any) -> None:
    updates = monitor.listen(CELL, [0, 1])
    monitor.receive("rank-0", end, ())
    assert woken(updates) and came(updates) == [(0, end)]


def test_an_end_with_a_value_comes_at_once(monitor: Monitor) -> None:
    updates = monitor.listen(CELL, [0, 1])
    monitor.receive("rank-0", done(), (b"value",))
    assert woken(updates)


def test_an_end_comes_at_once_where_output_may_wait_for_it(monitor: Monitor) -> None:
    updates = monitor.listen(CELL, [0, 1, 2])
    monitor.receive("rank-0", put_out("a\n", 1), ())
    assert len(came(updates)) == 1
    monitor.receive("rank-1", done(), ())
    assert woken(updates)


def test_what_comes_for_the_cell_brings_the_ends_that_wait_before_it(monitor: Monitor) -> None:
    updates = monitor.listen(CELL, [0, 1, 2])
    began, end, output = Began(CELL), done(), put_out("a\n", 1)
    monitor.receive("rank-0", began, ())
    assert woken(updates)
    monitor.receive("rank-0", end, ())
    monitor.receive("rank-1", output, ())
    monitor.died(2, "killed")
    assert came(updates) == [(0, began), (0, end), (1, output), (2, Died("killed"))]


def test_an_end_that_waits_comes_after_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell_updates, "LATER", 0.01)
    updates, end = CellUpdates(), CellUpdate(0, done())
    found: list[Any] = []
    follower = threading.Thread(target=lambda: found.append(updates.get(timeout=600.0)))
    follower.start()
    updates.put_later(end)
    follower.join(60.0)
    assert found == [end]


def test_nothing_waits_in_a_cell_that_runs_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell_updates, "SHORT", 0.0)
    updates = CellUpdates()
    updates.put_later(CellUpdate(0, done()))
    assert woken(updates)


def test_a_stop_wakes_the_thread_and_a_timeout_ends_the_wait() -> None:
    updates = CellUpdates()
    updates.wake()
    assert updates.get(timeout=600.0) is None
    began = time.monotonic()
    with pytest.raises(queue.Empty):
        updates.get(timeout=0.02)
    assert time.monotonic() - began >= 0.02


def test_only_reports_on_waiting_wake_the_thread(monitor: Monitor) -> None:
    updates = monitor.listen(CELL, [0])
    running, waiting = State(True, CELL, 4, 3), State(True, CELL, 4, 3, waiting=True)
    for report in (running, waiting, running, running):
        monitor.receive("rank-0", report, ())
    assert came(updates) == [(0, waiting), (0, running)]
