"""In which order a rank evaluates its collectives: ``--ordered`` and ``strict`` keep it or refuse, ``warn`` reports.

Without either, MLX returns the sums of other collectives than those that were asked for, and no error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.faults.kept import sums_are_right

if TYPE_CHECKING:
    from allranks import Cluster

pytestmark = pytest.mark.slow

WORLDS = ["ring2", pytest.param("mpi2", marks=pytest.mark.mpi)]
HOW: dict[str, dict[str, Any]] = {"ordered": {"ordered": True}, "strict": {"check": "strict"}}
A = "a = mx.distributed.all_sum(mx.ones(3))"
B = "b = mx.distributed.all_sum(mx.ones(3) * 10)"
BOTH = f"{A}\n{B}\n"
SHOWN = "\n[a.tolist()[0], b.tolist()[0]]"
OPPOSITE = "for each in (b, a) if rank == 0 else (a, b): mx.eval(each)" + SHOWN
STREAMS = """one, other = mx.new_stream(mx.cpu), mx.new_stream(mx.cpu)
slow, quick = mx.random.normal((600, 600)), mx.zeros((2, 2))
def late(x, by): return x + 0 * (by @ by).max()
with mx.stream(one): a = mx.distributed.all_sum(late(mx.ones(3), slow if rank else quick))
with mx.stream(other): b = mx.distributed.all_sum(late(mx.ones(3) * 10, quick if rank else slow))
"""
GRADIENT = """def weighted(x, y):
    a, b = mx.distributed.all_sum(x), mx.distributed.all_sum(y)
    return (a * 3 + b * 100 if rank else b * 100 + a * 3)[0], (a, b)
(_, (a, b)), _ = mx.value_and_grad(weighted)(mx.ones(3), mx.ones(3) * 10)
mx.eval(a if rank else b)"""
TOGETHER = """def weighted(x, y):
    a, b = mx.distributed.all_sum(x), mx.distributed.all_sum(y)
    return (a * 3 + b * 100 if rank else b * 100 + a * 3)[0]
c, _ = mx.value_and_grad(weighted)(mx.ones(3), mx.ones(3) * 10)
mx.eval(c)
a, b = (c[None] - 2000) / 3, (c[None] - 6) / 100"""
COMPILED = """f = mx.compile(mx.distributed.all_sum)
for _ in range(2):
    a, b = f(mx.ones(3)), f(mx.ones(3) * 10)
    mx.eval((a, b) if rank else (b, a))"""
RECV = f"""{A}
c = mx.distributed.recv_like(mx.ones(3), 0) if rank else mx.distributed.send(mx.ones(3), 1)
{B}
mx.eval((b, c, a) if rank else (c, b, a))"""
RECV_ELSEWHERE = "other = mx.new_stream(mx.cpu)\n" + RECV.replace(", 0)", ", 0, stream=other)") + SHOWN
CASES = {
    "two streams in one expression": [STREAMS + "mx.eval(a + b)" + SHOWN],
    "two streams, both on their way": [STREAMS + "mx.async_eval(a)\nmx.eval(b)" + SHOWN],
    "two cells": [BOTH, OPPOSITE],
    "the second one in another cell": [A, B + "\n" + OPPOSITE],
    "another order of operands": [BOTH + "mx.eval(a + b if rank else b + a)" + SHOWN],
    "another order of operands in another cell": [BOTH, "mx.eval(a + b if rank else b + a)" + SHOWN],
    "another order of operands that no name holds": [
        f"def both():\n    {A}\n    {B}\n    return (a * 3 + b * 100) if rank else (b * 100 + a * 3)\n"
        "c = both()\nmx.eval(c)\na, b = (c - 2000) / 3, (c - 6) / 100" + SHOWN
    ],
    "another order of keys": [BOTH + "mx.eval({'a': a, 'b': b} if rank else {'b': b, 'a': a})" + SHOWN],
    "another order in a list": [BOTH + "mx.eval([[a, b]] if rank else [[b, a]])" + SHOWN],
    "async_eval in the cell before": [BOTH + "mx.async_eval(b if rank else a)", "mx.eval(a, b)" + SHOWN],
    "another order of operands in a gradient": [GRADIENT + SHOWN],
    "another order of operands in a gradient, evaluated together": [TOGETHER + SHOWN],
    "a compiled function": [COMPILED + SHOWN],
    "recv": [RECV + SHOWN],
}
REPORTED = [
    "two streams in one expression",
    "two streams, both on their way",
    "another order of operands",
    "another order of operands in another cell",
    "another order of operands that no name holds",
    "another order of operands in a gradient, evaluated together",
    "two cells",
    "the second one in another cell",
    "another order of keys",
    "another order in a list",
]


def values(cluster: Cluster, cells: list[str], **how: Any) -> list[list[float]]:
    for code in cells:
        result = cluster.run(code, timeout=60, **how).check()
        assert result.mismatch is None
    return [rank.value for rank in result.values()]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("world", WORLDS)
def test_the_order_of_the_calls_is_kept(world: str, how: str, case: str, request: pytest.FixtureRequest) -> None:
    cluster: Cluster = request.getfixturevalue(world)
    assert values(cluster, CASES[case], **HOW[how]) == [[2.0, 20.0]] * 2


def test_recv_on_another_stream_waits_for_what_came_before_it(ring2: Cluster) -> None:
    assert values(ring2, [RECV_ELSEWHERE], ordered=True) == [[2.0, 20.0]] * 2


def test_recv_on_another_stream_cannot_wait_for_ranks_at_the_barrier(ring2: Cluster) -> None:
    result = ring2.run(RECV_ELSEWHERE, check="strict", timeout=60)
    assert list(result.errors) == [1]
    assert "recv_like is on another stream" in result.errors[1].evalue
    assert sums_are_right(ring2)


@pytest.mark.parametrize("case", REPORTED)
@pytest.mark.parametrize("world", WORLDS)
def test_another_order_is_reported(world: str, case: str, request: pytest.FixtureRequest) -> None:
    cluster: Cluster = request.getfixturevalue(world)
    mismatches = [cluster.run(code, timeout=60).mismatch for code in CASES[case]]
    assert mismatches[:-1] == [None] * (len(mismatches) - 1)
    said = str(mismatches[-1])
    assert "swapped" in said and said.count("all_sum #") >= 2 and "--ordered prevents this" in said
    assert sums_are_right(cluster)


COMPUTING = """import threading
stop = threading.Event()
def compute():
    with mx.stream(mx.new_thread_local_stream(mx.cpu)):
        while not stop.is_set(): mx.eval(mx.ones(1000).sum())
