"""Ranks that enter different collectives are told on, or kept from it; MLX itself would return garbage."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Literal

import pytest

from allranks.errors import CellInterrupted, UsageError, WouldHang
from allranks.head.cell import stall, unblock_ranks
from tests.faults.kept import sums_are_right
from tests.faults.stop import stop_pressed, waiting
from tests.faults.test_silence import Shown
from tests.waiting import comes_true, idle

if TYPE_CHECKING:
    from allranks import Cluster

    Check = Literal["warn", "strict"]

pytestmark = pytest.mark.slow

RIGHT = "mx.distributed.all_sum(mx.ones(4)).tolist()"


def assert_next_collective_is_right(cluster: Cluster) -> None:
    result = cluster.run(RIGHT)
    assert result.ok, result
    assert [result[rank].value for rank in result] == [[float(cluster.size)] * 4] * cluster.size


@pytest.mark.parametrize(
    ("code", "sides"),
    [
        (
            "y = mx.distributed.all_sum(mx.ones(10 if rank else 12))\nmx.eval(y)",
            ("rank 0 entered all_sum", "f32[12] (line 1)", "rank 1 entered all_sum", "f32[10] (line 1)"),
        ),
        (
            "x = mx.ones(8, mx.float32 if rank else mx.int32)\nmx.eval(mx.distributed.all_sum(x))",
            ("i32[8] (line 2)", "f32[8] (line 2)"),
        ),
        (
            "op = mx.distributed.all_sum if rank else mx.distributed.all_max\nmx.eval(op(mx.ones(8)))",
            ("all_max #", "all_sum #", "line 2"),
        ),
    ],
    ids=["shape", "dtype", "op"],
)
def test_a_mismatch_is_flagged_with_both_sides_and_costs_only_the_cell(
    ring2: Cluster, code: str, sides: tuple[str, ...]
) -> None:
    ring2.run("kept = mx.arange(5)")
    result = ring2.run(code, timeout=60)
    assert result.mismatch is not None
    assert "the ranks disagree" in result.mismatch
    for side in sides:
        assert side in result.mismatch
    assert result.ok or result.failure().startswith(f"{result.mismatch}; ")
    assert_next_collective_is_right(ring2)
    assert [kept.tolist() for kept in ring2.pull("kept")] == [[0, 1, 2, 3, 4]] * 2


def test_strict_raises_on_every_rank_before_any_has_entered(ring2: Cluster) -> None:
    generation = ring2.snapshot.generation
    result = ring2.run(
        "y = mx.distributed.all_sum(mx.ones(10 if rank else 12))\nmx.eval(y)", check="strict", timeout=60
    )
    assert sorted(result.errors) == [0, 1]
    assert all("the ranks disagree" in error.evalue for error in result.errors.values())
    assert ring2.snapshot.generation == generation, "nothing was broken, so nothing needs to be re-formed"
    assert_next_collective_is_right(ring2)


def test_strict_lets_agreeing_ranks_through(ring2: Cluster) -> None:
    result = ring2.run("[mx.distributed.all_sum(mx.ones(2) * i).tolist() for i in range(20)]", check="strict")
    assert result[1].value == [[2.0 * i] * 2 for i in range(20)]


NUMBERS = """
import numpy
D = mx.distributed
own = [3 + rank, rank == 0, 2.5 + rank, 1j * rank, numpy.int8(rank), numpy.float64(rank)]
alike = [D.all_gather(number) for number in own] + [D.all_sum(x=number) for number in (rank + 3, rank / 2)]
# Whether it is an array of numpy or of MLX makes no difference to MLX either.
alike.append(D.all_sum(numpy.ones(4) if rank else mx.ones(4)))
mx.eval(alike)
[each.tolist() for each in alike[-3:]]
"""


@pytest.mark.parametrize("check", ["warn", "strict"])
@pytest.mark.parametrize("world", ["ring2", "mpi2"])
def test_ranks_may_pass_different_numbers(world: str, check: Check, request: pytest.FixtureRequest) -> None:
    result = request.getfixturevalue(world).run(NUMBERS, check=check, timeout=60)
    assert result.ok, result
    assert result.mismatch is None
    assert [rank.value for rank in result.values()] == [[7, 0.5, [2.0] * 4]] * 2


@pytest.mark.parametrize("check", ["warn", "strict"])
def test_numbers_of_different_kinds_are_a_mismatch(ring2: Cluster, check: Check) -> None:
    result = ring2.run("mx.eval(mx.distributed.all_sum(3 if rank else 3.0))", check=check, timeout=60)
    said = f"{result.mismatch} {[error.evalue for error in result.errors.values()]}"
    assert "the ranks disagree" in said and "f32[]" in said and "i32[]" in said
    assert_next_collective_is_right(ring2)


@pytest.mark.parametrize("world", ["ring2", pytest.param("mpi2", marks=pytest.mark.mpi)])
def test_strict_frees_those_that_wait_for_a_rank_that_raised(world: str, request: pytest.FixtureRequest) -> None:
    cluster: Cluster = request.getfixturevalue(world)
    for first in ("", "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"):
        code = f"{first}if rank: 1/0\nmx.distributed.all_sum(mx.ones(3))"
        result = cluster.run(code, check="strict", timeout=60)
        assert list(result.errors) == [1]
        assert result[0].unblocked is not None
        assert_next_collective_is_right(cluster)


@pytest.mark.parametrize("world", ["ring2", pytest.param("mpi2", marks=pytest.mark.mpi)])
def test_a_rank_frees_those_that_wait_for_it_without_breaking_the_world(
    world: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the notebook is late, as on a busy machine."""
    cluster: Cluster = request.getfixturevalue(world)
    for module in (stall, unblock_ranks):
        monkeypatch.setattr(module, "AFTER_FAILURE", 60.0)
    result = cluster.run("if rank: 1/0\nmx.distributed.all_sum(mx.ones(3))", check="strict", timeout=50)
    assert list(result.errors) == [1]
    assert result[0].unblocked is not None
    assert_next_collective_is_right(cluster)


