"""Cells that get lost on their way: each rank begins each cell once, or the cell fails there and says so."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from allranks import Cluster
from allranks.messages import delivery
from allranks.messages.cell_options import CellRequest
from allranks.messages.lifeline import Lifeline
from allranks_backends.views import AT_REST
from tests.waiting import comes_true, idle

COUNT = "ran = globals().get('ran', 0) + 1"
WITHIN = 60


def lifeline(cluster: Cluster) -> Lifeline:
    assert cluster._ranks is not None
    return cluster._ranks.lifeline


def reset(cluster: Cluster) -> None:
    cluster.run("ran = 0").check()


def losing(sends: Callable[..., None], times: int, uuid: str) -> Callable[..., None]:
    """`Lifeline._execute` that drops the first `times` cells to a rank."""
    left = [times]

    def execute(to: str, code: str, request: CellRequest) -> None:
        if to == uuid and left[0]:
            left[0] -= 1
        else:
            sends(to, code, request)

    return execute


def uuid(cluster: Cluster, rank: int) -> str:
    assert cluster._ranks is not None
    return cluster._ranks.monitor.ranks[rank].uuid


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


def test_a_lost_cell_is_sent_again_within_three_seconds(ring2: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    reset(ring2)
    line = lifeline(ring2)
    monkeypatch.setattr(line, "_execute", losing(line._execute, 1, uuid(ring2, 1)))
    began = time.monotonic()
    ring2.run(COUNT, timeout=WITHIN).check()
    assert time.monotonic() - began < 3 + WITHIN
    assert ring2.pull("ran") == [1, 1]


def test_a_lost_cell_is_sent_again_though_nobody_follows_it(ring2: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    reset(ring2)
    line = lifeline(ring2)
    monkeypatch.setattr(line, "_execute", losing(line._execute, 2, uuid(ring2, 0)))
    cell = ring2.begin(COUNT)
    assert idle(ring2, WITHIN)
    assert ring2.pull("ran") == [1, 1]
    cell.finish().check()


def test_a_copy_is_not_run(ring2: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    reset(ring2)
    line, sends = lifeline(ring2), lifeline(ring2)._execute

    def thrice(*what: Any) -> None:
        for _ in range(3):
            sends(*what)

    monkeypatch.setattr(line, "_execute", thrice)
    ring2.run(COUNT, timeout=WITHIN).check()
    assert ring2.run("ran", timeout=WITHIN)[0].value == 1
    assert ring2.pull("ran") == [1, 1]
    assert ring2.client[0].apply_sync(lambda: 7) == 7


def test_a_rank_that_is_busy_is_waited_for(ring2: Cluster) -> None:
    """It is not lost: whatever runs there before it has its time."""
    reset(ring2)
    ring2.client[:].execute("import time; time.sleep(5)", silent=False, block=False)
    ring2.run(COUNT, timeout=WITHIN).check()
    assert ring2.pull("ran") == [1, 1]


def test_what_never_arrives_fails_on_that_rank_and_does_not_run_later(
    ring2: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    reset(ring2)
    line, sends = lifeline(ring2), lifeline(ring2)._execute
    lost: list[tuple[Any, ...]] = []

    def execute(to: str, code: str, request: CellRequest) -> None:
        if to == uuid(ring2, 1):
            lost.append((to, code, request))
        else:
            sends(to, code, request)

    def look(to: str, now: float) -> None:
        if to == uuid(ring2, 1):  # the other one may take longer than that to begin
            looks(to, now)

    looks = line._deliveries.look
    monkeypatch.setattr(line._deliveries, "look", look)
    monkeypatch.setattr(delivery, "ASK_AFTER", (0.2, 0.2))
    monkeypatch.setattr(line, "_execute", execute)
    result = ring2.run(COUNT, timeout=WITHIN)
    assert result[0].ok and not result[1].ok
    assert result[1].error is not None and result[1].error.ename == "CellLost"
    assert "did not run on this rank. Run it again" in result[1].error.evalue
    assert len(lost) == 2
    monkeypatch.undo()
    line._execute(*lost[0])  # it comes after all
    assert comes_true(ring2, lambda now: all(rank.state in AT_REST for rank in now.ranks), WITHIN)
    assert ring2.run("ran", timeout=WITHIN)[1].value == 0
    ring2.run(COUNT, timeout=WITHIN).check()
    assert ring2.pull("ran") == [2, 1]
