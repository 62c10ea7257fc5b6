"""What a backend cannot do is refused in our words, before MLX hangs or ends the process."""

from __future__ import annotations

import pytest

from allranks import Cluster
from allranks.head.world.forming import refusals
from allranks.rank.collectives.wrap_collectives import OPERATIONS
from allranks.rank.functions.refused_operations import RefusedOperations
from allranks_backends.machines.platform import this_platform
from allranks_backends.registry import BACKENDS, can_run
from allranks_backends.unsupported_operations import limits
from tests.backends.one_site import on_one
from tests.frames import frames_of_ours

RING, MPI, NCCL = BACKENDS["ring"], BACKENDS["mpi"], BACKENDS["nccl"]
SCATTER = (
    "ring has no sum_scatter (mlx 0.32). jaccl, nccl and jaccl-ring have it, which cannot run here. "
    "mx.distributed.all_sum(x) gives every rank the whole sum, of which each can take its part."
)
SPLIT = "ring has no Group.split (mlx 0.32). mpi and nccl have it: %distributed rewire --backend mpi"


def test_each_sentence_names_what_can_do_it_and_what_to_type() -> None:
    assert limits(RING, ["ring", "mpi"]).operations == {"split": SPLIT, "sum_scatter": SCATTER}
    assert limits(RING, ["nccl"]).operations["sum_scatter"].endswith("have it: %distributed rewire --backend nccl")
    assert limits(MPI, ["ring"]).operations.keys() == {"sum_scatter"}
    assert limits(MPI).neighbours is None
    assert limits(RING, ["ring", "mpi"]).neighbours == (
        "ring joins direct neighbours only: beside rank {rank} of {size} there is {beside}, and {op} names rank {peer} "
        "(mlx 0.32). jaccl and mpi reach every rank: %distributed rewire --backend mpi"
    )
    alone = limits(RING, ["ring"])
    assert alone.neighbours is not None and alone.neighbours.endswith("Pass it on from neighbour to neighbour.")


@pytest.mark.parametrize("name", BACKENDS)
def test_a_backend_refuses_exactly_what_it_does_not_list(name: str) -> None:
    backend = BACKENDS[name]
    assert set(limits(backend).operations) == {*OPERATIONS, "split"} - backend.operations
    assert set(limits(backend).dtypes) == backend.no_dtypes
    assert set(limits(backend).reduced) == backend.no_reduced


def test_nccl_says_how_to_convert(mlx: None) -> None:
    import mlx.core as mx

    refused = RefusedOperations()
    refused.enter_world(refusals(limits(NCCL, ["ring", "nccl"])), OPERATIONS, 0, 2)
    instead = "%distributed rewire --backend ring"
    for dtype, convert in [
        ("bool_", "astype(mx.uint8)"),
        ("int16", "astype(mx.int32)"),
        ("complex64", "view(mx.float32"),
    ]:
        assert getattr(mx, dtype) in refused.dtypes["all_sum"]
        with pytest.raises(NotImplementedError) as raised:
            refused.refuse_dtype("all_sum", getattr(mx, dtype), {})
        assert str(raised.value).startswith(
            f"nccl has no all_sum of {dtype.rstrip('_')} (mlx 0.32). Convert it first: x.{convert}"
        )
        assert instead in str(raised.value)
    assert mx.bfloat16 not in refused.dtypes["all_sum"]
    with pytest.raises(NotImplementedError, match="nccl has no recv"):
        refused.checks["recv"](((2,), mx.float32, 1), {})


def test_a_world_of_one_rank_refuses_nothing() -> None:
    refused = RefusedOperations()
    refused.enter_world(refusals(limits(RING)), OPERATIONS, 0, 1)
    assert not refused.checks and not any(refused.dtypes.values())


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


