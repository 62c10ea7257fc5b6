"""The thread that feeds dashboards: it goes on while others are added, and holds none that nobody else holds."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from allranks.notebook import feed_dashboards
from allranks_backends.views import Snapshot

WITHIN = 60.0
MANY = 3000


class Viewer:
    """Takes what a dashboard takes, and lets one wait for it."""

    def __init__(self) -> None:
        self.shown: list[Snapshot] = []
        self.items: list[Any] = []
        self.refreshed_with = -1
        """Number of items that it had when it was to update what the notebook saves."""
        self.fed = threading.Event()

    def show(self, snapshot: Snapshot) -> None:
        self.shown.append(snapshot)

    def output(self, items: Sequence[Any]) -> None:
        self.items += items
        self.fed.set()

    def logged(self, rows: Sequence[Any]) -> None: ...

    def flush(self) -> None: ...

    def refresh(self) -> None:
        self.refreshed_with = len(self.items)


@pytest.fixture
def feed(monkeypatch: pytest.MonkeyPatch) -> Iterator[feed_dashboards.Watch]:
    monkeypatch.setattr(feed_dashboards, "EVERY", 0.0)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    feed = feed_dashboards.Watch(lambda: Snapshot("main", "ring", "whole", 1, ()))
    yield feed
    feed.stop()
    sys.setswitchinterval(interval)


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_dashboards_are_fed_on_while_others_are_added(feed: feed_dashboards.Watch) -> None:
    first, others = Viewer(), []
    feed.add(first)
    thread = feed._thread
    for _ in range(MANY):
        others.append(Viewer())
        feed.add(others[-1])
    feed.put({"cell": 1, "kind": "text"})
    assert first.fed.wait(WITHIN) and others[-1].fed.wait(WITHIN)
    assert feed._thread is thread, "the thread that began has gone on"


def test_the_end_of_a_notebooks_cell_brings_all_output_in_its_order(feed: feed_dashboards.Watch) -> None:
    viewer = Viewer()
    feed.add(viewer)
    for number in range(200):
        feed.put({"cell": number, "kind": "text"})
        feed.put({"cell": number, "kind": "end"})
        feed.refresh()
        assert viewer.refreshed_with == 2 * (number + 1)
    assert [item["cell"] for item in viewer.items] == [number for number in range(200) for _ in range(2)]


def test_a_dashboard_that_nobody_holds_is_let_go(feed: feed_dashboards.Watch) -> None:
    viewer = Viewer()
    gone = threading.Event()
    weakref.finalize(viewer, gone.set)
    feed.add(viewer)
    feed.put({"cell": 1, "kind": "text"})
    assert viewer.fed.wait(WITHIN)
    del viewer
    gc.collect()
    assert gone.wait(WITHIN) and not feed.watched


def test_one_that_is_added_when_the_last_was_let_go_is_fed(feed: feed_dashboards.Watch) -> None:
    for number in range(200):
        viewer = Viewer()
        feed.add(viewer)  # while the thread may just be ending, for want of anybody to feed
        feed.put({"cell": number, "kind": "text"})
        assert viewer.fed.wait(WITHIN)
