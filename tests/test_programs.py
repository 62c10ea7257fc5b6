"""What people type in a notebook, on ring and on MPI ranks: collectives, unittest suites, mpi4py beside mlx."""

from __future__ import annotations

import re

import pytest

from tests.jupyter import Notebook

SUITE = """%%distributed
import unittest

class Collectives(unittest.TestCase):
    def test_sum(self):
        self.assertEqual(mx.distributed.all_sum(mx.ones(10)).tolist(), [size] * 10)

    def test_gather(self):
        self.assertEqual(mx.distributed.all_gather(mx.array([rank])).tolist(), list(range(size)))

    def test_max(self):
        self.assertEqual(mx.distributed.all_max(mx.array(rank)).item(), size - 1)

    def test_average_gradients(self):
        from mlx.nn import average_gradients
        mean = average_gradients({"w": mx.full((3,), float(rank))})["w"]
        self.assertEqual(mean.tolist(), [(size - 1) / 2] * 3)

    def test_that_fails_but_on_rank_0(self):
        self.assertEqual(rank, 0)
"""


@pytest.fixture(params=["ring", pytest.param("mpi", marks=pytest.mark.mpi)])
def world(request: pytest.FixtureRequest, kernel: Notebook) -> Notebook:
    """A notebook with four ranks of each backend."""
    if request.param == "mpi":
        request.getfixturevalue("need_mpi")
    return kernel.with_ranks(request.param, 4)


def test_all_sum_of_ten_ones_is_one_line_for_four_ranks(world: Notebook) -> None:
    cell = world.ok("%%distributed\nmx.distributed.all_sum(mx.ones(10))")
    assert cell.stdout == "ranks 0-3 │ array([4, 4, 4, ..., 4, 4, 4], dtype=float32)\n"
    assert cell.stderr == ""
    world.ok("%%distributed\nten = mx.distributed.all_sum(mx.ones(10)).tolist()")
    assert world.ok("%distributed pull ten\nassert ten == [[4.0] * 10] * 4")


@pytest.mark.slow
def test_a_unittest_suite_runs_on_all_ranks_with_its_result_on_each(world: Notebook) -> None:
    world.ok(SUITE)
    cell = world.ok("%%distributed -o outcome\nunittest.main(argv=['suite'], exit=False, verbosity=2).result")
    assert re.search(r"^rank 0 .*run=5 errors=0 failures=0", cell.stdout, re.M)
    assert re.search(r"^ranks 1-3 .*run=5 errors=0 failures=1", cell.stdout, re.M)
    assert "AssertionError: 1 != 0" in cell.stderr and "AssertionError: 3 != 0" in cell.stderr
    world.ok(
        "assert 'test_that_fails_but_on_rank_0' in outcome[1].stderr\n"
        "assert outcome[0].stderr.rstrip().endswith('OK')\n"
        "assert outcome[3].stderr.rstrip().endswith('FAILED (failures=1)')"
    )


@pytest.mark.slow
def test_a_suite_that_asks_to_exit_leaves_the_ranks_up(world: Notebook) -> None:
    """``unittest.main()`` ends in ``sys.exit``; on a rank, as in a notebook, that ends the cell alone."""
    world.ok(SUITE)
    world.run("%%distributed\nunittest.main(argv=['suite'])")
    assert world.ok("%%distributed\nrank").stdout == "".join(f"rank {rank}    │ {rank}\n" for rank in range(4))


@pytest.mark.slow
@pytest.mark.mpi
def test_mpi4py_and_mlx_share_one_cell(need_mpi: None, kernel: Notebook) -> None:
    notebook = kernel.with_ranks("mpi", 4)
    cell = notebook.ok(
        "%%distributed\n"
        "from mpi4py import MPI\n"
        "MPI.COMM_WORLD.allreduce(rank), MPI.COMM_WORLD.Get_size(), mx.distributed.all_sum(mx.array(rank)).item()"
    )
    assert cell.by_rank == dict.fromkeys(range(4), "(6, 4, 6)\n")
    assert notebook.ok("%%distributed\nMPI.COMM_WORLD.Get_rank() == rank == world.rank()").by_rank == dict.fromkeys(
        range(4), "True\n"
    )


@pytest.mark.slow
@pytest.mark.mpi
def test_mpi4py_may_be_imported_before_any_mlx_call_of_the_user(need_mpi: None, kernel: Notebook) -> None:
    notebook = kernel.with_ranks("mpi", 2)
    cell = notebook.ok("%%distributed\nfrom mpi4py import MPI\nMPI.Is_initialized(), MPI.Is_finalized()")
    assert cell.by_rank == dict.fromkeys(range(2), "(True, False)\n")


@pytest.mark.slow
def test_a_training_step_of_a_compiled_model_agrees_on_all_ranks(world: Notebook) -> None:
    cell = world.ok("""%%distributed
import mlx.nn as nn
import mlx.optimizers as optim
from functools import partial

mx.random.seed(0)
model = nn.Linear(8, 1)
optimizer = optim.SGD(learning_rate=0.1)
x, y = mx.random.normal((4 * size, 8)), mx.random.normal((4 * size, 1))
mine = slice(4 * rank, 4 * rank + 4)

def loss(x, y):
    return nn.losses.mse_loss(model(x), y)

step = nn.value_and_grad(model, loss)
for _ in range(5):
    value, gradients = step(x[mine], y[mine])
    optimizer.update(model, nn.average_gradients(gradients))
    mx.eval(model.parameters(), optimizer.state)
total = mx.distributed.all_sum(value) / size
print(f"{total.item():.5f}", [round(w, 5) for w in model.weight[0, :3].tolist()])
""")
    assert re.fullmatch(r"\d\.\d{5} \[.*\]\n", cell.by_rank[0])
    assert cell.by_rank == dict.fromkeys(range(4), cell.by_rank[0])
