"""Which arrays wait for a collective: at most one drawing, whatever is asked about, and the rest is read."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import pytest

from allranks.errors import WouldHang
from allranks.rank.arrays import pending_arrays

if TYPE_CHECKING:
    from allranks import Cluster

COUNTED = """
from allranks.rank.arrays import array_status
from allranks.rank.arrays.pending_arrays import pending_names, waiting
draw_again, drawings = mx.export_to_dot, []

def draw_and_count(*args, **kwargs):
    drawings.append(len(kwargs))
    return draw_again(*args, **kwargs)

mx.export_to_dot = draw_and_count
"""
GRADIENTS = """
import mlx.nn as nn
model = nn.TransformerEncoder(6, 16, 2, 32)
mx.eval(model.parameters())
step = nn.value_and_grad(model, lambda model, x: model(x, None).square().mean())
loss, gradients = step(model, mx.ones((1, 4, 16)))
"""


@pytest.fixture
def counted(ring2: Cluster) -> Iterator[Cluster]:
    ring2.run(COUNTED).check()
    yield ring2
    ring2.run(
        "mx.export_to_dot = draw_again\n"
        "loss = gradients = model = step = s = plain = late = parts = again = same = x = 0\n"
        "one = other = third = shown = 0"
    )


def values(cluster: Cluster, code: str) -> list[Any]:
    return [rank.value for rank in cluster.run(code).check().values()]


def test_results_as_they_are_take_no_drawing(counted: Cluster) -> None:
    code = "mx.eval(loss, model.parameters())\ngradients = nn.utils.tree_map(mx.distributed.all_sum, gradients)"
    counted.run(f"{GRADIENTS}\n{code}").check()
    assert values(counted, "(drawings, pending_names(globals()))") == [([], ["gradients"])] * 2
    counted.run("mx.eval(gradients)").check()


def test_hundreds_of_pending_arrays_take_one_drawing(counted: Cluster) -> None:
    code = "gradients = nn.utils.tree_map(lambda g: mx.distributed.all_sum(g) / size, gradients)"
    counted.run(f"{GRADIENTS}\n{code}").check()
    assert values(counted, "(len(drawings), drawings[0] > 70, drawings.clear())") == [(1, True, None)] * 2, "cell's end"
    with pytest.raises(WouldHang, match="gradients on rank 0"):
        counted.run("print(gradients, loss)", ranks=0)
    assert values(counted, "len(drawings)") == [2, 1], "one at the end of each cell, and one asked of rank 0"
    counted.run("mx.eval(loss, gradients)").check()


def test_what_is_computed_takes_none(counted: Cluster) -> None:
    code = f"{GRADIENTS}\nmx.eval(loss, gradients)\nmx.distributed.all_sum(mx.ones(2)).tolist()"
    counted.run(code).check()
    assert values(counted, "(pending_names(globals()), len(drawings))") == [([], 0)] * 2


WAIT = """
s = mx.distributed.all_sum(mx.ones(3))
plain = mx.ones(3) + 1
late = {'deep': [(s * 3)[1:], plain]}
parts = mx.divmod(s, 3)[1]
again = late['deep'][0].astype(mx.float32)
same = nn.relu(plain)
step = mx.compile(lambda x: mx.exp(x) + 1)
one, other, third = step(plain), step(s), step(plain)
shown = mx.distributed.all_sum(mx.ones(2))
shown.tolist()
"""


@pytest.mark.parametrize("reader", ["array_status.reader", "None"], ids=["read", "drawn"])
def test_exactly_those_that_wait_are_named(reader: str, counted: Cluster) -> None:
    """``again`` is another object for an array of ``late``; ``one``, ``other`` and ``third`` share their operation."""
    code = f"import mlx.nn as nn\nkept, array_status.reader = array_status.reader, {reader}\n{WAIT}"
    named = "found = pending_names(globals())\narray_status.reader = kept\nfound"
    try:
        assert values(counted, code + named) == [["again", "late", "other", "parts", "s"]] * 2
    finally:
        counted.run("array_status.reader = kept\nmx.eval(late, parts, other)").check()


class Slow(dict[str, Any]):
    """Names of a process that others keep from the processor."""

    def items(self) -> Any:
        time.sleep(0.2)
        return super().items()


def test_only_its_own_time_keeps_it_from_looking_at_all_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_arrays, "waiting", lambda arrays: {id(array) for array in arrays})
    assert pending_arrays.pending_names(Slow(x=mx.ones(3), y=3), within=0.1) == ["x"]


def test_a_deep_graph_is_drawn(counted: Cluster) -> None:
    """MLX's drawing recurses: 150,000 operations ended the process by SIGSEGV."""
    code = "x = mx.distributed.all_sum(mx.ones(1)) / 2\nfor _ in range(150_000): x = mx.negative(x)"
    counted.run(code, timeout=120).check()
    assert values(counted, "pending_names(globals())") == [["x"]] * 2
    assert values(counted, "x.tolist()") == [[1.0]] * 2