thread = threading.Thread(target=compute)
thread.start()
for _ in range(200):
    a, b = (mx.distributed.all_sum(mx.ones(3) * n) for n in (1, 10))
    mx.eval(a)
    mx.eval(b)
stop.set()
thread.join()"""
IN_TURN = """import threading
def work(name, number):
    globals()[name] = mx.distributed.all_sum(mx.ones(3) * number)
    mx.eval(globals()[name])
for each in [("a", 1), ("b", 10)]:
    thread = threading.Thread(target=work, args=each)
    thread.start()
    thread.join()"""
RIGHT = {
    "two streams, one after the other": STREAMS + "mx.eval(a)\nmx.eval(b)",
    "two streams, one read before the other": STREAMS + "a.tolist()\nmx.eval(b)",
    "two streams, one waited for in between": STREAMS + "mx.async_eval(a)\na.tolist()\nmx.eval(b)",
    "two streams, one computed from the other": STREAMS.replace("late(mx.ones(3) * 10,", "late(a * 5,") + "mx.eval(b)",
    "the same other order on all ranks": BOTH + "mx.eval({'b': a, 'a': b})",
    "the same other order of operands, given in two ways": BOTH
    + "c = a - b if rank else a * b\nmx.eval(c)\nd = a + b\nmx.eval(d)",
    "the same order, by one evaluation or several": BOTH
    + "if rank: mx.eval(a + b)\nelse: mx.eval(b * 2); mx.eval(a * 2)",
    "one rank evaluates its own in between": BOTH
    + "for n in range(40 * rank): mx.eval(mx.ones(2) * n)\nmx.eval(a * 2 + b)",
    "one that is dropped": f"{BOTH}del a\nmx.eval(b * 2)\n{A}",
    "one read before, then both in either order": BOTH + "b.tolist()\nmx.eval([a, b] if rank else [b, a])",
    "a thread that computes": COMPUTING,
    "threads one after the other": IN_TURN,
}


@pytest.mark.parametrize("case", RIGHT)
def test_what_is_right_raises_no_alarm(case: str, ring2: Cluster) -> None:
    assert values(ring2, [RIGHT[case] + SHOWN]) == [[2.0, 20.0]] * 2


GRAPHS = """import random
import mlx.nn as nn
from allranks.rank.arrays import array_status
from allranks.rank.arrays.graph_drawing import drawing_of

