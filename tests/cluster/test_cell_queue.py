"""Cells that wait for others: each runs once, in turn, or is named as not run."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from allranks import Cluster
from allranks.cluster.cell_queue import CHECK_EVERY, MOST_ENDED, QueuedCell
from allranks.errors import CellTimeout, NoCluster, NotRun, UsageError
from tests.notebook.test_watch import until

WAITS = "import os, time\nwhile not os.path.exists({!r}): time.sleep(0.01)"


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """A file; cells wait until it is there."""
    return tmp_path / "gate"


def ran(cluster: Cluster) -> list[Any]:
    return [rank.value for rank in cluster.run("ran").check().values()]


def test_cells_run_one_after_the_other_each_once(ring2: Cluster, gate: Path) -> None:
    ring2.run("ran = []").check()
    first = ring2.begin(WAITS.format(str(gate)) + "\nran.append(0)")
    queued = [ring2.queue.add(f"ran.append({number}); ran", name=f"cell {number}") for number in range(1, 6)]
    assert [each.status for each in queued] == ["waiting"] * 5 and "cell 3" in str(ring2.queue)
    assert queued[0].after is first.sent and queued[4].after is queued[3]
    gate.touch()
    results = [each.finish(60) for each in queued]
    assert [result[1].value for result in results] == [list(range(number + 1)) for number in range(1, 6)]
    assert first.finish().ok and ran(ring2) == [list(range(6))] * 2
    assert ring2.queue.add("ran.append(6)").finish(60).ok, "after the last one that ran"
    listed = [(entry.label, entry.status, entry.after) for entry in ring2.queue][-2:]
    assert listed[0] == ("cell 5", "ok", "cell 4") and listed[1][1] == "ok" and listed[1][2].startswith("In[")


def test_what_waits_for_a_cell_that_fails_is_not_run(ring2: Cluster, gate: Path) -> None:
    ring2.run("ran = []").check()
    first = ring2.begin(WAITS.format(str(gate)) + "\nassert rank", count=7)
    after, last = ring2.queue.add("ran.append(1)", count=8), ring2.queue.add("ran.append(2)", name="b", count=9)
    gate.touch()
    with pytest.raises(NotRun, match=r"^In\[8\] was not run: In\[7\] failed \(rank 0 raised AssertionError"):
        after.finish(60)
    with pytest.raises(NotRun, match=r"^b \(In\[9\]\) was not run: In\[8\] was not run \(In\[7\] failed"):
        last.finish(60)
    assert not first.finish().ok and ran(ring2) == [[], []]
    ring2.begin("1 / 0", count=10).finish()
    with pytest.raises(UsageError, match=r"not queued: In\[10\] failed \(ranks 0-1 raised ZeroDivisionError"):
        ring2.queue.add("ran.append(3)", count=11)
    assert [entry.label for entry in ring2.queue][-2:] == ["In[8]", "b (In[9])"]


def test_a_cell_may_wait_for_one_by_name_or_number(ring2: Cluster, gate: Path) -> None:
    ring2.run("ran = []").check()
    ring2.begin(WAITS.format(str(gate)), count=3)
    fails = ring2.queue.add("1 / 0", name="fails", count=4)
    other = ring2.queue.add("ran.append(rank)", after=3, name="other", count=5)
    last = ring2.queue.add("ran.append(10)", after="In[5]")
    gate.touch()
    assert last.finish(60).ok and other.status == "ok" and not fails.finish(60).ok and fails.status == "failed"
    assert ran(ring2) == [[0, 10], [1, 10]]
    with pytest.raises(UsageError, match="no cell 'nosuch' waits or runs"):
        ring2.queue.add("1", after="nosuch")
    with pytest.raises(UsageError, match="'3' cannot name a cell: it is a number"):
        ring2.queue.add("1", name="3")
    assert ring2.queue.add("1", name="other").finish(60).ok, "a name that is free again"


def test_what_cannot_be_run_is_refused_at_once_or_named_later(ring2: Cluster, gate: Path) -> None:
    ring2.run("pass").check()
    with pytest.raises(UsageError, match="must be above 0 seconds"):
        ring2.queue.add("1", timeout=-1)
    with pytest.raises(NotRun, match="no rank 9: this world has ranks 0-1"):
        ring2.queue.add("1", ranks=9).finish(60)
    first = ring2.begin(WAITS.format(str(gate)), timeout=CHECK_EVERY)
    waiting = ring2.queue.add("1")
    with pytest.raises(CellTimeout, match=f"{waiting.label} is still waiting after 0 s"):
        waiting.finish(0)
    with pytest.raises(NotRun, match="was stopped"):
        waiting.finish(60)
    with pytest.raises(CellTimeout, match="the cell was stopped"):
        first.finish()


def test_waiting_cells_are_dropped_and_moved(ring2: Cluster, gate: Path) -> None:
    ring2.run("ran = []").check()
    ring2.begin(WAITS.format(str(gate)))
    one, two, three, four = (ring2.queue.add(f"ran.append({name!r})", name=name) for name in ("a", "b", "c", "d"))
    bound = ring2.queue.add("ran.append('e')", after="d", name="e")
    named = ring2.queue.add("ran.append('f')", after="b", name="f")
    ring2.queue.drop("b")
    with pytest.raises(NotRun, match=r"^b was not run: it was dropped from the queue\."):
        two.finish(0)
    with pytest.raises(NotRun, match=r"^f was not run: b was not run \(it was dropped"):
        named.finish(0)
    ring2.queue.move("d", "a")
    assert [entry.label for entry in ring2.queue if entry.status == "waiting"] == ["d", "a", "c", "e"]
    for cell, before, said in (
        ("e", "e", "e cannot run before itself"),
        ("b", "a", "no cell 'b' waits. Waiting: d, a, c, e."),
        ("a", "x", "no cell 'x' waits"),
    ):
        with pytest.raises(UsageError, match=said):
            ring2.queue.move(cell, before)
    gate.touch()
    assert all(each.finish(60).ok for each in (one, three, four, bound))
    (order, other) = ran(ring2)
    assert order == other and order[:2] == ["d", "a"] and sorted(order[2:]) == ["c", "e"]


def test_no_cells_wait_for_each_other(ring2: Cluster, gate: Path) -> None:
    ring2.run("ran = []").check()
    ring2.begin(WAITS.format(str(gate)), count=1)
    queued = [
        ring2.queue.add("ran.append('q')", after=1, name="q"),
        ring2.queue.add("ran.append('s')", name="s"),
        ring2.queue.add("ran.append('p')", after="s", name="p"),
    ]
    queued.append(ring2.queue.add("ran.append('r')", name="r"))
    with pytest.raises(UsageError, match=r"r waits for p, which waits for s\."):
        ring2.queue.move("s", "r")
    ring2.queue.move("p", "q")
    drawn = random.Random(7)
    for number in range(40):
        if drawn.random() < 0.5:
            after = drawn.choice([each.name for each in queued if each.status == "waiting"]) if number % 2 else None
            queued.append(ring2.queue.add(f"ran.append({number})", name=f"c{number}", after=after))
        else:
            names = [each.name for each in queued if each.status == "waiting"]
            try:
                ring2.queue.move(drawn.choice(names), drawn.choice(names))
            except UsageError:
                continue
        if number == 20:
            ring2.queue.drop("s")
    gate.touch()
    assert until(lambda: all(each.ended.is_set() for each in queued)), str(ring2.queue)
    assert len(ran(ring2)[0]) == sum(each.status == "ok" for each in queued) > 1


def test_one_that_is_stopped_ends_those_that_wait_for_it(ring2: Cluster, gate: Path) -> None:
    ring2.run("ran = []").check()
    first = ring2.begin("import time\nwhile True: time.sleep(0.01)", count=5)
    after = ring2.queue.add("ran.append(1)")
    ring2.interrupt(within=30)
    with pytest.raises(NotRun, match=r"In\[5\] was stopped"):
        after.finish(60)
    assert not first.finish().ok


def test_the_end_of_the_cluster_ends_the_queue(gate: Path) -> None:
    with Cluster(1) as cluster:
        running, waiting = cluster.queue.add(WAITS.format(str(gate))), cluster.queue.add("pass")
        assert until(lambda: running.status == "running" and cluster.snapshot.ranks[0].state == "running")
    with pytest.raises(NotRun, match="the cluster ended"):
        waiting.finish(60)
    with pytest.raises(NoCluster):
        running.finish(60)
    assert running.status == "stopped"
    with cluster:
        assert cluster.queue.add("1 + 1").finish(60)[0].value == 2


def test_only_the_last_that_ended_are_listed(ring2: Cluster, gate: Path) -> None:
    ring2.begin(WAITS.format(str(gate)))
    for number in range(MOST_ENDED + 3):
        ring2.queue.add("pass", name=f"n{number}")
        ring2.queue.drop(f"n{number}")
    gate.touch()
    assert [entry.label for entry in ring2.queue] == [f"n{number}" for number in range(3, MOST_ENDED + 3)]


@pytest.mark.slow
def test_fifty_cells_run_once_or_are_named_as_not_run(tmp_path: Path, gate: Path) -> None:
    drawn = random.Random()
    print("seed:", seed := drawn.randrange(1 << 30))
    drawn.seed(seed)
    does = {"ok": "pass", "fails": "1 / 0", "loops": "while True: time.sleep(0.01)", "dies": "if rank: os._exit(1)"}
    with Cluster(2, backend="ring") as cluster:
        cluster.run(f"import os, time\nran = open({str(tmp_path)!r} + f'/{{rank}}', 'a', buffering=1)").check()
        cluster.begin(WAITS.format(str(gate)), count=1000)
        cells, kinds = list[QueuedCell](), dict[str, str]()
        for number in range(50):
            kind = "dies" if number == 40 else drawn.choices(["ok", "fails", "loops"], [8, 1, 1])[0]
            before: list[int | str] = [1000, *kinds]
            after = drawn.choice(before) if drawn.random() < 0.7 else None
            cells.append(
                cluster.queue.add(f"print({number}, file=ran)\n{does[kind]}", name=f"cell {number}", after=after)
            )
            kinds[cells[-1].name] = kind
        gate.touch()
        stopped = set[str]()

        def lines(rank: int) -> list[str]:
            return (tmp_path / str(rank)).read_text().split()

        def stops_what_loops() -> bool:
            for each in cells:
                number = each.name.removeprefix("cell ")
                if kinds[each.name] == "loops" and number not in stopped and number in lines(0) and number in lines(1):
                    stopped.add(number)
                    cluster.interrupt()
            return all(each.ended.is_set() for each in cells)

        assert any(until(stops_what_loops) for _ in range(8)), cluster.queue
        begun = [each.name.removeprefix("cell ") for each in cells if each.status != "not run"]
        for rank in range(2):
            assert len(set(lines(rank))) == len(lines(rank)), "each at most once"
            assert set(lines(rank)) == set(begun)
        ends = {"ok": "ok", "fails": "failed", "loops": "stopped", "dies": "failed"}
        for each in cells:
            assert each.status in (ends[kinds[each.name]], "not run"), each
            assert each.why or each.status in ("ok", "stopped")
            if each.status == "not run":
                with pytest.raises(NotRun):
                    each.finish(0)
