"""Cells that wait for others: each runs once, in turn, or is named as not run."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from allranks import Cluster
from allranks.cluster.cell_queue import QueuedCell
from allranks.errors import NoCluster, NotRun, UsageError
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
    assert [each.state for each in queued] == ["waiting"] * 5 and "cell 3" in str(ring2.queue)
    assert ring2.queue.before(queued[0]) is first and ring2.queue.before(queued[4]) is queued[3]
    gate.touch()
    results = [each.finish(60) for each in queued]
    assert [result[1].value for result in results] == [list(range(number + 1)) for number in range(1, 6)]
    assert first.finish().ok and ran(ring2) == [list(range(6))] * 2
    assert ring2.queue.add("ran.append(6)").finish(60).ok, "after the last one that ran"


def test_what_waits_for_a_cell_that_fails_is_not_run(ring2: Cluster, gate: Path) -> None:
    ring2.run("ran = []").check()
    first = ring2.begin(WAITS.format(str(gate)) + "\nassert rank", count=7)
    after, last = ring2.queue.add("ran.append(1)", count=8), ring2.queue.add("ran.append(2)", count=9)
    gate.touch()
    with pytest.raises(NotRun, match=r"^In\[8\] was not run: In\[7\] failed \(rank 0 raised AssertionError"):
        after.finish(60)
    with pytest.raises(NotRun, match=r"^In\[9\] was not run: In\[8\] was not run \(In\[7\] failed"):
        last.finish(60)
    assert not first.finish().ok and ran(ring2) == [[], []]
    first = ring2.begin("1 / 0", count=10)
    first.finish()
    with pytest.raises(UsageError, match=r"not queued: In\[10\] failed \(ranks 0-1 raised ZeroDivisionError"):
        ring2.queue.add("ran.append(3)", count=11)
    assert [each.label for each in ring2.queue][-2:] == ["In[8]", "In[9]"]


def test_a_cell_may_wait_for_one_by_name_or_number(ring2: Cluster, gate: Path) -> None:
    ring2.run("ran = []").check()
    ring2.begin(WAITS.format(str(gate)), count=3)
    fails = ring2.queue.add("1 / 0", name="fails")
    other = ring2.queue.add("ran.append(rank)", after=3, name="other")
    last = ring2.queue.add("ran.append(10)", after="other")
    gate.touch()
    assert last.finish(60).ok and other.ok and not fails.finish(60).ok and fails.state == "failed"
    assert ran(ring2) == [[0, 10], [1, 10]]
    with pytest.raises(UsageError, match="no cell 'nosuch' is in the queue or was run lately"):
        ring2.queue.add("1", after="nosuch")
    for name, why in (("other", "it is taken"), ("3", "it is a number")):
        with pytest.raises(UsageError, match=f"'{name}' cannot name a cell: {why}"):
            ring2.queue.add("1", name=name)


def test_waiting_cells_are_dropped_and_moved(ring2: Cluster, gate: Path) -> None:
    ring2.run("ran = []").check()
    ring2.begin(WAITS.format(str(gate)))
    one, two, three, four = (ring2.queue.add(f"ran.append({name!r})", name=name) for name in ("a", "b", "c", "d"))
    bound = ring2.queue.add("ran.append('e')", after="d", name="e")
    ring2.queue.drop("b")
    with pytest.raises(NotRun, match=r"^b was not run: it was dropped from the queue\."):
        two.finish(0)
    ring2.queue.move("d", "a")
    with pytest.raises(UsageError, match="e waits for d, or for one that waits for it"):
        ring2.queue.move("e", "d")
    with pytest.raises(UsageError, match="b does not wait: not run"):
        ring2.queue.drop("b")
    with pytest.raises(UsageError, match=r"no cell 'x' in the queue\. It has .*a"):
        ring2.queue.move("x", "a")
    gate.touch()
    assert all(each.finish(60).ok for each in (one, three, four, bound))
    assert ran(ring2) == [["d", "a", "c", "e"]] * 2


def test_one_that_is_stopped_ends_those_that_wait_for_it_and_others_go_first(ring2: Cluster, gate: Path) -> None:
    ring2.run("ran = []").check()
    first = ring2.begin("import time\nwhile True: time.sleep(0.01)", count=5)
    after = ring2.queue.add("ran.append(1)")
    ring2.interrupt(within=30)
    with pytest.raises(NotRun, match=r"In\[5\] was stopped"):
        after.finish(60)
    assert not first.finish().ok
    ring2.run("pass").check()
    long = ring2.queue.add(WAITS.format(str(gate)) + "\nran.append(2)")
    assert until(lambda: long.cell is not None)
    beside = ring2.queue.add("ran.append(3)")
    gate.touch()
    assert beside.finish(60).ok and ran(ring2) == [[2, 3]] * 2


def test_the_end_of_the_cluster_ends_the_queue(gate: Path) -> None:
    with Cluster(1) as cluster:
        cluster.begin(WAITS.format(str(gate)))
        running, waiting = cluster.queue.add("pass"), cluster.queue.add("pass")
    with pytest.raises(NotRun, match="the cluster ended"):
        waiting.finish(60)
    with pytest.raises((NotRun, NoCluster)):
        running.finish(60)


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
            after = drawn.choice([1000, *(each.label for each in cells)]) if drawn.random() < 0.7 else None
            cells.append(
                cluster.queue.add(f"print({number}, file=ran)\n{does[kind]}", name=f"cell {number}", after=after)
            )
            kinds[cells[-1].label] = kind
        gate.touch()

        def stops_what_loops() -> bool:
            for each in cells:
                if each.state == "running" and kinds[each.label] == "loops":
                    cluster.interrupt(within=30)
            return all(each.over.is_set() for each in cells)

        assert any(until(stops_what_loops) for _ in range(8)), cluster.queue
        begun = [each.label.removeprefix("cell ") for each in cells if each.cell is not None]
        for rank in range(2):
            lines = (tmp_path / str(rank)).read_text().split()
            assert len(set(lines)) == len(lines), "each at most once"
            assert set(lines) == set(begun)
        ends = {"ok": "ok", "fails": "failed", "loops": "stopped", "dies": "failed"}
        for each in cells:
            assert each.state == (ends[kinds[each.label]] if each.cell is not None else "not run"), each
            assert each.why or each.state in ("ok", "stopped")
            if each.cell is None:
                with pytest.raises(NotRun):
                    each.finish(0)
