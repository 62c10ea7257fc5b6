"""All operations and dtypes give on JACCL, in the lab, what they must: it runs MLX's own loops."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from allranks import Cluster

from .conftest import NewWorld

OPERATIONS = """
def wrong(counts, names):
    found = []
    def check(name, got, want):
        mx.eval(got)
        if got.dtype != want.dtype or not mx.array_equal(got, want).item():
            found.append(name)
    d = mx.distributed
    for count in counts:
        for name in names:
            dtype = getattr(mx, name)
            base = (mx.arange(count) % 7).astype(dtype)
            one = mx.ones((count,)).astype(dtype)
            mine = base + one * rank if name != "bool_" else base
            all_of_them = [base + one * k if name != "bool_" else base for k in range(size)]
            total = all_of_them[0]
            for each in all_of_them[1:]:
                total = total + each
            check(f"all_sum {name} {count}", d.all_sum(mine), total)
            check(f"all_max {name} {count}", d.all_max(mine), all_of_them[-1])
            check(f"all_min {name} {count}", d.all_min(mine), all_of_them[0])
            check(f"all_gather {name} {count}", d.all_gather(mine), mx.concatenate(all_of_them))
            spread = d.sum_scatter(mx.concatenate([mine] * size))
            check(f"sum_scatter {name} {count}", spread, total)
            if rank == 0:
                mx.eval(d.send(mine, 1))
            if rank == 1:
                check(f"recv {name} {count}", d.recv((count,), dtype, 0), all_of_them[0])
    return found
"""
NAMES = [
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "bfloat16",
    "float32",
    "complex64",
    "bool_",
]


@pytest.fixture(scope="module", params=["jaccl", pytest.param("jaccl-ring", marks=pytest.mark.slow)])
def two(request: pytest.FixtureRequest, new_world: NewWorld) -> Iterator[Cluster]:
    with new_world(request.param) as world:
        yield world.cluster


def check(cluster: Cluster, counts: str, names: list[str]) -> None:
    found = cluster.run(f"{OPERATIONS}\nwrong({counts}, {names})", timeout=300).check()
    assert {rank: each.value for rank, each in found.items()} == {rank: [] for rank in range(cluster.size)}


def test_every_dtype(two: Cluster) -> None:
    check(two, "(1, 3_001)", NAMES)


def test_every_size_of_buffer(two: Cluster) -> None:
    check(two, "(1_024, 9_000, 70_001, 300_000)", ["float32"])


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["jaccl", "jaccl-ring"])
def test_four_ranks_and_two_wires(backend: str, new_world: NewWorld) -> None:
    with new_world(backend, ranks=4, wires=2) as world:
        check(world.cluster, "(1, 70_001, 400_000)", ["float32", "int16"])
        assert world.lab.held(world.pids()).get("violations", 0) == 0


@pytest.mark.slow
def test_a_mesh_uses_the_wires_that_every_pair_has(new_world: NewWorld) -> None:
    with new_world("jaccl", ranks=3, wires=2, fewer=frozenset({0, 2})) as world:
        assert world.lab.held()["pairs"] == len(world.cluster.snapshot.links) == 6
        check(world.cluster, "(1, 400_000)", ["float32"])
        world.cluster.resize(2)
        assert world.lab.held(world.pids())["pairs"] == len(world.cluster.snapshot.links) == 4
        check(world.cluster, "(1, 400_000)", ["float32"])