@pytest.mark.parametrize("world", ["ring2", pytest.param("mpi2", marks=pytest.mark.mpi)])
def test_what_strict_refuses_does_not_count(world: str, request: pytest.FixtureRequest) -> None:
    """Else a later stall would take another rank for the one that is missing."""
    cluster: Cluster = request.getfixturevalue(world)
    for code in ("mx.distributed.all_sum(mx.ones(3 + rank))", "mx.distributed.all_sum(mx.ones(3))"):
        assert not cluster.run(code, check="strict", timeout=60, ranks=None if "rank" in code else [0]).ok
        assert_next_collective_is_right(cluster)
    assert comes_true(cluster, lambda now: len({rank.entered for rank in now.ranks}) == 1, 60)


OPPOSITE = """a = mx.distributed.all_sum(mx.ones(3))
b = mx.distributed.all_sum(mx.ones(3) * 10)
for each in (b, a) if rank == 0 else (a, b): mx.eval(each)
[a.tolist(), b.tolist()]"""


def test_opposite_evaluation_order_is_flagged(ring2: Cluster) -> None:
    result = ring2.run(OPPOSITE, timeout=60)
    assert result.mismatch is not None
    assert "different orders" in result.mismatch
    assert "(line 2) before all_sum" in result.mismatch
    assert "--ordered" in result.mismatch
    assert_next_collective_is_right(ring2)


@pytest.mark.parametrize("how", [{"ordered": True}, {"check": "strict"}], ids=["ordered", "strict"])
def test_opposite_evaluation_order_is_prevented(ring2: Cluster, how: dict[str, object]) -> None:
    result = ring2.run(OPPOSITE, timeout=60, **how)  # type: ignore[arg-type]
    assert result.mismatch is None
    assert [result[rank].value for rank in (0, 1)] == [[[2.0] * 3, [20.0] * 3]] * 2


def test_ordered_is_safe_inside_transformations(ring2: Cluster) -> None:
    """grad, compile and vmap trace their function: chaining there would mix traces, so it steps aside."""
    code = """import mlx.nn as nn
def loss(w): return mx.distributed.all_sum(w * 2).sum()
first = mx.distributed.all_sum(mx.ones(1))
value, gradient = mx.value_and_grad(loss)(mx.ones(3))
compiled = mx.compile(lambda x: mx.distributed.all_sum(x) + 1)
out = compiled(mx.ones(2))
last = mx.distributed.all_sum(mx.ones(1))
[value.item(), gradient.tolist(), out.tolist(), first.item(), last.item()]"""
    result = ring2.run(code, ordered=True, timeout=60)
    assert result.ok, result.failure()
    value, gradient, out, first, last = result[0].value
    assert (value, out, first, last) == (12.0, [3.0, 3.0], 2.0, 2.0)
    assert gradient == result[1].value[1]
    said = "--ordered could not chain 1 collective inside mx.compile or mx.vmap (ranks 0-1)"
    assert comes_true(ring2, lambda now: any(said in note for note in now.notes), 60)
    ring2.run("1").check()
    assert comes_true(ring2, lambda now: not now.notes, 60)


def test_off_looks_away(ring2: Cluster) -> None:
    result = ring2.run(OPPOSITE, check="off", timeout=60)
    assert result.ok
    assert result.mismatch is None


