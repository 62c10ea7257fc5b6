"""Arrays that wait for a collective of a world that is left are named; evaluating one raises, and does no more."""

from __future__ import annotations

import pytest

from allranks import Cluster
from tests.faults.kept import WITHIN, sums_are_right
from tests.faults.test_invalid import Said

pytestmark = pytest.mark.slow

MADE = """
import collections
class Box: pass
a = mx.distributed.all_sum(mx.ones(1000))
b = {"deep": [mx.distributed.all_gather(mx.ones(7, mx.int32)), mx.ones(3)]}
c = mx.compile(lambda x: mx.distributed.all_max(x))(mx.ones(5)) * 2
box, line = Box(), collections.deque()
box.hidden = mx.distributed.all_sum(mx.ones(1 << 18))
line.append(mx.distributed.all_min(mx.ones(9)))
fine = mx.ones(3) * 2
def closure(held):
    return lambda: held
fetch = closure(mx.distributed.all_sum(mx.ones(4)))
"""
DIFFER = "mx.eval(mx.distributed.all_sum(mx.ones(2)) if rank else mx.distributed.all_max(mx.ones(3)))"
EVALUATED = ("a", "b", "c", "box.hidden", "line[0]", "fetch()", "[a, b, c, box.hidden, line[0], fetch()]")
LEFT = "a, b, c were left pending and their collective cannot run any more: recompute them"


@pytest.mark.parametrize("how", EVALUATED)
def test_evaluating_one_raises_and_the_world_goes_on(how: str, ring2: Cluster) -> None:
    ring2.run(MADE).check()
    screen = Said()
    ring2.run(DIFFER, timeout=WITHIN, screen=screen)
    assert f"All variables were kept, but {LEFT}." in screen.text, screen.text
    assert "will run a collective" not in screen.text
    result = ring2.run(f"mx.eval({how})", timeout=WITHIN)
    assert not any(each.ok for each in result.values()) and not any(each.dead for each in result.values())
    assert sums_are_right(ring2)
    assert ring2.run("fine.tolist()").check()[1].value == [2.0] * 3


def test_a_change_of_the_world_names_them_too() -> None:
    with Cluster(2, backend="ring", name="left") as cluster:
        cluster.run(MADE).check()
        change = cluster.resize(3)
        assert f"ranks 0-1 kept all variables, but {LEFT}; rank 2 started empty." in str(change)
        assert change.ranks[0].invalid == ("a", "b", "c")
        cluster.run("a = b = c = None").check()
        assert "all ranks kept their variables" in str(cluster.rewire(connections=2))
        assert sums_are_right(cluster)


def test_what_is_kept_for_them_is_let_go_of_again(ring2: Cluster) -> None:
    count = "import os\nlen(os.listdir('/proc/self/fd'))"
    counts = []
    for _ in range(5):
        ring2.run(MADE).check()
        ring2.rewire(connections=1)
        ring2.run("a = b = c = box = line = fetch = None").check()
        counts.append(ring2.run(count).check()[0].value)
    assert counts[-1] <= counts[1] + 2, counts
