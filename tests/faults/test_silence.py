"""A stopped process (SIGSTOP, a sleeping host) is called silent, not dead, and goes on where it was."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import ipyparallel
import psutil
import pytest

from allranks import Cluster
from allranks.errors import CellTimeout, NoAnswer, UsageError, WorldBroken
from allranks.head.state.known_rank import SILENT_AFTER
from allranks.notebook.feed_dashboards import Nowhere
from allranks.notebook.fold import Block
from allranks_backends.views import NOT_RESPONDING, Snapshot
from tests.faults.kept import WITHIN, keep, look, sums_are_right
from tests.faults.stop import running, waiting
from tests.waiting import comes_true, eventually

pytestmark = pytest.mark.slow


class Shown(Nowhere):
    """What a notebook would show."""

    def __init__(self) -> None:
        self.text = ""

    def blocks(self, blocks: list[Block]) -> None:
        self.text += "".join(f"{block.ranks}: {block.content}" for block in blocks)


def test_a_stopped_rank_is_reported_and_the_cell_ends_right_after_it_goes_on(ring4: Cluster, tmp_path: Path) -> None:
    kept, shown = keep(ring4), Shown()
    pid = ring4.snapshot.ranks[1].pid
    assert pid is not None
    go = tmp_path / "go"
    cell = ring4.begin(
        "import os\ntotal = left = 4\nwhile left:\n"
        f"    left = mx.distributed.all_min(mx.array(0 if os.path.exists({str(go)!r}) else 4)).item()\n"
        "    total += mx.distributed.all_sum(mx.array(1)).item() - 4\n"
        "total",
        screen=shown,
    )
    assert comes_true(ring4, running(0, 1, 2, 3), WITHIN)
    os.kill(pid, signal.SIGSTOP)
    try:
        seen: list[Any] = []
        # It reports five times a second; its host process reports that it was suspended.
        silent = comes_true(ring4, lambda now: now.ranks[1].state == "suspended", WITHIN)
        seen.append(ring4.snapshot.ranks[1].doing)
        assert silent and ring4.snapshot.ranks[1].state == "suspended", seen
        assert ring4.state == "whole", "it is not dead"
    finally:
        go.touch()
        os.kill(pid, signal.SIGCONT)
    result = cell.finish(WITHIN).check()
    assert [each.value for each in result.values()] == [4] * 4
    assert sums_are_right(ring4)
    assert look(ring4) == kept


def test_it_is_said_in_the_cell_unasked(ring4: Cluster, tmp_path: Path) -> None:
    shown = Shown()
    pid = ring4.snapshot.ranks[1].pid
    assert pid is not None
    cell = ring4.begin(
        "import os, time\n"
        f"while rank == 1 and not os.path.exists({str(tmp_path / 'go')!r}): time.sleep(0.02)\n"
        "mx.distributed.all_sum(mx.array(1)).item()",
        screen=shown,
    )
    assert comes_true(ring4, lambda now: now.ranks[1].line == 2 and waiting(0, 2, 3)(now), WITHIN)
    os.kill(pid, signal.SIGSTOP)
    (tmp_path / "go").touch()

    def go_on() -> None:
        eventually(lambda: "is not responding" in shown.text and "blocked in all_sum" in shown.text)
        os.kill(pid, signal.SIGCONT)

    watching = threading.Thread(target=go_on)
    watching.start()
    result = cell.finish(2 * WITHIN).check()
    watching.join()
    assert [each.value for each in result.values()] == [4] * 4
    assert "(1,): is not responding" in shown.text
    assert "(0, 2, 3): blocked in all_sum" in shown.text
    assert "rank 1 has not entered it yet (last seen at line 2: while rank == 1 and not" in shown.text
    assert "; its process is suspended)" in shown.text


@pytest.mark.parametrize("cluster", ["ring2", pytest.param("mpi4", marks=pytest.mark.mpi)])
def test_a_stop_says_how_to_continue_a_suspended_rank(
    cluster: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """And not that it must be replaced; once it is continued, the cell ends, and nothing is lost."""
    world: Cluster = request.getfixturevalue(cluster)
    kept, pid = keep(world), world.snapshot.ranks[1].pid or 0
    cell = world.begin("import time\nif rank == 1: time.sleep(600)")
    assert comes_true(world, lambda now: now.ranks[1].line == 2, WITHIN)
    os.kill(pid, signal.SIGSTOP)
    try:
        assert comes_true(world, lambda now: now.ranks[1].suspended, WITHIN)
        with pytest.raises(CellTimeout) as said:
            cell.finish(0.1)
    finally:
        os.kill(pid, signal.SIGCONT)
    host = world.snapshot.ranks[1].host
    assert re.search(r"Still busy after \d s: rank 1 suspended\.", str(said.value))
    assert f"kill -CONT {pid} on {host}. It will be interrupted then." in str(said.value)
    assert "--kill" not in str(said.value)
    assert comes_true(world, lambda now: now.ranks[1].state == "idle" and not now.ranks[1].suspended, WITHIN)
    assert sums_are_right(world) and look(world) == kept


def test_a_rank_that_awaits_something_is_named_with_its_line(ring2: Cluster, tmp_path: Path) -> None:
    """Its main thread is in the event loop meanwhile, and in no code of the user."""
    shown, go = Shown(), tmp_path / "go"
    cell = ring2.begin(
        "import asyncio, os\n"
        f"while rank == 1 and not os.path.exists({str(go)!r}):\n"
        "    await asyncio.sleep(0.2)\n"
        "mx.distributed.all_sum(mx.array(1)).item()",
        screen=shown,
    )
    following = threading.Thread(target=cell.finish, args=(WITHIN,), daemon=True)
    following.start()
    try:
        eventually(lambda: "rank 1 has not entered it yet" in shown.text)
    finally:
        go.touch()
    following.join(WITHIN)
    assert "rank 1 has not entered it yet (running line 3: await asyncio.sleep(0.2))" in shown.text


COMPUTES = """\
import os
total = mx.distributed.all_sum(mx.ones(10))
mx.eval(total)
if rank == 0:
    a = b = mx.random.normal((300, 300)) / 300**0.5
    while not os.path.exists({go!r}):
        for _ in range(20):
            a = a @ b
        mx.eval(a)
        a = b
