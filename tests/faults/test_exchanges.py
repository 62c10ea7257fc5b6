"""A `recv` that names another dtype, or another number of elements, than was sent is reported; MLX compares nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.faults.kept import sums_are_right

if TYPE_CHECKING:
    from allranks import Cluster

pytestmark = pytest.mark.slow

MPI2 = pytest.param("mpi2", marks=pytest.mark.mpi)


def exchange(sent: str, received: str, more: str = "") -> str:
    return f"""if rank == 0:
    out = mx.distributed.send({sent}, 1)
else:
    out = mx.distributed.recv({received}, 0)
mx.eval(out)
{more}"""


@pytest.mark.parametrize("world", ["ring2", MPI2])
def test_another_dtype_is_reported(world: str, request: pytest.FixtureRequest) -> None:
    cluster: Cluster = request.getfixturevalue(world)
    said = cluster.run(exchange("mx.ones(3)", "(3,), mx.int32"), timeout=60).check().mismatch
    assert said is not None and "a send and its recv differ: rank 0 called send #" in said
    assert "f32[3] to rank 1 (line 2)" in said and "i32[3] from rank 0 (line 4)" in said
    assert sums_are_right(cluster)


def test_fewer_elements_are_reported_and_the_rest_spoils_nothing(ring2: Cluster) -> None:
    said = ring2.run(exchange("mx.arange(4.0)", "(2,), mx.float32"), timeout=60).check().mismatch
    assert said is not None and "(4 float32 were sent, 2 float32 received)" in said
    assert sums_are_right(ring2)


RIGHT = {
    "another shape": exchange("mx.ones((2, 3))", "(6,), mx.float32"),
    "a later cell receives": "if rank == 0: mx.eval([mx.distributed.send(mx.ones(n), 1) for n in (3, 2)])",
    "called in another order": """if rank == 0:
    first, second = mx.distributed.send(mx.ones(3), 1), mx.distributed.send(mx.ones(5), 1)
else:
    second, first = mx.distributed.recv((5,), mx.float32, 0), mx.distributed.recv((3,), mx.float32, 0)
mx.eval(first)
mx.eval(second)""",
    "both ways": """for n in (1, 4, 2):
    if rank == 0:
        mx.eval(mx.distributed.send(mx.ones(n), 1))
        mx.eval(mx.distributed.recv_like(mx.ones(n + 1), 1))
    else:
        mx.eval(mx.distributed.recv((n,), mx.float32, 0))
        mx.eval(mx.distributed.send(mx.ones(n + 1), 0))""",
}  # fmt: skip


@pytest.mark.parametrize("case", RIGHT)
def test_what_fits_raises_no_alarm(case: str, ring2: Cluster) -> None:
    assert ring2.run(RIGHT[case], timeout=60).check().mismatch is None
    rest = "if rank == 1: mx.eval([mx.distributed.recv((n,), mx.float32, 0) for n in (3, 2)])"
    if case == "a later cell receives":
        assert ring2.run(rest, timeout=60).check().mismatch is None
    assert sums_are_right(ring2)