def test_an_unknown_check_is_refused(ring2: Cluster) -> None:
    with pytest.raises(UsageError, match="off, warn or strict"):
        ring2.run("1", check="sometimes")  # type: ignore[arg-type]


def test_a_pending_collective_is_named_and_not_evaluated_on_one_rank(ring2: Cluster) -> None:
    ring2.run("late = {'deep': [mx.distributed.all_sum(mx.ones(2)) * 3]}")
    with pytest.raises(WouldHang, match="late on rank 0 is not evaluated yet: it needs a collective"):
        ring2.run("print(late)", ranks=0)
    assert ring2.run("1 + 1", ranks=0)[0].value == 2, "what has nothing to do with it runs"
    assert ring2.run("late['deep'][0].tolist()")[1].value == [6.0, 6.0]
    assert ring2.run("late['deep'][0].tolist()", ranks=0)[0].value == [6.0, 6.0], "now it is computed"


LATE = """
import time
from allranks.messages.requests import LedgerSince, Pending
from allranks.rank.process.engine import RankEngine
handlers = RankEngine.instance().agent.requests.handlers
def late(question):
    answer = handlers[question]
    handlers[question] = lambda *all: (time.sleep(3), answer(*all))[1]
    return lambda: handlers.update({question: answer})
"""


def test_a_busy_rank_that_answers_late_is_waited_for(ring2: Cluster) -> None:
    """Else a cell would hang that is refused otherwise, and a mismatch would go unseen."""
    ring2.run(LATE + "again = [late(question) for question in (Pending, LedgerSince)]").check()
    try:
        ring2.run("sums = mx.distributed.all_sum(mx.ones(2)) * 3").check()
        with pytest.raises(WouldHang, match="sums on rank 0"):
            ring2.run("print(sums)", ranks=0)
        mismatch = ring2.run("mx.eval(sums, mx.distributed.all_sum(mx.ones(10 if rank else 12)))", timeout=60).mismatch
        assert mismatch is not None and "rank 0 entered all_sum" in mismatch
    finally:
        ring2.run("for each in again: each()").check()
    assert_next_collective_is_right(ring2)


def test_send_and_recv_differ_by_nature_and_are_no_mismatch(ring2: Cluster) -> None:
    code = """if rank == 0: out = mx.distributed.send(mx.ones(3), 1)
else: out = mx.distributed.recv((3,), mx.float32, 0)
mx.eval(out)
out.tolist()"""
    result = ring2.run(code, timeout=60)
    assert result.mismatch is None
    assert result[1].value == [1.0] * 3


PIPELINE = """for _ in range(3):
    out = mx.distributed.send(mx.ones(3), 1) if rank == 0 else mx.distributed.recv((3,), mx.float32, 0)
    if rank < 2: mx.eval(out)"""


@pytest.mark.parametrize("world", ["ring4", pytest.param("mpi4", marks=pytest.mark.mpi)])
def test_what_some_ranks_sent_leaves_the_numbers_of_shared_collectives_alike(
    world: str, request: pytest.FixtureRequest
) -> None:
    """Ranks 0 and 1 send and receive; the next stall names one collective, and what rank 3 has not entered."""
    cluster: Cluster = request.getfixturevalue(world)
    cluster.run(
        f"if rank < 2:\n{textwrap.indent(PIPELINE, '    ')}\nmx.eval(mx.distributed.all_sum(mx.ones(1)))"
    ).check()
    cell = cluster.begin("if rank < 3: mx.eval(mx.distributed.all_max(mx.ones(5)))")
    assert comes_true(cluster, waiting(0, 1, 2), 60)
    cluster.abort_collectives()
    unblocked = {each.unblocked for each in cell.finish(60).values()} - {None}
    assert len(unblocked) == 1, f"{unblocked}: one collective, under one number"
    assert idle(cluster) and sums_are_right(cluster)


def test_only_the_peer_of_a_recv_is_reported_as_missing(ring2: Cluster) -> None:
    said = Shown()
    cell = ring2.begin(
        "import threading\nif rank == 1: mx.eval(mx.distributed.recv((7,), mx.float32, 0))\n"
        "else: threading.Event().wait(600)",
        screen=said,
    )
    assert comes_true(ring2, lambda now: now.ranks[0].line == 3 and now.ranks[1].state == "waiting", 60)
    with stop_pressed(ring2, lambda _: "not sent it yet" in said.text), pytest.raises(CellInterrupted):
        cell.finish(60)
    assert "f32[7] from rank 0 (line 2): rank 0 has not sent it yet (running line 3" in said.text, said.text
    assert idle(ring2) and sums_are_right(ring2)