"""


def test_a_rank_that_computes_by_itself_is_not_said_to_wait(ring2: Cluster, tmp_path: Path) -> None:
    """MLX computes in a thread of its own while the main thread sleeps, as it does in a collective."""
    shown, seen, go = Shown(), list[tuple[str, int | None]](), tmp_path / "go"

    def reported(now: Snapshot) -> bool:
        seen.append((now.ranks[0].state, now.ranks[0].line))
        return seen.count(("running", 9)) >= 5

    cell = ring2.begin(COMPUTES.format(go=str(go)), screen=shown)
    try:
        assert comes_true(ring2, reported, WITHIN), seen
    finally:
        go.touch()
    cell.finish(WITHIN).check()
    assert ("waiting", 9) not in seen
    assert "blocked" not in shown.text


def verbs(cluster: Cluster) -> dict[str, Callable[[], object]]:
    """Every way to ask all ranks for something, or to give them something."""
    return {
        "pull": lambda: cluster.pull("kept"),
        "push": lambda: cluster.push({"pushed": 1}),
        "scatter": lambda: cluster.scatter({"part": list(range(8))}),
        "gather": lambda: cluster.gather("parts"),
        "diff": lambda: cluster.diff("kept"),
    }


def refused(verb: Callable[[], object]) -> tuple[str, float]:
    """What a verb says that a stopped rank 1 keeps from its end, and after how many seconds."""
    began = time.monotonic()
    with pytest.raises(NoAnswer) as said:
        verb()
    return str(said.value), time.monotonic() - began


@contextmanager
def stopped(cluster: Cluster, rank: int) -> Iterator[None]:
    """A rank whose process is stopped meanwhile; afterwards it is back."""
    pid = cluster.snapshot.ranks[rank].pid
    assert pid is not None and cluster._live.ranks is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)
        known = cluster._live.ranks.monitor.ranks[rank]
        assert cluster._live.ranks.monitor.wait(lambda: known.connected and known.state not in NOT_RESPONDING, WITHIN)


@pytest.mark.parametrize("name", ["pull", "push", "scatter", "gather", "diff"])
def test_a_question_to_a_stopped_rank_ends_and_names_it(ring4: Cluster, name: str) -> None:
    ring4.run("kept, parts = 5, [rank]").check()
    verb = verbs(ring4)[name]
    with stopped(ring4, 1):
        text, seconds = refused(verb)
        assert text.startswith("rank 1 is not responding (suspended, holding the GIL, or unreachable).")
        assert "%distributed status" in text and "%distributed heal --kill 1" in text
        assert f"To continue rank 1: kill -CONT {ring4.snapshot.ranks[1].pid} on localhost." in text
        assert seconds < WITHIN
    verb()
    assert ring4.pull("kept") == [5] * 4


def test_a_question_to_a_lost_connection_ends_at_once(ring4: Cluster) -> None:
    ring4.run("kept, parts, pushed = 5, [rank], 0").check()
    assert ring4._live.ranks is not None
    monitor = ring4._live.ranks.monitor
    with stopped(ring4, 1):
        assert monitor.wait(lambda: not monitor.ranks[1].connected, WITHIN)
        took = []
        for name, verb in verbs(ring4).items():
            text, seconds = refused(verb)
            assert text.startswith("rank 1 is not responding"), name
            took.append(seconds)
        assert min(took) < SILENT_AFTER / 2 and max(took) < WITHIN, "silence is not waited for"
        assert "%distributed pull kept -r 0,2-3." in refused(lambda: ring4.pull("kept"))[0]
        assert ring4.pull("kept", ranks=[0, 2, 3]) == [5] * 3
        assert ring4.pull("pushed", ranks=[0, 2, 3]) == [0] * 3, "all ranks get it, or none"
    for verb in verbs(ring4).values():
        verb()
    assert ring4.pull("kept") == [5] * 4 and ring4.pull("pushed") == [1] * 4
    assert ring4.state == "whole"


def test_vars_shows_those_that_answer_and_names_the_others(ring4: Cluster) -> None:
    ring4.run("kept = 5").check()
    with stopped(ring4, 2):
        table = ring4.vars("kept")
        assert table.silent == (2,)
        assert set(table.rows[0].nbytes) == {0, 1, 3}
        assert "Not shown: rank 2 (no answer: suspended" in str(table) and "rank 2" in (table._repr_html_() or "")
        with pytest.raises(UsageError, match=r"nosuch.*rank 2 is not responding"):
            ring4.vars("nosuch")
    assert ring4.vars("kept").silent == ()


def test_a_rank_that_answers_late_is_not_cut_off(ring2: Cluster) -> None:
    """Longer than a stopped rank is waited for: it computes, or holds Python's lock while it pickles."""
    ring2.run(
        "import ctypes, time\n"
        "class Slow:\n"
        "    def __reduce__(self):\n"
        "        time.sleep(5)\n"
        "        ctypes.PyDLL(None).sleep(10)\n"
        "        return int, (rank + 7,)\n"
        "slow = Slow()"
    ).check()
    began = time.monotonic()
    assert ring2.pull("slow") == [7, 8]
    assert time.monotonic() - began > 15
    ring2.run("del slow").check()


