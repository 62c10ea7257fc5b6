"""What dashboards are fed, and what clicks in them do, with real ranks and without a browser."""

from __future__ import annotations

import json
import re
import threading
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from allranks import Cluster
from allranks.errors import UsageError
from allranks.head.state import known_rank
from allranks.notebook import fold
from allranks_backends.views import Snapshot
from allranks_widgets import from_json
from tests.waiting import comes_true

if TYPE_CHECKING:
    from allranks.head.state.known_rank import Rank
    from allranks.messages.events import State
    from allranks_widgets import Dashboard

WITHIN = 60.0


def until(condition: Any) -> bool:
    deadline = time.monotonic() + WITHIN
    while not (held := condition()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return bool(held)


def items(dashboard: Dashboard, cell: int) -> list[dict[str, Any]]:
    return [item for each in dashboard._kept.everything() if (item := json.loads(each))["cell"] == cell]


def test_output_and_state_reach_every_dashboard(ring2: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold, "GRACE", WITHIN)
    one, other = ring2.watch(), ring2.watch("topology")
    assert other.views == ["topology"]
    result = ring2.run(
        "import sys\nprint('alike')\nprint('rank', rank)\nprint('bad', file=sys.stderr)\nif rank == 1: 1/0\n'value'"
    )
    for dashboard in (one, other):
        assert until(lambda each=dashboard: any(item["kind"] == "end" for item in items(each, result.cell)))
        found = items(dashboard, result.cell)
        assert found[0]["kind"] == "begin" and found[0]["ranks"] == [0, 1] and "1/0" in found[0]["code"]
        texts = [(item["ranks"], item["stream"], item["text"]) for item in found if item["kind"] == "text"]
        assert ([0, 1], "stdout", "alike\n") in texts
        assert ([1], "stdout", "rank 1\n") in texts
        assert ([0, 1], "stderr", "bad\n") in texts
        (error,) = (item for item in found if item["kind"] == "error")
        assert (error["ranks"], error["ename"]) == ([1], "ZeroDivisionError")
        assert any(item["kind"] == "result" and item["data"] == {"text/plain": "'value'"} for item in found)
        assert found[-1]["kind"] == "end" and found[-1]["ok"] is False
        assert until(lambda each=dashboard: each.snapshot.ranks[1].state == "failed")


def test_a_script_gets_the_picture_of_its_world(ring2: Cluster) -> None:
    dashboard = ring2.topology
    try:
        ring2.run("mx.eval(mx.distributed.all_sum(mx.ones(1000)))").check()
        idle = [("rank 0", "idle"), ("rank 1", "idle")]
        assert until(lambda: re.findall(r">(rank \d)<.*?>(\w+)<", dashboard.picture()) == idle)
        assert "localhost" in dashboard.picture("topology") and dashboard.picture("throughput").startswith("<svg ")
    finally:
        dashboard.close()


def test_the_frame_is_the_snapshot(ring2: Cluster) -> None:
    dashboard = ring2.watch()
    ring2.run("for _ in range(30): mx.eval(mx.distributed.all_sum(mx.ones(1000)))").check()
    assert until(lambda: dashboard.snapshot and any((link.sent or 0) > 100_000 for link in dashboard.snapshot.links))
    dashboard.flush()
    frame = json.loads(dashboard.frame)
    assert [rank["rank"] for rank in frame["ranks"]] == [0, 1]
    assert frame["hosts"][0]["cores"] and frame["hosts"][0]["memory"]
    assert frame["links"][0]["link"]["interface"] == "lo"


def drawn(frame: Snapshot) -> Snapshot:
    """What a frame draws, whenever it was sent."""
    return replace(frame, at=0.0, ranks=tuple(replace(rank, since=None) for rank in frame.ranks))


def still(frame: Snapshot) -> Snapshot:
    """The same without what others change who use this machine: its load, and each rank's share of it."""
    return replace(frame, hosts=(), ranks=tuple(replace(rank, cpu=None, rss=None) for rank in frame.ranks))


@pytest.mark.slow
def test_nothing_is_sent_while_nothing_changes(ring2: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame that differs from the one before it shows what a rank has reported, as it does once a second at rest."""
    monkeypatch.setattr(known_rank, "SILENT_AFTER", WITHIN)  # a rank of a busy machine may be called stopped
    ring2.run("1").check()
    assert ring2._live.ranks is not None
    monitor = ring2._live.ranks.monitor
    reports, news, reported = 0, 0, monitor._reported

    def counted(rank: Rank, state: State) -> None:
        nonlocal reports, news
        before = still(drawn(monitor.snapshot()))
        reported(rank, state)
        reports, news = reports + 1, news + (still(drawn(monitor.snapshot())) != before)

    monkeypatch.setattr(monitor, "_reported", counted)
    dashboard = ring2.watch()
    dashboard.flush()
    frames = [from_json(dashboard.frame)]
    dashboard.observe(lambda change: frames.append(from_json(change["new"])), "frame")
    assert monitor.wait(lambda: reports >= 8, WITHIN)
    shown = [drawn(frame) for frame in frames]
    assert all(one != other for one, other in pairwise(shown)), "nothing is sent twice"
    assert sum(still(one) != still(other) for one, other in pairwise(shown)) <= news


def test_interrupt_of_one_rank_ends_its_endless_loop(ring2: Cluster) -> None:
    dashboard = ring2.watch()
    cell = ring2.begin("if rank == 1:\n    while True: pass")
    assert comes_true(ring2, lambda now: now.ranks[1].line == 2, WITHIN)
    dashboard._asked({"ask": "interrupt", "rank": 1})
    result = cell.finish(WITHIN)
    assert list(result.errors) == [1] and result.errors[1].ename == "KeyboardInterrupt"
    assert result[0].ok


@pytest.mark.slow
def test_break_frees_ranks_that_wait(ring2: Cluster) -> None:
    dashboard = ring2.watch()
    cell = ring2.begin("if rank == 0: mx.eval(mx.distributed.all_sum(mx.ones(3)))")
    follow = threading.Thread(target=cell.finish, daemon=True)
    follow.start()
    assert comes_true(ring2, lambda now: now.ranks[0].state == "waiting", WITHIN)
    dashboard._asked({"ask": "abort", "rank": 0})
    follow.join(WITHIN)
    assert cell.result is not None and cell.result[0].unblocked
    assert ring2.run("mx.distributed.all_sum(mx.ones(1)).item()").check()[0].value == 2.0


@pytest.mark.slow
def test_heal_of_a_rank_that_is_stuck_replaces_it() -> None:
    with Cluster(2, backend="ring") as cluster:
        dashboard = cluster.watch()
        cluster.run("kept = rank + 10").check()
        before = cluster.snapshot.ranks[1].pid
        cell = cluster.begin("import os\nif rank == 1: os.kill(os.getpid(), 19)", want_values=False)
        follow = threading.Thread(target=cell.finish, daemon=True)
        follow.start()
        assert comes_true(cluster, lambda now: now.ranks[1].state == "suspended", WITHIN)
        dashboard._asked({"ask": "heal", "rank": 1})
        assert comes_true(cluster, lambda now: now.state == "whole" and now.ranks[1].pid not in (None, before), WITHIN)
        follow.join(WITHIN)
        assert cluster.run("kept", ranks=0).check()[0].value == 10
        assert cluster.run("mx.distributed.all_sum(mx.ones(1)).item()").check()[1].value == 2.0


def test_what_a_click_cannot_do_is_said(ring2: Cluster) -> None:
    assert ring2._dashboards._act("interrupt", 0) == "No cell is running on rank 0."
    assert ring2._dashboards._act("abort", None) == "Nothing is blocked in a collective."
    assert "Nothing to heal" in str(ring2._dashboards._act("heal", None))


def test_a_recording_shows_what_a_dashboard_was_shown(ring2: Cluster, tmp_path: Path) -> None:
    from allranks_widgets.recording import read

    go = tmp_path / "go"
    with ring2.record(tmp_path / "run.jsonl.gz"):
        dashboard = ring2.watch()  # is given things after the recorder
        cell = ring2.begin(
            "import os, time\ngoes_on = True\nwhile goes_on:\n    time.sleep(0.1)\n"
            f"    goes_on = mx.distributed.all_min(mx.array(not os.path.exists({str(go)!r}))).item()"
        )
        assert until(lambda: dashboard.sent >= 6)
        assert until(lambda: dashboard.snapshot is not None and dashboard.snapshot.ranks[0].state == "running")
        go.touch()
        cell.finish(WITHIN).check()
        last = ring2.run("print('recorded')").check()
        assert until(lambda: any(item["kind"] == "end" for item in items(dashboard, last.cell)))
    recorded = list(read(tmp_path / "run.jsonl.gz"))
    frames = [each.snapshot for each in recorded if each.snapshot]
    assert len(frames) >= 5 and any(rank.state == "running" for frame in frames for rank in frame.ranks)
    assert any(item.get("text") == "recorded\n" for each in recorded for item in each.output)
    ring2.run("1").check()  # nobody is recording any more


def test_pictures_that_are_not_there_are_refused(ring2: Cluster) -> None:
    with pytest.raises(UsageError, match="unknown picture 'map': choose from topology, ranks, throughput"):
        ring2.watch("map")


def test_the_last_state_stays_when_the_cluster_is_down() -> None:
    with Cluster(1) as cluster:
        dashboard = cluster.watch()
        assert "ready" in repr(dashboard)
    assert "down" in repr(dashboard)


@pytest.mark.slow
def test_a_dashboard_goes_on_with_the_cluster_that_comes_next() -> None:
    with Cluster(1) as before:
        dashboard = before.watch()
        before.run("print('before')").check()
        assert until(lambda: items(dashboard, 1))
    assert "down" in repr(dashboard)
    after = Cluster(2)
    with after:
        after.take_dashboards(before)
        assert "2 ranks · ring · ready" in repr(dashboard)
        assert not items(dashboard, 1), "another world's output"
        after.run("print('after')").check()
        assert until(lambda: any(item.get("text") == "after\n" for item in items(dashboard, 1)))
        dashboard._act({"ask": "heal", "rank": None})  # it acts on this one
    assert "down" in repr(dashboard)
    with after:
        assert until(lambda: "ready" in repr(dashboard)), "the same one, up again"


def test_without_a_page_the_log_is_the_table_of_last_values(ring2: Cluster) -> None:
    """As a terminal shows it, in which nothing follows."""
    ring2.run("for step in range(3):\n    log(seen=step + rank / 2, step=step)").check()
    said = repr(ring2.watch("log"))
    assert said.splitlines()[0].split() == ["logged", "ranks", "step", "last", "min", "max"]
    assert ["seen", "1", "2", "2.5", "0.5", "2.5"] in [line.split() for line in said.splitlines()]
    assert "world" not in said
