"""The loop in the rank: it tells a wrong result from a right one, and all ranks make the same number of calls."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from allranks import Cluster
from allranks.messages.bench_payload import usable_bytes
from allranks.rank.metrics import time_operation

MEASURE = '__import__("allranks.rank.metrics.time_operation", fromlist=["measure"]).measure({arguments})'


def test_values_differ_by_rank_and_are_exact() -> None:
    first, second = time_operation._values(0, 1000), time_operation._values(1, 1000)
    assert first.dtype == np.float32 and first.size == 1000
    assert not np.array_equal(first, second)
    assert np.array_equal(first, np.round(first))
    assert len({tuple(time_operation._values(rank, 97)) for rank in range(97)}) == 97


@pytest.mark.parametrize(
    ("op", "nbytes", "size", "usable"),
    [
        ("all_sum", 1024, 3, 1024),
        ("sum_scatter", 1024, 4, 1024),
        ("sum_scatter", 1024, 3, 1020),
        ("sum_scatter", 4, 3, 12),
    ],
)
def test_sum_scatter_gets_equal_parts(op: str, nbytes: int, size: int, usable: int) -> None:
    assert usable_bytes(op, nbytes, size) == usable


def test_the_number_of_calls_follows_their_time() -> None:
    assert time_operation._fitting(0.3, 0.01, fewest=5) == 30
    assert time_operation._fitting(0.3, 1.0, fewest=5) == 5
    assert time_operation._fitting(0.3, 1e-6, fewest=5) == time_operation.MOST
    assert time_operation._fitting(0.3, 0.0, fewest=5) == time_operation.MOST


class OneOf:
    """A `_Collective` as rank `rank` of `size` holds it, without a world: its result is given."""

    def __new__(cls, op: str, rank: int, size: int, count: int) -> Any:
        made = time_operation._Collective.__new__(time_operation._Collective)
        made._op, made._rank, made._size, made._count = op, rank, size, count
        return made


SIZE, COUNT = 3, 300
GIVEN = [time_operation._values(rank, COUNT) for rank in range(SIZE)]
EXPECTED = {
    "all_sum": np.sum(GIVEN, axis=0),
    "all_max": np.max(GIVEN, axis=0),
    "all_min": np.min(GIVEN, axis=0),
    "all_gather": np.concatenate(GIVEN),
    "sum_scatter": np.sum(GIVEN, axis=0)[COUNT // SIZE : 2 * COUNT // SIZE],
}


@pytest.mark.parametrize("op", EXPECTED)
def test_a_right_result_is_right_and_one_wrong_element_is_not(op: str) -> None:
    taking = OneOf(op, 1, SIZE, COUNT)
    taking._result = mx.array(EXPECTED[op])
    assert taking.right()
    spoilt = EXPECTED[op].copy()
    spoilt[-1] += 1
    taking._result = mx.array(spoilt)
    assert not taking.right()


def test_parts_in_a_wrong_order_are_seen() -> None:
    taking = OneOf("all_gather", 1, SIZE, COUNT)
    taking._result = mx.array(np.concatenate([GIVEN[1], GIVEN[0], GIVEN[2]]))
    assert not taking.right()


@pytest.mark.parametrize("op", ["all_sum", "all_max", "all_min", "all_gather"])
def test_all_ranks_make_the_same_calls(op: str, ring2: Cluster) -> None:
    code = MEASURE.format(arguments=f"{op!r}, 5000, 0.02")
    times = [rank.value for rank in ring2.run(code).check().values()]
    assert len(times[0]) == len(times[1]) >= time_operation.FEWEST
    assert all(np.all(each > 0) for each in times)


@pytest.mark.mpi
def test_a_link_of_mpi_goes_there_and_back(mpi2: Cluster) -> None:
    code = MEASURE.format(arguments="'send', 4096, 0.02, (1, 0)")
    times = [rank.value for rank in mpi2.run(code).check().values()]
    assert len(times[0]) == len(times[1]) >= time_operation.FEWEST


def test_garbage_collection_is_as_before(ring2: Cluster) -> None:
    code = MEASURE.format(arguments="'all_sum', 4096, 0.01")
    assert ring2.run(f"import gc\n{code}\ngc.isenabled()")[0].value is True
    assert ring2.run(f"gc.disable()\n{code}\nwas = gc.isenabled()\ngc.enable()\nwas")[1].value is False
