"""``log(...)`` on real ranks: what arrives, what is refused, what is never waited for, and where it is shown."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from allranks.errors import NoCluster, UsageError
from allranks.head.state.logged import DRAWN, FOLLOWED, MOST_POINTS, MOST_SERIES, RECENT, Logged, Row
from allranks.messages.events import LogCall
from allranks.notebook.feed_dashboards import Nowhere
from allranks.rank.metrics.log import KEEP
from allranks_widgets import Dashboard, replay
from tests.faults.absent import blocked
from tests.notebook.test_watch import until

if TYPE_CHECKING:
    from allranks import Cluster


@pytest.fixture
def ring(ring2: Cluster) -> Cluster:
    """Two ranks of whose earlier figures nothing is left."""
    ring2._live.logs.clear()
    return ring2


def test_what_ranks_log_is_a_tidy_table(ring: Cluster) -> None:
    code = "for i in range(3): log(loss=1 / (i + 1 + rank), step=10 * i)\nif rank: log(size=size)"
    cell = ring.run(code).check().cell
    frame = ring.logged("loss")
    assert list(frame.columns) == ["rank", "step", "name", "value", "time", "cell"]
    assert frame[frame["rank"] == 1]["value"].tolist() == pytest.approx([1 / 2, 1 / 3, 1 / 4])
    assert frame[frame["rank"] == 0]["step"].tolist() == [0, 10, 20]
    assert set(frame["cell"]) == {cell} and str(frame["time"].dt.tz) == "UTC"
    assert ring.logged().groupby("name").size().to_dict() == {"loss": 6, "size": 1}
    with pytest.raises(UsageError, match=r"nothing was logged as los\. Logged: loss, size"):
        ring.logged("los")


def test_the_step_counts_on_by_itself(ring: Cluster) -> None:
    ring.run("log(a=1); log(a=2); log(a=3, step=7); log(a=4)", ranks=0).check()
    assert ring.logged("a")["step"].diff().tolist()[1:] == pytest.approx([1, 7 - ring.logged("a")["step"][1], 1])


def test_numbers_of_every_kind_are_taken_and_the_end_of_training_is_seen(ring: Cluster) -> None:
    code = (
        "import numpy as np, math\n"
        "log(array=mx.array([3.0]) + 1, numpy=np.float32(0.5), flag=True, whole=7, bf=mx.array(2, mx.bfloat16))\n"
        "log(bad=float('nan'), worse=-math.inf)"
    )
    ring.run(code, ranks=0).check()
    told = ring.logged().set_index("name")["value"]
    assert told[["array", "numpy", "flag", "whole", "bf"]].tolist() == [4, 0.5, 1, 7, 2]
    assert told["bad"] != told["bad"] and told["worse"] == float("-inf")


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        ("log(loss=mx.ones((3, 2)))", "TypeError", "takes a number, not an array of shape (3, 2)"),
        ("log(loss='low')", "TypeError", "takes a number, not a str"),
        ("log(loss=1, step=mx.distributed.all_sum(mx.array(1)))", "TypeError", "log(step=...) needs a collective"),
        ("log(loss=1, of=float('inf'))", "TypeError", "log(of=...) takes a finite number, not inf"),
        ("log(loss=1, step=float('nan'))", "TypeError", "log(step=...) takes a finite number, not nan"),
        ("log(loss=mx.distributed.all_sum(mx.array(1j)))", "TypeError", "takes a real number, not a complex one"),
        ("mx.compile(lambda x: (log(l=x), x)[1])(mx.array(1.0))", "RuntimeError", "return the array from it"),
        ("mx.grad(lambda x: (log(l=x), x)[1])(mx.array(1.0))", "RuntimeError", "return the array from it"),
    ],
)
def test_what_is_no_number_is_refused(ring: Cluster, call: str, error: str, said: str) -> None:
    found = ring.run(call)[1].error
    assert found is not None and found.ename == error and said in found.evalue and "log(" in found.evalue
    assert ring.logged().empty


def test_a_pending_collective_logged_on_one_rank_hangs_nobody(ring: Cluster) -> None:
    code = """total = mx.distributed.all_sum(mx.array(float(rank)))
