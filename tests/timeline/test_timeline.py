"""The timeline of a cell on real ranks: who waited for whom, as the ledger has it, and a file that viewers read.

That Perfetto's and Chrome's own viewers read the file is in tests/browser/test_timeline.py.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from allranks import Timeline
from allranks.errors import UsageError
from allranks.messages.requests import CellTrace, TracedCall
from allranks.rank.collectives.trace import LIMIT
from allranks_backends.views import Snapshot
from tests.faults.absent import blocked
from tests.jupyter import Notebook
from tests.waiting import comes_true

if TYPE_CHECKING:
    from allranks import Cluster

STRAGGLING = """import time
for n in range(4):
    mark(f"batch {n}")
    with mark("step"):
        with mark("load"):
            time.sleep(1.0 if rank == size - 1 and n == 2 else 0.01)
        mx.eval(mx.distributed.all_sum(mx.ones((100, 10))))"""


WITHIN = 60.0
GATED = """import os, time
for n in range(4):
    mark(f"batch {{n}}")
    with mark("step"):
        with mark("load"):
            while rank == size - 1 and not os.path.exists(f"{go}-{{n}}"): time.sleep(0.01)
            time.sleep(1.0 if rank == size - 1 and n == 2 else 0.01)
        mx.eval(mx.distributed.all_sum(mx.ones((100 + n, 10))))"""
"""The last rank comes last, each time: what it waits for is there when all others wait for it."""


def recorded(cluster: Cluster, code: str = STRAGGLING, **options: Any) -> Timeline:
    timeline = cluster.run(code, timeout=120, **{"timeline": True, **options}).check().timeline
    assert timeline is not None and timeline is cluster.last_timeline
    return timeline


def ledger_waits(cluster: Cluster) -> dict[int, float]:
    return {rank.rank: sum(op.wait or 0.0 for op in rank.ops if op.op == "all_sum") for rank in cluster.snapshot.ranks}


def wait_in(shape: tuple[int, ...], last: int, now: Snapshot) -> bool:
    """Whether all ranks but the last wait in the collective of this shape."""
    return all(
        rank.state == "waiting" and rank.collective is not None and rank.collective.shape == shape
        for rank in now.ranks[:last]
    )


@pytest.mark.parametrize("world", ["ring2", pytest.param("mpi4", marks=pytest.mark.mpi)])
def test_a_planted_straggler_shows(world: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    cluster: Cluster = request.getfixturevalue(world)
    cluster.run("mx.eval(mx.distributed.all_sum(mx.ones(1)))", timing=True, timeout=60).check()
    assert comes_true(cluster, lambda now: all("all_sum" in [op.op for op in rank.ops] for rank in now.ranks), WITHIN)
    before = ledger_waits(cluster)
    slow = cluster.size - 1
    cell = cluster.begin(GATED.format(go=tmp_path / "go"), timeline=True)
    for n in range(4):
        assert comes_true(cluster, partial(wait_in, (100 + n, 10), slow), WITHIN)
        (tmp_path / f"go-{n}").touch()
    timeline = cell.finish(WITHIN).check().timeline
    assert timeline is not None and timeline is cluster.last_timeline

    assert [each.rank for each in timeline.ranks] == list(range(cluster.size))
    for each in timeline.ranks:
        assert [(call.op, call.shape, call.nbytes, call.line) for call in each.calls] == [
            ("all_sum", (100 + n, 10), 4000 + 40 * n, 8) for n in range(4)
        ]
        waits = [call.wait or 0.0 for call in each.calls]
        assert (waits[2] > 0.5) == (each.rank != slow), waits
        assert each.calls[2].last == slow
        assert sum(waits) == pytest.approx(ledger_waits(cluster)[each.rank] - before[each.rank], abs=1e-3)
        assert [mark.name for mark in each.marks if mark.ended is None] == [f"batch {n}" for n in range(4)]
        assert [mark.name for mark in each.marks if mark.ended] == ["step", "load"] * 4
    (longest,) = [wait for wait in timeline.waits() if wait.call.number == timeline.ranks[0].calls[2].number]
    assert (longest.last, longest.doing) == (slow, "load")
    assert (timeline.straggler or "").startswith(f"rank {slow} was last in ")
    # The clock of one host is one clock: the waiting rank was let go when the slow one came, to a few milliseconds.
    slow_began = timeline.ranks[slow].calls[2].began or 0.0
    assert (timeline.ranks[0].calls[2].ended or 0.0) >= slow_began
    assert timeline.clocks.bound == 0.0


def test_the_file_has_all_ranks_and_matches_collectives(ring2: Cluster, tmp_path: Path) -> None:
    timeline = recorded(ring2)
    timeline.save(tmp_path / "trace.json")
    timeline.save(tmp_path / "trace.json.gz")
    content = json.loads((tmp_path / "trace.json").read_text())
    assert json.loads(gzip.decompress((tmp_path / "trace.json.gz").read_bytes())) == content
    events = content["traceEvents"]
    for rank in (0, 1):
        mine = [event for event in events if event["tid"] == 1000 + rank and event["ph"] == "X"]
        assert sum(event["cat"] == "collective" for event in mine) == 4
        spans = [(round(event["ts"] * 1e3), round(event["dur"] * 1e3)) for event in mine]
        stack: list[int] = []
        for began, lasted in sorted(spans, key=lambda span: (span[0], -span[1])):  # slices of a thread nest
            while stack and stack[-1] <= began:
                stack.pop()
            assert not stack or began + lasted <= stack[-1]
            stack.append(began + lasted)
    flows: dict[int, list[tuple[str, int]]] = {}
    for event in events:
        if event["ph"] in "stf":
            flows.setdefault(event["id"], []).append((event["ph"], event["tid"]))
    assert len(flows) == 4
    assert all(
        [phase for phase, _ in each] == ["s", "f"] and {t for _, t in each} == {1000, 1001} for each in flows.values()
    )
    assert "clocks" not in content["otherData"] and "mark(" in content["otherData"]["code"]


def test_calls_say_in_which_cell_or_module_they_are(ring2: Cluster, tmp_path: Path) -> None:
    defined = ring2.run("def summed(x):\n    return mx.distributed.all_sum(x)", timeout=60).check()
    timeline = recorded(ring2, "mx.eval(summed(mx.ones(2)))\nmx.eval(mx.distributed.all_sum(mx.ones(3)))")
    elsewhere, own = timeline.ranks[0].calls
    place = f"In[{defined.cell}], line 2"
    assert (elsewhere.place, elsewhere.line, own.place, own.line) == (place, None, "", 2)
    assert str(elsewhere).endswith(f"({place})")
    timeline.save(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    places = {event["args"]["place"] for event in events if event.get("cat") == "collective" and event["ph"] == "X"}
    assert places == {place, f"In[{timeline.count}], line 2"}
    assert {event["name"] for event in events if event.get("cat") == "cell"} == {f"In[{timeline.count}]"}
    assert str(timeline).startswith(f"timeline of In[{timeline.count}] · ")


def test_the_frame_has_every_event(ring2: Cluster) -> None:
    frame = recorded(ring2).frame()
    calls = frame[frame.kind == "collective"]
    assert len(calls) == 8 and (calls.wait + calls.transfer - calls.seconds).abs().max() < 1e-9
    assert (calls.busbw > 0).all() and set(frame.kind) == {"cell", "collective", "eval", "mark"}


def test_lazily_nothing_is_evaluated_at_once(ring2: Cluster) -> None:
    code = """x = mx.distributed.all_sum(mx.ones(3))