def test_a_split_that_fails_in_a_group_of_one_rank_raises_mlxs_own_error(
    mlx: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlx.core as mx

    monkeypatch.setattr(mx.distributed.Group, "split", mx.distributed.Group.split)  # put back at the end
    refused = RefusedOperations()
    refused.install(mx)
    refused.checks["split"] = lambda *_: None  # as for a group of one rank
    with pytest.raises(RuntimeError, match="split"):
        mx.distributed.init().split(0)


@pytest.mark.parametrize("code", ASKED, ids=range(len(ASKED)))
def test_a_ring_refuses_what_it_does_not_have(ring2: Cluster, code: str) -> None:
    expected = ASKED[code]
    if "mpi" not in can_run(on_one(this_platform(), 2)):
        expected = expected.replace(": %distributed rewire --backend mpi", ", which cannot run here.")
    result = ring2.run(code, timeout=60)
    assert {error.evalue for error in result.errors.values()} == {expected}
    assert {error.ename for error in result.errors.values()} == {"NotImplementedError"}
    assert [frames_of_ours(error.traceback) for error in result.errors.values()] == [[], []]
    assert ring2.state == "whole"
    assert [rank.value for rank in ring2.run("mx.distributed.all_sum(mx.ones(1)).item()").check().values()] == [2, 2]


def test_a_ring_sends_to_neighbours_only(ring4: Cluster) -> None:
    """Unrefused, MLX 0.32.4 raises in a thread of its own, which ends the rank's process."""
    asked = {
        "send": "mx.distributed.send(mx.ones(2), (rank + 2) % 4)",
        "recv": "mx.distributed.recv((2,), mx.float32, src=(rank + 2) % 4)",
        "recv_like": "mx.distributed.recv_like(mx.ones(2), src=(rank + 2) % 4)",
    }
    for op, code in asked.items():
        result = ring4.run(f"mx.eval({code})", timeout=60)
        beside = {0: "1 and 3", 1: "0 and 2", 2: "1 and 3", 3: "0 and 2"}
        said = {rank: error.evalue for rank, error in result.errors.items()}
        stranger = limits(RING, can_run(on_one(this_platform(), 4))).neighbours or ""
        assert said == {
            rank: stranger.format(op=op, rank=rank, size=4, beside=beside[rank], peer=(rank + 2) % 4)
            for rank in range(4)
        }
    passed_on = """
right, left = (rank + 1) % 4, (rank - 1) % 4
sent = mx.distributed.send(mx.array([rank]), right)
mx.eval(sent)
mx.distributed.recv((1,), mx.int32, left).item()
"""
    assert [rank.value for rank in ring4.run(passed_on, timeout=60).check().values()] == [3, 0, 1, 2]


def test_a_rank_that_does_not_exist_is_refused_in_mlxs_words(ring2: Cluster) -> None:
    result = ring2.run("mx.distributed.send(mx.ones(2), 5)")
    assert {error.evalue for error in result.errors.values()} == {"Invalid destination=5 for a group of size 2"}


@pytest.mark.mpi
def test_mpi_refuses_what_it_does_not_have(mpi2: Cluster) -> None:
    result = mpi2.run("mx.distributed.sum_scatter(mx.ones(4))", timeout=60)
    assert {error.evalue for error in result.errors.values()} == {SCATTER.replace("ring has", "mpi has")}
    alone = "half = world.split(rank)\nhalf.size(), mx.distributed.sum_scatter(mx.ones(4), group=half).size"
    assert [rank.value for rank in mpi2.run(alone).check().values()] == [(1, 4), (1, 4)], "a group of one has it all"
    mpi2.run("del half")


@pytest.mark.mpi
@pytest.mark.parametrize("op", ["all_sum", "all_max", "all_min"])
def test_mpi_reduces_no_booleans_which_would_end_every_rank(mpi2: Cluster, op: str) -> None:
    result = mpi2.run(f"mx.distributed.{op}(mx.array([True]))", timeout=60)
    [said] = {error.evalue for error in result.errors.values()}
    assert said.startswith(f"mpi has no {op} of bool (mlx 0.32). Convert it first: x.astype(mx.uint8)")
    for made in ("__import__('numpy').array([True])", "True"):
        result = mpi2.run(f"mx.distributed.{op}({made})", timeout=60)
        assert {error.evalue for error in result.errors.values()} == {said}, "of what MLX makes such an array"
    gathered = mpi2.run("mx.distributed.all_gather(mx.array([rank == 1])).tolist()").check()
    assert [rank.value for rank in gathered.values()] == [[False, True]] * 2, "they can be gathered"


@pytest.mark.slow
@pytest.mark.mpi
def test_what_is_to_be_typed_helps(need_mpi: None) -> None:
    with Cluster(2, backend="ring", name="advised") as cluster:
        refused = cluster.run("world.split(0)").errors[0].evalue
        assert refused.endswith("--backend mpi")
        cluster.rewire(refused.rpartition(" ")[2])
        assert [rank.value for rank in cluster.run("world.split(0).size()").check().values()] == [2, 2]
