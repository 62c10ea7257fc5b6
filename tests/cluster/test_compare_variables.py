"""Where replicas of a variable differ, and by how much."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from allranks.cluster.compare_variables import differing, largest_difference
from allranks.errors import UsageError
from allranks.messages.requests import Leaf

if TYPE_CHECKING:
    from allranks import Cluster


def test_where_replicas_differ(ring2: Cluster) -> None:
    ring2.run(
        "import mlx.nn as nn\n"
        "mx.random.seed(1)\n"
        "net = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)); mx.eval(net)\n"
        "if rank == 1: net.layers[1].weight = net.layers[1].weight + 0.25; mx.eval(net)\n"
        "state = {'net': net, 'step': rank, 'tag': 'x'}"
    ).check()
    found = dict(ring2.diff("state"))
    assert set(found) == {"state['net']['layers'][1]['weight']", "state['step']"}
    assert found["state['net']['layers'][1]['weight']"].startswith("rank 1 against rank 0: up to 0.25, ")
    assert found["state['step']"].startswith("rank 1 against rank 0: up to 1")
    assert ring2.diff("net.layers")
    ring2.run("same = [mx.ones(3), {'a': 1}]; mx.eval(same)").check()
    assert ring2.diff("same") == []
    with pytest.raises(UsageError, match="rank 0 has no variable 'nowhere'"):
        ring2.diff("nowhere")


def test_leaves_that_are_missing_pending_or_of_another_shape() -> None:
    def leaf(path: str, shape: list[int], checksum: int | None = 1, pending: bool = False) -> Leaf:
        return Leaf(path=path, type="array", shape=shape, dtype="float32", checksum=checksum, pending=pending)

    told = {
        0: [leaf("[0]", [2]), leaf("[1]", [2]), leaf("[2]", [2]), leaf("[3]", [2])],
        1: [leaf("[0]", [3]), leaf("[1]", [2], None, True), leaf("[3]", [2], 2)],
    }
    values, said = differing(told)
    assert values == ["[3]"]
    assert said["[0]"] == "f32[2] on rank 0; f32[3] on rank 1"
    assert said["[1]"].startswith("not evaluated yet")
    assert said["[2]"] == "not on rank 1"


def test_how_far_apart() -> None:
    one = np.array([1.0, -4.0])
    assert (
        largest_difference({0: one, 1: one + 1, 3: one})
        == "rank 1 against rank 0: up to 1, 0.25 of the largest value (rank 1)"
    )
    assert "NaN on one side only (rank 2)" in largest_difference({0: one, 2: np.array([1.0, np.nan])})
    assert largest_difference({0: np.array([0.0]), 1: np.array([-0.0])}) == "equal as numbers, but not bit for bit"
    both = np.array([np.nan, 1.0])
    assert "up to 2" in largest_difference({0: both, 1: both + 2})
    assert largest_difference({0: "a", 1: "b"}) == "'a' on rank 0; 'b' on rank 1"
