"""Arrays that wait for a collective of a world that is left are named and NaN, and harm nothing that comes later."""

from __future__ import annotations

import pytest

from allranks import Cluster
from tests.faults.kept import WITHIN, sums_are_right
from tests.faults.test_invalid import Said
from tests.waiting import eventually

pytestmark = pytest.mark.slow

MADE = """
import collections
class Box: pass
a = mx.distributed.all_sum(mx.ones(1000))
b = {"deep": [mx.distributed.all_gather(mx.ones(7, mx.float16)), mx.ones(3)]}
c = mx.compile(lambda x: mx.distributed.all_sum(x))(mx.ones(5)) * 2
box, line = Box(), collections.deque()
box.hidden = mx.distributed.all_sum(mx.ones(1 << 18))
line.append(mx.distributed.all_sum(mx.ones(9)))
fine = mx.ones(3) * 2
def closure(held):
    return lambda: held
fetch = closure(mx.distributed.all_sum(mx.ones(4)))
"""
DIFFER = "mx.eval(mx.distributed.all_sum(mx.ones(2)) if rank else mx.distributed.all_max(mx.ones(3)))"
LEFT = "a, b, c were left pending and their collective cannot run any more: recompute them"
LOOK = """
new = mx.distributed.all_sum(mx.ones(2, mx.uint8))
mx.eval(new, a, b, c, box.hidden, line[0], fetch())
[mx.isfinite(each).any().item() for each in (a, b["deep"][0][7 * (1 - rank):][:7], c, box.hidden, line[0], fetch())], (
    new.tolist(), fine.tolist())
"""


def test_they_are_nan_and_the_world_goes_on(ring2: Cluster) -> None:
    ring2.run("mx.eval(mx.distributed.all_sum(mx.arange(6)))").check()  # integers before make no difference
    ring2.run(MADE).check()
    screen = Said()
    ring2.run(DIFFER, timeout=WITHIN, screen=screen)
    assert f"All variables were kept, but {LEFT}." in screen.text, screen.text
    assert "will run a collective" not in screen.text
    result = ring2.run(LOOK, timeout=WITHIN)
    assert [each.value for each in result.check().values()] == [([False] * 6, ([2, 2], [2.0] * 3))] * 2
    assert sums_are_right(ring2)


LATE = """
import time
from allranks.rank.world.left_pending import LeftBehind
find = LeftBehind.find
def find_late(self, user_ns):
    time.sleep(1)
    return find(self, user_ns)
if rank == 1: LeftBehind.find = find_late
"""


def test_a_rank_whose_neighbour_has_left_before(ring2: Cluster) -> None:
    ring2.run(LATE + MADE).check()
    try:
        ring2.run(DIFFER, timeout=WITHIN)
    finally:
        ring2.run("LeftBehind.find = find").check()
    result = ring2.run(LOOK, timeout=WITHIN)
    assert [each.value for each in result.check().values()] == [([False] * 6, ([2, 2], [2.0] * 3))] * 2
    assert sums_are_right(ring2)


def test_where_integers_were_left_they_are_named(ring2: Cluster) -> None:
    """Zeros for all of them: NaN as an index ends the process."""
    ring2.run("table = mx.arange(10) * 1.0\nindex = mx.distributed.all_max(mx.array([3], mx.uint32))\nx = table[index]")
    screen = Said()
    ring2.run(DIFFER, timeout=WITHIN, screen=screen)
    assert "All variables were kept, but index, x were left pending" in screen.text, screen.text
    assert ring2.run("mx.eval(x, mx.distributed.all_sum(mx.ones(2)))", timeout=WITHIN).ok
    assert sums_are_right(ring2)


def test_those_of_a_thread_of_the_users_raise(ring2: Cluster) -> None:
    """No other thread can compute them."""
    code = """
import threading
made = []
thread = threading.Thread(target=lambda: made.append(mx.distributed.all_sum(mx.ones(3), stream=mx.new_stream(mx.cpu))))
thread.start()
thread.join()
"""
    ring2.run(code).check()
    ring2.run(DIFFER, timeout=WITHIN)
    result = ring2.run("mx.eval(made)", timeout=WITHIN)
    assert not any(each.dead for each in result.values()), result
    assert sums_are_right(ring2)


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
    def count() -> int:
        return int(ring2.run("import os\nlen(os.listdir('/proc/self/fd'))").check()[0].value)

    counts = []
    for _ in range(5):
        ring2.run(MADE).check()
        ring2.rewire(connections=1)
        ring2.run("a = b = c = box = line = fetch = None").check()
        counts.append(count())
    assert eventually(lambda: count() <= counts[1] + 2), counts