def controllers() -> set[psutil.Process]:
    found = set()
    for each in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it has ended
            if "allranks.hosts.ipyparallel_controller" in each.cmdline():
                found.add(each)
    return found


def test_pull_raises_where_nobody_is_left_to_answer() -> None:
    """Not an empty list: every rank has ended."""
    with Cluster(2, backend="ring", name="bereft") as cluster:
        cluster.push({"x": 1})
        for rank in cluster.snapshot.ranks:
            os.kill(rank.pid or 0, signal.SIGKILL)
        assert comes_true(cluster, lambda now: all(rank.state == "dead" for rank in now.ranks), WITHIN)
        for verb in (lambda: cluster.pull("x"), lambda: cluster.push({"x": 2}), lambda: cluster.vars()):
            with pytest.raises(WorldBroken, match="SIGKILL"):
                verb()


def test_a_killed_controller_is_replaced_and_costs_nothing(tmp_path: Path) -> None:
    before, go = controllers(), tmp_path / "go"
    with Cluster(2, backend="ring", name="relayed") as cluster:
        kept, pids = keep(cluster), [rank.pid for rank in cluster.snapshot.ranks]
        (first,) = controllers() - before
        running = cluster.begin(f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.05)\n'through'")
        first.kill()
        first.wait(WITHIN)
        go.touch()
        assert [rank.value for rank in running.finish().check().values()] == ["through"] * 2
        assert sums_are_right(cluster) and look(cluster) == kept
        assert [rank.pid for rank in cluster.snapshot.ranks] == pids
        (second,) = controllers() - before
        assert second != first
        with ipyparallel.Client(str(cluster.connection_file), timeout=WITHIN) as client:
            client.wait_for_engines(2, timeout=WITHIN)
            assert client[:].apply_sync(os.getpid) == pids
