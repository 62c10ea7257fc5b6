"""What a backend cannot do is refused in our words, before MLX hangs or ends the process."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from allranks import Cluster
from allranks.rank.ledger import OPERATIONS
from allranks.rank.limits import Limits
from allranks_backends._backend import BACKENDS
from allranks_backends._limits import limits

RING, MPI, NCCL = BACKENDS["ring"], BACKENDS["mpi"], BACKENDS["nccl"]
SCATTER = (
    "ring has no sum_scatter (mlx 0.32). jaccl, nccl and jaccl-ring have it, which cannot run here. "
    "mx.distributed.all_sum(x) gives every rank the whole sum, of which each can take its part."
)
SPLIT = "ring has no Group.split (mlx 0.32). mpi and nccl have it: %distributed rewire --backend mpi"
STRANGER = (
    "ring joins direct neighbours only: beside rank {rank} of 4 there is {beside}, and {op} names rank {peer} "
    "(mlx 0.32). jaccl and mpi have it: %distributed rewire --backend mpi"
)


def test_each_sentence_names_what_can_do_it_and_what_to_type() -> None:
    assert limits(RING, ["ring", "mpi"]).operations == {"split": SPLIT, "sum_scatter": SCATTER}
    assert limits(RING, ["nccl"]).operations["sum_scatter"].endswith("have it: %distributed rewire --backend nccl")
    assert limits(MPI, ["ring"]).operations.keys() == {"sum_scatter"}
    assert limits(MPI).neighbours is None
    alone = limits(RING, ["ring"])
    assert alone.neighbours is not None and alone.neighbours.endswith("Pass it on from neighbour to neighbour.")


@pytest.mark.parametrize("name", BACKENDS)
def test_a_backend_refuses_exactly_what_it_does_not_list(name: str) -> None:
    backend = BACKENDS[name]
    assert set(limits(backend).operations) == {*OPERATIONS, "split"} - backend.operations
    assert set(limits(backend).dtypes) == backend.no_dtypes


def test_nccl_says_how_to_convert(mlx: None) -> None:
    import mlx.core as mx

    refused = Limits()
    refused.enter_world(asdict(limits(NCCL, ["ring", "nccl"])), OPERATIONS, 0, 2)
    instead = "%distributed rewire --backend ring"
    for dtype, convert in [("bool", "astype(mx.uint8)"), ("int16", "astype(mx.int32)"), ("complex64", "view(mx.float32")]:
        with pytest.raises(NotImplementedError) as raised:
            refused.checks["all_sum"]((mx.zeros(2, getattr(mx, dtype)),), {})
        assert str(raised.value).startswith(f"nccl has no all_sum of {dtype} (mlx 0.32). Convert it first: x.{convert}")
        assert instead in str(raised.value)
    refused.checks["all_sum"]((mx.zeros(2, mx.bfloat16),), {})
    with pytest.raises(NotImplementedError, match="nccl has no recv"):
        refused.checks["recv"](((2,), mx.float32, 1), {})


def test_a_world_of_one_rank_refuses_nothing() -> None:
    refused = Limits()
    refused.enter_world(asdict(limits(RING)), OPERATIONS, 0, 1)
    assert not refused.checks


LIBRARY = """
import types
library = types.ModuleType("library")
exec("import mlx.core as mx\\ndef shard(x): return mx.distributed.sum_scatter(x)", vars(library))
"""
ASKED = {
    "mx.distributed.sum_scatter(mx.ones(4))": SCATTER,
    "mx.compile(lambda x: mx.distributed.sum_scatter(x))(mx.ones(4))": SCATTER,
    f"{LIBRARY}library.shard(mx.ones(4))": SCATTER,
    # fully_shard's gradient: the call is MLX's own, in a function of mx.custom_function.
    """
import mlx.nn as nn
from mlx.nn.layers.distributed import fully_shard
layer = fully_shard(nn.Linear(8, 8), group=world)
loss, gradient = nn.value_and_grad(layer, lambda x: layer(x).sum())(mx.ones((1, 8)))
""": SCATTER,
    "world.split(rank % 2)": SPLIT,
    "world.split(color=0, key=rank)": SPLIT,
    "mx.distributed.init().split(0)": SPLIT,
}


@pytest.mark.parametrize("code", ASKED, ids=range(len(ASKED)))
def test_a_ring_refuses_what_it_does_not_have(ring2: Cluster, code: str) -> None:
    expected = ASKED[code]
    if BACKENDS["mpi"].why_not(__import__("allranks_backends._backend", fromlist=["x"]).this_platform(), 2):
        expected = expected.replace(": %distributed rewire --backend mpi", ", which cannot run here.")
    result = ring2.run(code, timeout=60)
    assert {error.evalue for error in result.errors.values()} == {expected}
    assert {error.ename for error in result.errors.values()} == {"NotImplementedError"}
    assert not any("allranks" in error.traceback for error in result.errors.values())
    assert ring2.state == "whole"
    assert [rank.value for rank in ring2.run("mx.distributed.all_sum(mx.ones(1)).item()").check().values()] == [2, 2]
