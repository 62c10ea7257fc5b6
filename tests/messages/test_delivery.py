"""Cells reach their ranks whatever is lost on the way, begin once, and take their turns among plain ipyparallel's."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from allranks import Cluster
from allranks.lifeline.head_end import Lifeline
from allranks.messages.events import Began, CellEvent, Done, Event
from allranks.messages.requests import Greet, Request, RunCell
from allranks.messages.wire import Buffer
from tests.waiting import comes_true, eventually, idle

COUNT = "ran = globals().get('ran', 0) + 1"
WITHIN = 60


def lifeline(cluster: Cluster) -> Lifeline:
    assert cluster._live.ranks is not None
    return cluster._live.ranks.lifeline


def reset(cluster: Cluster) -> None:
    cluster.run("ran = 0").check()


def losing(sends: Callable[..., None], uuid: str) -> Callable[..., None]:
    """`Lifeline._queue` that drops the cells to a rank."""

    def send(to: str, request: Request, *rest: Any) -> None:
        if to != uuid or not isinstance(request, RunCell):
            sends(to, request, *rest)

    return send


def uuid(cluster: Cluster, rank: int) -> str:
    assert cluster._live.ranks is not None
    return cluster._live.ranks.monitor.ranks[rank].uuid


@pytest.mark.parametrize(
    "plain",
    ["1/0", "import time; time.sleep(0.5); 1/0", "import asyncio; await asyncio.sleep(2.5); 1/0"],
    ids=["at once", "busy", "awaits"],
)
def test_a_plain_error_before_it_does_not_swallow_a_cell(plain: str, ring2: Cluster) -> None:
    """ipykernel aborts what is queued behind a cell that raised."""
    reset(ring2)
    view = ring2.client[:]
    for _ in range(3):
        view.execute("import time; time.sleep(0.2)", silent=False, block=False)
    view.execute(plain, silent=False, block=False)
    result = ring2.run(COUNT + "\nmx.distributed.all_sum(mx.array(1)).item()", timeout=WITHIN).check()
    assert [each.value for each in result.values()] == [2, 2]
    assert ring2.pull("ran") == [1, 1]


def test_cells_and_plain_requests_run_in_the_order_in_which_they_were_sent(ring2: Cluster) -> None:
    """Plain ones take the longer way, through the controller."""
    ring2.run("order = []").check()
    view = ring2.client[:]
    for number in range(0, 60, 3):
        view.execute(f"order.append({number})", silent=False, block=False)
        view.apply_async(exec, f"order.append({number + 1})")
        cell = ring2.begin(f"order.append({number + 2})")
        cell.finish(WITHIN).check()
    assert ring2.pull("order") == [[*range(60)]] * 2


def test_a_plain_request_that_is_lost_delays_one_cell_and_no_more(ring2: Cluster) -> None:
    reset(ring2)
    ring2.run("from allranks.rank.cell import arrival_order; arrival_order.LOST_AFTER = 0.5").check()
    underway = ring2.client._outstanding_dict[uuid(ring2, 1)]
    underway.add("lost")
    try:
        ring2.run(COUNT + "; arrival_order.LOST_AFTER = 10 * 60", timeout=WITHIN).check()
        ring2.run(COUNT, timeout=WITHIN).check()
    finally:
        underway.discard("lost")
        ring2.run("arrival_order.LOST_AFTER = 5.0; del arrival_order").check()
    assert ring2.pull("ran") == [2, 2]


def test_what_a_cell_sets_in_a_context_variable_is_there_in_the_next_whoever_sends_it(ring2: Cluster) -> None:
    ring2.run("import contextvars; place = contextvars.ContextVar('place', default=0); _ = place.set(1)").check()
    assert ring2.run("place.get()").check()[0].value == 1
    view = ring2.client[:]
    view.execute("seen = place.get(); _ = place.set(2)", block=True)
    assert ring2.pull("seen") == [1, 1]
    assert ring2.run("import asyncio\nawait asyncio.sleep(0)\nplace.get()").check()[1].value == 2


def test_a_cell_that_was_lost_is_sent_again_over_the_next_connection(
    ring2: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    reset(ring2)
    line = lifeline(ring2)
    with monkeypatch.context() as patch:
        patch.setattr(line, "_queue", losing(line._queue, uuid(ring2, 1)))
        cell = ring2.begin(COUNT)
    line.tell(uuid(ring2, 1), Greet())  # it says hello, as with a connection that is new
    cell.finish(WITHIN).check()
    assert ring2.pull("ran") == [1, 1]


def test_a_lost_cell_is_sent_again_though_nobody_follows_it(ring2: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    reset(ring2)
    line = lifeline(ring2)
    with monkeypatch.context() as patch:
        patch.setattr(line, "_queue", losing(line._queue, uuid(ring2, 0)))
        cell = ring2.begin(COUNT)
    assert comes_true(ring2, lambda now: now.ranks[1].state == "idle" and now.ranks[0].state != "idle", WITHIN)
    line.tell(uuid(ring2, 0), Greet())
    assert idle(ring2, WITHIN)
    assert ring2.pull("ran") == [1, 1]
    cell.finish().check()


def test_the_cells_of_a_rank_that_was_replaced_are_forgotten(ring2: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    line, victim = lifeline(ring2), uuid(ring2, 1)
    with monkeypatch.context() as patch:
        patch.setattr(line, "_queue", losing(line._queue, victim))
        cell = ring2.begin(COUNT)
    os.kill(ring2.snapshot.ranks[1].pid or 0, signal.SIGKILL)
    assert not cell.finish(WITHIN).ok
    assert victim in line._deliveries.expected
    ring2.heal()
    assert victim not in line._deliveries.expected


def test_a_copy_is_not_run(ring2: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    reset(ring2)
    line, sends = lifeline(ring2), lifeline(ring2)._queue

    def thrice(to: str, request: Request, *rest: Any) -> None:
        for _ in range(3 if isinstance(request, RunCell) else 1):
            sends(to, request, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(line, "_queue", thrice)
        ring2.run(COUNT, timeout=WITHIN).check()
    assert ring2.run("ran", timeout=WITHIN)[0].value == 1
    assert ring2.pull("ran") == [1, 1]
    assert ring2.client[0].apply_sync(lambda: 7) == 7


@pytest.fixture
def received(ring2: Cluster, monkeypatch: pytest.MonkeyPatch) -> list[Event]:
    """The events of cells that come from rank 1."""
    line, events, rank = lifeline(ring2), list[Event](), uuid(ring2, 1)
    handle = line._on_message

    def noted(sender: str, event: Event, buffers: Sequence[Buffer]) -> None:
        if sender == rank and isinstance(event, CellEvent):
            events.append(event)
        handle(sender, event, buffers)

    monkeypatch.setattr(line, "_on_message", noted)
    return events


def test_a_short_cell_is_one_message_back(ring2: Cluster, received: list[Event]) -> None:
    ring2.run("from allranks.lifeline import rank_end; rank_end.SOON = 3600.0", timeout=WITHIN).check()
    try:
        received.clear()
        assert ring2.run("rank", timeout=WITHIN).check()[1].value == 1
        assert [type(each) for each in received] == [Done]
    finally:
        ring2.run("rank_end.SOON = 0.01; del rank_end", timeout=WITHIN).check()


def test_that_a_cell_runs_is_said_before_its_end(ring2: Cluster, received: list[Event], tmp_path: Path) -> None:
    """Otherwise, a cell that was sent to a rank would count as lost for as long as it runs."""
    goes_on = tmp_path / "goes on"
    cell = ring2.begin(f"import os, time\nwhile not os.path.exists({str(goes_on)!r}): time.sleep(0.01)")
    try:
        assert eventually(lambda: any(isinstance(each, Began) for each in received))
        assert eventually(lambda: not lifeline(ring2)._deliveries.expected - {uuid(ring2, 0)})
    finally:
        goes_on.touch()
    cell.finish(WITHIN).check()


def test_a_rank_that_is_busy_is_waited_for(ring2: Cluster) -> None:
    """It is not lost: whatever runs there before it has its time."""
    reset(ring2)
    ring2.client[:].execute("import time; time.sleep(5)", silent=False, block=False)
    ring2.run(COUNT, timeout=WITHIN).check()
    assert ring2.pull("ran") == [1, 1]