step = mx.compile(lambda x: mx.distributed.all_sum(x) + 1)
mx.eval(step(mx.ones(3)))
mx.eval(step(mx.ones(3)), x)"""
    timeline = recorded(ring2, code, timeline="lazy")
    for each in timeline.ranks:
        assert [(call.op, call.began, call.wait) for call in each.calls] == [("all_sum", None, None)] * 3
        assert [call.line for call in each.calls] == [1, 2, 4]
        assert len(each.evaluations) == 2
    assert "they ran inside an mx.eval" in str(timeline) and timeline.straggler is None


def test_neighbours_and_transformations_are_recorded_and_left_alone(ring2: Cluster) -> None:
    code = """def loss(w): return mx.distributed.all_sum(w * 2).sum()
value, gradient = mx.value_and_grad(loss)(mx.ones(3))
mx.eval(value, gradient)
y = mx.distributed.send(mx.ones(3), 1) if rank == 0 else mx.distributed.recv_like(mx.ones(3), 0)
mx.eval(y)
gradient.tolist()"""
    timeline = recorded(ring2, code)
    assert [call.op for call in timeline.ranks[0].calls][-1] == "send"
    assert [call.op for call in timeline.ranks[1].calls][-1] == "recv_like"
    assert all(call.began is None for each in timeline.ranks for call in each.calls)


def test_what_does_not_fit_is_dropped_and_said(ring2: Cluster) -> None:
    timeline = recorded(ring2, f"for n in range({LIMIT + 10}): mark('x')\nmx.eval(mx.distributed.all_sum(mx.ones(1)))")
    assert [each.dropped for each in timeline.ranks] == [10, 10]
    assert "rank 0 dropped 10 later events" in str(timeline)
    assert [len(each.calls) for each in timeline.ranks] == [1, 1], "marks take no room from collectives"
    assert len(timeline._repr_html_()) < 200_000


def test_a_cell_that_failed_has_its_timeline(ring2: Cluster) -> None:
    code = """with mark("step"):
    mx.eval(mx.distributed.all_sum(mx.ones(2)))"""
    result = blocked(ring2, code, first="mx.eval(mx.distributed.all_sum(mx.ones(1)))", timeline=True)
    assert not result.ok and result.timeline is not None
    waiting, raised = result.timeline.ranks
    assert [call.ended is None for call in waiting.calls] == [False, True] and len(raised.calls) == 1
    assert waiting.marks[0].ended is not None and "rank 0" in str(result.timeline)


def test_a_users_own_mark_stays(ring2: Cluster) -> None:
    ring2.run("mark = 5", timeout=60).check()
    ring2.run("mx.eval(mx.distributed.all_sum(mx.ones(1 + rank)))", timeout=60)  # after it the world is formed anew
    assert ring2.run("mark", timeout=60).check()[0].value == 5
    ring2.run("from allranks import mark", timeout=60).check()
    assert "mark" not in str(ring2.vars())


def test_a_file_that_cannot_be_written(ring2: Cluster, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file or directory"):
        recorded(ring2, "1").save(tmp_path / "no" / "trace.json")


def told(began: float, ended: float) -> CellTrace:
    """What a rank tells of a cell of one collective."""
    call = TracedCall(1, "all_sum", (10,), "float32", 40, 3, True, source=0, asked=began, began=began, ended=ended)
    return CellTrace(0.0, 2.0, 0, [call], [("y = all_sum(x)", "")], [], [])


ABOUT = {"name": "main", "backend": "ring", "count": 3, "code": "", "size": 3, "lazy": False, "at": 0.0}


def test_nobody_is_blamed_where_a_rank_can_tell_no_more() -> None:
    hosts = dict.fromkeys(range(3), "localhost")
    known = {0: told(0.1, 1.0), 1: told(0.8, 1.0)}
    timeline = Timeline.of(told=known, ranks=(0, 1, 2), hosts=hosts, pings=[], here="localhost", **ABOUT)
    assert all(call.wait is None for each in timeline.ranks for call in each.calls)
    assert timeline.straggler is None and "No data from rank 2" in str(timeline)
    whole = Timeline.of(
        told={**known, 2: told(0.9, 1.0)}, ranks=(0, 1, 2), hosts=hosts, pings=[], here="localhost", **ABOUT
    )
    assert [round(each.waited, 6) for each in whole.ranks] == [0.8, 0.1, 0.0]
    assert str(whole.waits()[0]) == "rank 0 waited 800 ms in all_sum #1 f32[10] (line 3) for rank 2"
    page = whole._repr_html_()
    assert "<svg" in page, "also of a cell without marks"
    assert re.findall(r">([\d.]+ m?s)</text>", page) == ["0.5 s", "1 s", "1.5 s", "2 s"]


@pytest.fixture(scope="module")
def two(new_notebook: Callable[..., Notebook]) -> Notebook:
    notebook = new_notebook()
    notebook.ok("%load_ext allranks\n%distributed up -n 2 --backend ring")
    return notebook


@pytest.mark.slow
def test_in_a_notebook(two: Notebook, tmp_path: Path) -> None:
    assert "no timeline yet" in two.run("%distributed timeline").all
    cell = two.ok(f"%%distributed --timeline {tmp_path}/a.json -o result\n{STRAGGLING}")
    [text], [html] = cell.mime("text/plain"), cell.mime("text/html")
    assert "Longest waits:" in text and "░" in text and "<svg" in html and "<script" not in html
    assert json.loads((tmp_path / "a.json").read_text())["traceEvents"]
    assert two.ok("%distributed timeline").mime("text/plain") == [text]
    assert "ui.perfetto.dev" in two.ok(f"%distributed timeline {tmp_path}/b.json.gz").stdout
    two.ok("assert [each.calls[2].wait for each in result.timeline.ranks].count(0.0) == 1, result.timeline")


@pytest.mark.slow
def test_slips_are_told_before_anything_runs(two: Notebook) -> None:
    assert (
        "--timeline /nowhere/a.json: No such file" in two.run("%%distributed --timeline /nowhere/a.json\nprint(1)").all
    )
    assert "--lazy needs --timeline" in two.run("%%distributed --lazy\nprint(1)").all
