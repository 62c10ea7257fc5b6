"""MLX's table of verbs is changed only where it is exactly as known; elsewhere the world works as without it."""

from __future__ import annotations

import pytest

from allranks import doctor
from tests.faults.absent import blocked

from .conftest import NewWorld

ALLOC_PD, REG_MR = 5, 14
COUNT = f"""
import ctypes, struct
from allranks.rank.world.shared_libraries import MLX, writable
from allranks.rank.world.jaccl.rdma_verbs import LIBRARY, VERBS
library = ctypes.CDLL(LIBRARY)
part = [ctypes.cast(getattr(library, "ibv_" + name), ctypes.c_void_p).value for name in VERBS[{ALLOC_PD}:{REG_MR + 2}]]
sum(memory.count(struct.pack(f"{{len(part)}}Q", *part)) for _, memory in writable(MLX))
"""
"""In how many places MLX has the library's functions from alloc_pd to dereg_mr, of which some would be replaced."""


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "places", "left"), [("twice", 2, 2), ("other", 0, 1)])
def test_a_table_that_is_not_as_known_is_left_alone(kind: str, places: int, left: int, new_world: NewWorld) -> None:
    with new_world("jaccl", LAB_TABLE=kind) as world:
        cluster = world.cluster
        assert f"this version of MLX keeps its table of verbs in {places} places" in cluster.snapshot.notes[0]
        (finding,) = (each for each in doctor(2, backend="jaccl").findings if "aborted in place" in each.what)
        assert f"in {places} places" in finding.what and finding.severity == "warning"
        assert [each.value for each in cluster.run(COUNT).check().values()] == [left] * 2, "nothing was written"
        result = blocked(cluster, "mx.eval(mx.distributed.all_sum(mx.ones(3)))")
        assert list(result.errors) == [1] and result[0].unblocked, "the missing rank entered it, as before"
        kept = str(cluster.rewire("ring"))
        assert "restarted" in kept


@pytest.mark.slow
def test_contexts_with_other_functions_are_left_alone(new_world: NewWorld) -> None:
    with new_world("jaccl", LAB_RDMA_CONTEXTS="differ") as world:
        assert "other functions in the contexts of this world" in world.cluster.snapshot.notes[0]
        result = blocked(world.cluster, "mx.eval(mx.distributed.all_sum(mx.ones(3)))")
        assert list(result.errors) == [1] and result[0].unblocked


def test_the_table_that_is_known_is_used(new_world: NewWorld) -> None:
    with new_world("jaccl") as world:
        assert [each.value for each in world.cluster.run(COUNT).check().values()] == [0, 0]
        assert not world.cluster.snapshot.notes
        said = doctor(2, backend="jaccl")
        assert "aborted in place" in str(said) and not any("aborted in place" in each.what for each in said.findings)