if rank == 0: log(total=total, local=mx.array(2.0) * 2)"""
    result = ring.run(code, timeout=60).check()
    assert "not logged: total. It needs a collective" in result[0].stderr
    assert "not logged" not in result[1].stderr
    assert ring.logged()["name"].tolist() == ["local"]
    ring.run("mx.eval(total)", timeout=60).check()


def test_a_value_that_mlx_cannot_compute_is_named_and_takes_no_other_with_it(ring: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "held.npy"
    code = f"""import os
total = mx.distributed.all_sum(mx.array(1.0))
if rank == 0:
    mx.save({str(file)!r}, mx.ones(1 << 20))
    held = mx.load({str(file)!r})
    os.truncate({str(file)!r}, 100)
    log(bad=total + held[-1], good=total * 2)
mx.eval(total)"""
    result = ring.run(code, timeout=60).check()
    assert "not logged: bad. MLX could not compute it: " in result[0].stderr
    assert ring.logged()["name"].tolist() == ["good"]


def test_a_value_is_taken_once_the_code_has_computed_it(ring: Cluster) -> None:
    code = """for i in range(4):
    loss = mx.distributed.all_sum(mx.array(float(i)))
    log(loss=loss, step=i)
    mx.eval(loss)"""
    assert "not logged" not in ring.run(code, timeout=60).check()[0].stderr
    frame = ring.logged("loss")
    assert frame[frame["rank"] == 0]["value"].tolist() == [0, 2, 4, 6]
    assert frame[frame["rank"] == 1]["step"].tolist() == [0, 1, 2, 3]


@pytest.mark.slow
def test_what_a_broken_off_collective_left_is_not_logged(ring: Cluster) -> None:
    code = """loss = mx.distributed.all_sum(mx.array(7.0))
