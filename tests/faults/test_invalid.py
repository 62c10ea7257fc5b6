"""What was being computed when a collective was aborted is invalid, and is named."""

from __future__ import annotations

import pytest

from allranks import Cluster
from allranks.notebook.feed_dashboards import Nowhere
from allranks.notebook.fold import Block
from tests.faults.absent import DIES, blocked
from tests.faults.kept import sums_are_right

pytestmark = pytest.mark.slow

MADE = "kept = mx.ones(5) + rank\nmx.eval(kept)\nmodel = nn.Linear(3, 3)\nmx.eval(model.parameters())"
BROKEN = {
    "evaluated": "y = mx.distributed.all_sum(kept) * 3\nmx.eval(y)",
    "asked for before": "y = mx.distributed.all_sum(kept) * 3\nmx.async_eval(y)\nmx.eval(mx.distributed.all_sum(kept))",
    "looked at": "y = mx.distributed.all_sum(kept) * 3\nshown = y.tolist()",
    "the collective's own": "y = mx.distributed.all_sum(kept)\nshown = [float(n) for n in y]",
    "part of a model": (
        "y = model\nmodel.update(nn.utils.tree_map(mx.distributed.all_sum, model.parameters()))\n"
        "mx.eval(model.parameters())"
    ),
}


class Said(Nowhere):
    """A screen that keeps the text."""

    text = ""

    def blocks(self, blocks: list[Block]) -> None:
        self.text += "".join(str(block.content) for block in blocks)


def names_invalid(cluster: Cluster, code: str) -> tuple[str, ...]:
    """Those of which rank 0 says so, when rank 1 raises."""
    cluster.run(f"import mlx.nn as nn\n{MADE}").check()
    result = blocked(cluster, code)
    assert result[0].unblocked and result[1].invalid == ()
    assert result[0].error is not None and result[0].error.line, "raised once, in the cell, and not while that is shown"
    assert sums_are_right(cluster)
    return result[0].invalid


@pytest.mark.parametrize("how", BROKEN)
def test_on_a_ring(how: str, ring2: Cluster) -> None:
    expected = {"part of a model": ("model", "y")}.get(how, ("y",))
    assert names_invalid(ring2, BROKEN[how]) == expected


def test_on_mpi_what_an_idle_rank_computes_for_others_is_named(restarted_mpi2: Cluster) -> None:
    """Rank 1 lacks the first collective, so that its second one goes with what rank 0 brings to the first."""
    restarted_mpi2.run(
        "if rank == 0: x = mx.distributed.all_sum(mx.ones(3))\ny = mx.distributed.all_sum(mx.ones(3) * 2)"
    ).check()
    screen = Said()
    result = blocked(restarted_mpi2, "mx.eval(x, y)", screen=screen)
    assert "x" in result[0].invalid and result[1].invalid == ("y",), screen.text
    assert "y is invalid" in screen.text or "x, y are invalid" in screen.text, screen.text
    restarted_mpi2.run("x = y = None").check()
    assert sums_are_right(restarted_mpi2)


@pytest.mark.parametrize("how", ["evaluated", "looked at"])
def test_on_mpi_where_others_enter_with_zeros(how: str, restarted_mpi2: Cluster) -> None:
    assert names_invalid(restarted_mpi2, BROKEN[how]) == ("y",)


FINE = {
    "evaluated": "fine = mx.distributed.all_sum(kept) * 2\nmx.eval(fine)",
    "looked at": "fine = mx.distributed.all_sum(kept)\nfine.tolist()\nmx.eval(mx.distributed.all_sum(kept))",
}


@pytest.mark.parametrize("how", FINE)
def test_what_was_complete_before_is_not_named(how: str, ring2: Cluster) -> None:
    ring2.run(f"import mlx.nn as nn\n{MADE}").check()
    result = blocked(ring2, "mx.eval(mx.distributed.all_sum(kept))", first=FINE[how])
    assert result[0].unblocked and result[0].invalid == ()


NOTHING_ON_ITS_WAY = """
from allranks.rank.process.engine import RankEngine
import time
asked, until = RankEngine.instance().agent.ledger.invalid.asked, time.monotonic() + 60
while asked and time.monotonic() < until: time.sleep(0.01)
"""


