"""Every operation NCCL has, of every dtype it takes, gives in cells what numpy says."""

from __future__ import annotations

from typing import Any

import pytest

from allranks import Cluster
from tests.gpu.worlds import BACKEND, WITHIN, need_ranks, world

SIZES = (1, 2)

CHECK = """
import numpy as np

def right(op, x):
    # What the operation makes of the ranks' arrays `x + rank`, in exact small numbers.
    together = [x + each for each in range(size)]
    if op == "all_gather":
        return np.concatenate(together)
    reduced = {"all_sum": np.sum, "all_max": np.max, "all_min": np.min, "sum_scatter": np.sum}[op](together, axis=0)
    return np.split(reduced, size)[rank] if op == "sum_scatter" else reduced

def wrong(op, dtype, shape, transposed=False):
    x = (np.arange(np.prod(shape)) % 7).reshape(shape)
    mine = mx.array(x + rank).astype(dtype)
    if transposed:
        x, mine = x.T, mine.T
    found = np.array(getattr(mx.distributed, op)(mine).astype(mx.float32))
    expected = right(op, x)
    return [] if found.shape == expected.shape and (found == expected).all() else [(op, str(dtype), shape, transposed)]

OPERATIONS = "all_sum", "all_max", "all_min", "all_gather", "sum_scatter"
DTYPES = mx.uint8, mx.int8, mx.uint32, mx.int32, mx.uint64, mx.int64, mx.float16, mx.bfloat16, mx.float32
"""
EVERY = """
SHAPES = [(size * n,) for n in (1, 3, 128, 4096, 65_536, 1 << 20)] + [(2 * size, 3, 5)]
sum((wrong(op, dtype, shape) for op in OPERATIONS for dtype in DTYPES for shape in SHAPES), [])
"""
TRANSPOSED = "sum((wrong(op, mx.float32, (6 * size, 4 * size), True) for op in OPERATIONS), [])"
SPLIT = """
halves = world.split(rank % 2)
x = mx.distributed.all_sum(mx.array([rank + 1]), group=halves)
halves.size(), x.item(), sum(each + 1 for each in range(size) if each % 2 == rank % 2)
"""
TRAIN = """
import mlx.nn as nn, mlx.optimizers as optim
mx.random.seed(3)
model, optimizer = nn.Linear(8, 1), optim.SGD(0.05)
x = mx.random.normal((64, 8)); y = x @ mx.arange(8)[:, None]
share = slice(rank * 64 // size, (rank + 1) * 64 // size)
step = nn.value_and_grad(model, lambda x, y: ((model(x) - y) ** 2).mean())
losses = []
for _ in range(40):
    loss, gradients = step(x[share], y[share])
    optimizer.update(model, nn.average_gradients(gradients))
    mx.eval(model, loss)
    losses.append(mx.distributed.all_sum(loss).item() / size)
total = mx.compile(lambda w: mx.distributed.all_sum(w) / size)
losses[0], losses[-1], mx.allclose(total(model.weight), model.weight).item()
"""


def values(cluster: Cluster, code: str) -> list[Any]:
    return [each.value for each in cluster.run(code, timeout=WITHIN).check().values()]


def test_auto_takes_nccl_where_every_rank_has_a_gpu() -> None:
    need_ranks(1)
    with Cluster(1) as cluster:
        assert cluster.chosen_because == "nccl, since every rank has a CUDA device."
        assert cluster.backend == BACKEND


@pytest.mark.parametrize("size", SIZES)
def test_every_operation_of_every_dtype(size: int) -> None:
    with world(size) as cluster:
        assert values(cluster, "rank, size, str(mx.default_device())") == [
            (rank, size, "Device(gpu, 0)") for rank in range(size)
        ]
        values(cluster, CHECK)
        assert values(cluster, EVERY) == [[]] * size
        assert values(cluster, TRANSPOSED) == [[]] * size


def test_what_nccl_lacks_is_refused_before_mlx_can_end_the_process() -> None:
    with world(2) as cluster:
        for code in (
            "mx.distributed.all_sum(mx.array([True]))",
            "mx.distributed.all_max(mx.array([1], dtype=mx.int16))",
            "mx.distributed.send(mx.ones(3), 1 - rank)",
            "mx.distributed.recv((3,), mx.float32, 1 - rank)",
        ):
            result = cluster.run(code, timeout=WITHIN)
            assert all("nccl has no" in str(result[rank].error) for rank in range(2)), result
        assert values(cluster, "mx.distributed.all_sum(mx.ones(4)).tolist()") == [[2.0] * 4] * 2


def test_groups_are_split() -> None:
    with world(2) as cluster:
        assert all(size == 1 and found == expected for size, found, expected in values(cluster, SPLIT))


def test_a_model_learns_the_same_on_all_ranks() -> None:
    with world(2) as cluster:
        learned = values(cluster, TRAIN)
        assert learned[0] == learned[1]
        first, last, same = learned[0]
        assert last < first / 10 and same


THREADS = """
import threading
sums = []
for number in range(3):
    thread = threading.Thread(target=lambda: sums.append(mx.distributed.all_sum(mx.ones(3) * number).tolist()))
    thread.start()
    thread.join()
mx.new_stream(mx.gpu)
sums, mx.distributed.all_sum(mx.ones(3)).tolist()
"""


@pytest.mark.parametrize("backend", ["nccl", "ring"])
def test_collectives_of_threads_one_after_the_other(backend: str) -> None:
    with world(2) as cluster:
        cluster.rewire(backend)
        assert values(cluster, THREADS) == [([[0.0] * 3, [2.0] * 3, [4.0] * 3], [2.0] * 3)] * 2
        assert values(cluster, THREADS) == [([[0.0] * 3, [2.0] * 3, [4.0] * 3], [2.0] * 3)] * 2