def evaluated(seed, many):
    '''Collectives of a drawn graph: the order that is foreseen, and the one in which they met those of rank 1.'''
    draw = random.Random(seed)
    count, sums, pool = draw.randint(2, many), [], []
    for number in range(count):
        x = mx.array([1000.0 * number]) + (draw.choice(pool) * 0 if pool and draw.random() < 0.3 else 0)
        sums.append(mx.distributed.all_sum(x))
        pool.append(sums[-1])
    addresses = [array_status.reader.primitive(each) for each in sums]
    for _ in range(draw.randint(0, 2 * count)):
        one, other = draw.choice(pool), draw.choice(pool)
        pool.append(draw.choice([
            lambda: one + other,
            lambda: one.sum()[None],
            lambda: mx.concatenate([one, other, one])[1:2],
            lambda: mx.divmod(one, other)[1],
            lambda: mx.where(one > 0, other, one),
            lambda: nn.relu(one),
        ])())
    roots = [sum(draw.sample(pool, len(pool))), *draw.sample(pool, 2), mx.stack(pool)]
    roots = draw.sample(roots, len(roots)) + [roots[0]]
    foreseen = drawing_of(roots).order([array_status.reader.primitive(each) for each in roots])
    mx.eval(roots)
    places = [sums[number].item() - 1000 * number for number in range(count)]
    return [addresses.index(each) for each in foreseen], sorted(range(count), key=places.__getitem__)

def answered(seed, many):
    for place in range(random.Random(seed).randint(2, many)):
        mx.eval(mx.distributed.all_sum(mx.array([float(place)])))

wrong = []
for seed in range(150):
    many = 40 if seed % 3 == 0 else 6
    if rank:
        answered(seed, many)
    else:
        foreseen, seen = evaluated(seed, many)
        if foreseen != seen: wrong.append((seed, foreseen, seen))
wrong"""


def test_the_order_of_an_evaluation_is_foreseen_as_mlx_does_it(ring2: Cluster) -> None:
    """Rank 1 evaluates one by one, so that what each of rank 0 meets says when it was evaluated."""
    assert ring2.run(GRAPHS, check="off", timeout=120).check()[0].value == []


THREADS = """import threading
both = threading.Barrier(2)
def work(k):
    both.wait()
    for _ in range(50): mx.eval(mx.distributed.all_sum(mx.ones(3) * k))
threads = [threading.Thread(target=work, args=(k,), name=f"thread-{k}") for k in (1, 10)]
for thread in threads: thread.start()
for thread in threads: thread.join()"""


def test_collectives_of_two_threads_are_reported(ring2: Cluster) -> None:
    result = ring2.run(THREADS, timeout=60)
    assert result.mismatch is not None and "swapped" in result.mismatch
    assert sums_are_right(ring2)


WITH_MAIN = """import threading
thread = threading.Thread(target=lambda: mx.eval(mx.distributed.all_sum(mx.ones(3))), name="thread-1")
thread.start()
found = [mx.distributed.all_sum(mx.ones(3) * n).tolist()[0] for n in range(20)]
thread.join()"""


@pytest.mark.parametrize("code", [THREADS, WITH_MAIN], ids=["two", "beside the main thread"])
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("world", WORLDS)
def test_collectives_of_other_threads_are_refused(
    world: str, how: str, code: str, request: pytest.FixtureRequest
) -> None:
    """The thread's error goes unseen, so the cell fails on every rank; those of the main thread are right."""
    cluster: Cluster = request.getfixturevalue(world)
    result = cluster.run("found = []\n" + code, timeout=60, **HOW[how])
    assert sorted(result.errors) == [0, 1], result
    for error in result.errors.values():
        assert "was called in thread thread-1" in error.evalue
        assert "Call all collectives of a cell in the main thread" in error.evalue
    assert cluster.pull("found") == [[] if code == THREADS else [2.0 * n for n in range(20)]] * 2
    assert sums_are_right(cluster)


def test_nothing_of_an_ordered_cell_is_held_after_it(ring2: Cluster) -> None:
    active = "import gc; gc.collect(); mx.get_active_memory()"
    before = [rank.value for rank in ring2.run(active).check().values()]
    code = "big = mx.distributed.all_sum(mx.ones(1 << 20))\nmx.eval(big)\ndel big"
    ring2.run(code, ordered=True).check()
    after = [rank.value for rank in ring2.run(active).check().values()]
    assert all(now - was < 1 << 20 for was, now in zip(before, after, strict=True))