def test_what_came_to_its_end_after_its_cell_is_not_named(ring2: Cluster) -> None:
    ring2.run(f"import mlx.nn as nn\n{MADE}\nfine = mx.distributed.all_sum(kept) * 2\nmx.async_eval(fine)").check()
    ring2.run(NOTHING_ON_ITS_WAY).check()
    result = blocked(ring2, "mx.eval(mx.distributed.all_sum(kept))")
    assert result[0].invalid == ()
    assert ring2.run("fine[0].item()", ranks=0)[0].value == 6


def test_a_cell_that_is_stopped_in_python_spoils_nothing(ring2: Cluster) -> None:
    result = ring2.run("a = mx.distributed.all_sum(mx.ones(2))\nmx.async_eval(a)\nmx.eval(a)\nraise KeyboardInterrupt")
    assert [each.invalid for each in result.values()] == [(), ()]


def test_what_an_earlier_cell_left_to_be_computed(ring2: Cluster) -> None:
    ring2.run("y = mx.distributed.all_sum(mx.ones(4)) * 3").check()
    ring2.run("something = 'else'").check()
    result = blocked(ring2, "print(y)")
    assert result[0].invalid == ("y",)
    ring2.run("y = mx.ones(4)")
    # What tests before have left in these ranks may be invalid, and is named.
    named = str(ring2.resize(3, source=0)).partition("(invalid, because a collective was aborted: ")[2]
    assert "y" not in named.rstrip(").").split(", ")
    ring2.resize(2)


def test_a_name_bound_again_at_the_same_place_in_memory(ring2: Cluster) -> None:
    ring2.run("w = mx.ones(4)\nmx.eval(w)").check()
    more = "w = mx.distributed.all_sum(w) * 1; w.tolist()"
    for last in range(5):
        result = blocked(ring2, f"for i in range(6): {more}", first=f"for i in range({last}): {more}")
        assert result[0].invalid == ("w",), last
        ring2.run("w = mx.ones(4)\nmx.eval(w)").check()


def test_vars_does_not_wait_for_what_is_on_its_way(ring2: Cluster) -> None:
    ring2.run(
        "y = mx.ones(3)\nif rank == 0:\n    y = mx.distributed.all_sum(mx.ones(3)) * 3\n    mx.async_eval(y)"
    ).check()
    assert "not evaluated on" in str(ring2.vars("y"))
    ring2.rewire(connections=2)
    assert "invalid on rank 0" in str(ring2.vars("y")), "rank 1 never came"
    ring2.rewire(connections=1)


STEP = """
import mlx.nn as nn, mlx.optimizers as optim
model, unused, opt = nn.Linear(3, 1), nn.Linear(2, 2), optim.Adam(0.1)
train = nn.value_and_grad(model, lambda model, x: model(x).sum())
def step():
    loss, grads = train(model, mx.ones((4, 3)))
    opt.update(model, nn.average_gradients(grads))
    mx.eval(loss, opt.state)
    return loss
loss = step()
mx.eval(model.parameters())
"""


def test_what_is_to_be_computed_from_it_is_named_too() -> None:
    """As in a training loop that evaluates the state of its optimizer, and leaves the model for the next step."""
    with Cluster(2, backend="ring", name="training") as cluster:
        cluster.run(STEP).check()
        result = blocked(cluster, "loss = step()\nloss = step()", DIES)
        assert {"model", "opt"} <= set(result[0].invalid) and "unused" not in result[0].invalid
        assert "model" in str(cluster.heal(source=0)).partition("(invalid, because")[2]


def test_it_is_said_below_the_cell_and_by_heal(worlds: object) -> None:
    with Cluster(2, backend="ring", name="invalid") as cluster:
        screen = Said()
        blocked(cluster, "y = mx.distributed.all_sum(mx.ones(4)) * 3\nmx.eval(y)", DIES, screen=screen)
        assert "y is invalid: its collective was aborted. Recompute it" in screen.text
        assert "(invalid, because a collective was aborted: y)" in str(cluster.heal(source=0))
        assert "invalid on ranks 0-1: a collective was aborted" in str(cluster.vars("y"))
        cluster.run("y = mx.ones(4)\nmx.eval(y)")
        assert "identical" in str(cluster.vars("y"))


def test_what_is_complete_when_the_world_is_left_is_not_named(ring2: Cluster) -> None:
    ring2.run("y = mx.distributed.all_sum(mx.ones(3)) * 3\nmx.async_eval(y)").check()
    ring2.rewire(connections=2)
    assert "identical" in str(ring2.vars("y")) and ring2.pull("y")[0].tolist() == [6, 6, 6]
    ring2.rewire(connections=1)