log(loss=loss, local=3)
log(loss=loss)
mx.eval(loss)"""
    result = blocked(ring, code)
    assert result[0].unblocked and not result[0].ok
    assert ring.logged()["name"].tolist() == ["local"]
    lost = "not logged: loss (2 times). A collective was aborted before it was evaluated.\n"
    assert lost in result[0].stderr and "not logged" not in result[1].stderr


def test_a_flood_costs_microseconds_a_call_and_what_was_lost_is_counted(ring: Cluster) -> None:
    code = (
        "import json, time\nbegan = time.thread_time()\nfor i in range(60_000): json.dumps({'fast': 0.5, 'step': i})\n"
        "between = time.thread_time()\nfor i in range(60_000): log(fast=0.5, step=i)\n"
        "[(between - began) / 60_000, (time.thread_time() - between) / 60_000]"
    )
    other, cost = ring.run(code, ranks=0, timeout=60).check()[0].value
    print(f"{cost * 1e6:.1f} µs a call, {other * 1e6:.1f} µs for a line of JSON")
    assert cost < 20 * other, "whatever the processor's time is worth now"
    frame = ring.logged("fast")
    assert len(frame) + frame.attrs["lost"] == 60_000 and frame["step"].iloc[-1] == 59_999
    assert frame.attrs["lost"] <= 60_000 - KEEP


def test_a_name_of_the_users_own_is_left_alone_and_log_is_no_variable(ring: Cluster) -> None:
    from allranks import Cluster

    assert "log" not in ring.vars().__repr__().split()
    with Cluster(1, name="log") as alone:
        alone.run("from math import log").check()
        alone.rewire("ring")
        assert alone.run("log(1.0)").check()[0].value == 0.0


@pytest.mark.slow
def test_the_record_outlives_the_cluster() -> None:
    from allranks import Cluster

    cluster = Cluster(1, name="past")
    with pytest.raises(NoCluster, match="call up"):
        cluster.logged()
    with cluster:
        cluster.run("log(loss=1.5)").check()
    assert cluster.logged()["value"].tolist() == [1.5]


def test_a_dashboard_has_it_live_and_as_tables_also_one_that_comes_later(ring: Cluster, tmp_path: Path) -> None:
    early = ring.watch("log")
    with ring.record(tmp_path / "run.jsonl") as recorder:
        ring.run("for i in range(50): log(loss=1 / (i + 1), step=i)\nlog(worst=float('nan'), step=50)").check()
        late = ring.watch()
        assert late.views[-1] == "log"
        for dashboard in (early, late):
            assert until(lambda each=dashboard: "worst" in repr(each))
            assert until(lambda each=dashboard: len(json.loads(each._curves.everything())) == 102), "of both ranks"
            assert ["loss", "0-1", "49", "0.02", "0.02", "1"] in [line.split() for line in repr(dashboard).splitlines()]
            assert "<td" in dashboard._html() and "worst" in dashboard._html() and "nan" in dashboard._html()
        assert until(lambda: "worst" in Path(recorder.path).read_text() or recorder._file.flush())
    again = Dashboard(["log"])
    assert replay(tmp_path / "run.jsonl", again, speed=100).wait(60)
    assert again._curves.table() == early._curves.table()


def test_a_long_run_is_thinned_and_a_reconnect_adds_nothing_twice() -> None:
    logged = Logged()
    calls = [LogCall(1, step, 1e9 + step, {"loss": step}) for step in range(MOST_POINTS + 1)]
    logged.take(0, "process", 0, calls)
    logged.take(0, "process", MOST_POINTS - 9, [*calls[-10:], LogCall(1, MOST_POINTS + 1, 2e9, {"loss": 1.0})])
    frame = logged.frame()
    assert frame["step"].iloc[[0, -2, -1]].tolist() == [0, MOST_POINTS, MOST_POINTS + 1]
    assert len(frame) == MOST_POINTS // 2 + 2 and frame.attrs["lost"] == 0
    seen, rows = logged.since(0)
    assert len(rows) <= DRAWN + 1 and rows[-1].step == MOST_POINTS + 1
    assert logged.since(seen) == (seen, [])


def test_names_without_end_are_not_kept_and_counted() -> None:
    logged = Logged()
    logged.take(0, "process", 0, [LogCall(1, 0, 1e9, {f"name {n}": 1.0}) for n in range(MOST_SERIES + 3)])
    frame = logged.frame()
    assert (len(frame), frame.attrs["lost"]) == (MOST_SERIES, 3)


def test_who_has_missed_too_much_is_told_all_of_it_thinned() -> None:
    logged = Logged()
    logged.take(0, "a", 0, [LogCall(1, step, 0.0, {"loss": 1.0}) for step in range(10)])
    seen, _ = logged.since(0)
    logged.take(0, "a", 10, [LogCall(1, step, 0.0, {"loss": 1.0}) for step in range(10, RECENT + 20)])
    count, rows = logged.since(seen)
    assert count == RECENT + 20 and len(rows) <= DRAWN + 1 and rows[0].step < 100 and rows[-1].step == RECENT + 19
    logged.take(0, "a", RECENT + 20, [LogCall(1, 0, 0.0, {"loss": 1.0})])
    assert [row.step for row in logged.since(count)[1]] == [0]


class Logs(Nowhere):
    """A screen that keeps what it is told was logged."""

    def __init__(self) -> None:
        self.rows = list[Row]()

    def logged(self, rows: Sequence[Row], run: object = None) -> None:
        self.rows += rows


def test_the_screen_of_a_cell_is_told_what_this_cell_logged_also_if_it_is_followed_late(ring: Cluster) -> None:
    ring.run("log(before=1)").check()
    screen = Logs()
    cell = ring.begin("for step in range(50): log(loss=step)", ranks=[1], screen=screen)
    assert until(lambda: len(ring.logged()) == 52)
    cell.finish().check()
    assert [(row.rank, row.name, row.value) for row in screen.rows] == [(1, "loss", step) for step in range(50)]


def test_who_follows_a_cell_late_gets_what_came_before_and_others_what_comes() -> None:
    logged, early, late = Logged(), list[Row](), list[Row]()
    logged.follow(1, early.append)
    logged.take(0, "a", 0, [LogCall(cell, 0, 0.0, {"loss": cell}) for cell in (1, 2)])
    logged.follow(2, late.append, late=True)
    logged.take(0, "a", 2, [LogCall(cell, 1, 1.0, {"loss": cell}) for cell in (1, 2)])
    assert [[(row.cell, row.step) for row in rows] for rows in (early, late)] == [[(1, 0), (1, 1)], [(2, 0), (2, 1)]]
    for cell in range(3, FOLLOWED + 3):
        logged.follow(cell, late.append)
    logged.take(0, "a", 4, [LogCall(1, 2, 2.0, {"loss": 1})])
    assert len(early) == 2, "the oldest is followed no more"


def test_how_many_steps_there_will_be(ring: Cluster) -> None:
    cell = ring.begin("for step in range(3): log(loss=step, of=3)")
    cell.finish().check()
    assert ring._live.logs.total(cell.number) == 3
    assert "of" not in set(ring.logged()["name"])
