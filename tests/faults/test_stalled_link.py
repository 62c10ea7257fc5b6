"""All ranks are in a collective, and nothing moves: that is reported with what the links say, and stop ends it."""

from __future__ import annotations

import re
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from allranks import Cluster
from allranks.cluster.cell import Cell
from allranks.errors import CellInterrupted, CellTimeout
from allranks.head.cell import stalled_links
from allranks.notebook.fold import Block
from tests.faults.kept import keep, look, sums_are_right
from tests.faults.stalled import SOCKETS, STALL
from tests.faults.stop import waiting
from tests.faults.test_silence import Shown
from tests.waiting import comes_true, idle

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="packet filters on sockets are Linux's"),
]

SUM = "total = mx.distributed.all_sum(mx.ones(1000))\nmx.eval(total)"
WITHIN = 120.0


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing moves in these tests: the report need not wait so long until that is sure."""
    monkeypatch.setattr(stalled_links, "STILL_AFTER", 3.0)
    monkeypatch.setattr(stalled_links, "UNKNOWN_AFTER", 5.0)


class Heard(Shown):
    """Knows when something was said."""

    def __init__(self, words: str) -> None:
        super().__init__()
        self.words, self.said = words, threading.Event()

    def blocks(self, blocks: list[Block]) -> None:
        super().blocks(blocks)
        if self.words in self.text:
            self.said.set()


def stopped(cluster: Cluster, cell: Cell, shown: Heard) -> str:
    """What the stop says that is pressed when `shown` has heard its words; it is followed once all ranks are in it."""
    assert comes_true(cluster, waiting(*range(cluster.size)), WITHIN)

    def press() -> None:
        shown.said.wait(WITHIN)
        cell.stop()

    threading.Thread(target=press, daemon=True).start()
    with pytest.raises(CellInterrupted) as raised:
        cell.finish(WITHIN * 2)
    assert shown.said.is_set(), shown.text
    return str(raised.value)


@pytest.mark.parametrize("size", [2, 4])
def test_a_stalled_link_is_reported_and_stop_ends_the_collective(
    size: int, soon: None, patient_stop: None, request: pytest.FixtureRequest
) -> None:
    ring: Cluster = request.getfixturevalue(f"ring{size}")
    kept, generation = keep(ring), ring.snapshot.generation
    ring.run(STALL).check()
    shown = Heard("%distributed doctor")
    message = stopped(ring, ring.begin(SUM, screen=shown), shown)
    text = shown.text
    everybody = tuple(range(size))
    assert f"{everybody}: all ranks are in all_sum #" in text and "f32[1000] (line 1) since" in text
    assert re.search(r"no byte moved on any link for \d+ s", text)
    assert " → 1 " in text.partition("Not acknowledged:")[2] and "resent, round trip" in text
    assert "never entered" not in text and "not entered" not in text, text
    assert message.startswith("All ranks were in all_sum #") and "no byte had moved" in message
    assert "Still busy" not in message, "the stop waits for all ranks"
    text = shown.text
    assert "unblocked from all_sum #" in text and "Re-formed the world" in text
    assert idle(ring) and sums_are_right(ring)
    assert (ring.state, ring.snapshot.generation) == ("whole", generation + 1)
    assert look(ring) == kept


def test_a_timeout_says_the_same(ring4: Cluster) -> None:
    ring4.run(STALL).check()
    shown = Shown()
    cell = ring4.begin(SUM, screen=shown)
    assert comes_true(ring4, lambda now: all((view.stalled or 0) > 3 for view in now.ranks), WITHIN)
    with pytest.raises(CellTimeout, match=r"after 0\.1 s\. All ranks were in all_sum #\d+ f32\[1000\] \(line 1\)"):
        cell.finish(0.1)
    assert "entered" not in shown.text, shown.text
    assert idle(ring4) and sums_are_right(ring4)


def test_a_link_that_recovers_completes_the_collective(ring2: Cluster, soon: None) -> None:
    ring2.run(SOCKETS + "ring = ring_sockets()\nif rank == 1: deafen(ring)").check()
    cell = ring2.begin(
        "import threading, os\n"
        "def later():\n"
        "    while not os.path.exists(go): threading.Event().wait(0.1)\n"
        "    hear(ring)\n"
        "import tempfile\n"
        "go = os.path.join(tempfile.gettempdir(), f'hear-{os.getpid()}')\n"
        "if rank == 1: threading.Thread(target=later).start()\n"
        f"{SUM}\n"
        "if rank == 1: os.remove(go)\n"
        "total[0].item(), go",
        screen=(shown := Heard("all ranks are in")),
    )
    pid = ring2.snapshot.ranks[1].pid

    def recover() -> None:
        shown.said.wait(WITHIN)
        Path(tempfile.gettempdir(), f"hear-{pid}").touch()

    threading.Thread(target=recover, daemon=True).start()
    result = cell.finish(WITHIN * 2).check()
    assert [each.value[0] for each in result.values()] == [2.0] * 2
    ring2.run("del ring").check()


def test_a_slow_link_is_no_stall(ring2: Cluster, soon: None) -> None:
    """All ranks are in the collective for longer than the grace, and a little arrives all the time."""
    ring2.run(SOCKETS + "ring = ring_sockets()\nslow(ring, 60_000)\nx = mx.ones(200_000)\nmx.eval(x)").check()
    cell = ring2.begin("mx.distributed.all_sum(x)[0].item()", screen=(shown := Shown()))
    assert comes_true(ring2, lambda now: all((view.since or 0) > 6 for view in now.ranks), WITHIN)
    stalled = [view.stalled for view in ring2.snapshot.ranks]
    assert [each.value for each in cell.finish(WITHIN).check().values()] == [2.0] * 2
    assert "all ranks are in" not in shown.text, (shown.text, stalled)
    ring2.run("slow(ring, 2**31 - 1)\ndel ring, x").check()
    assert sums_are_right(ring2)


LONG = """
import os, time
x = mx.random.normal((400, 400)) / 20
mx.eval(x)
def long(y):
    for _ in range(steps):
        y = mx.tanh(y @ x)
    return y
began, steps = time.process_time(), 50
mx.eval(long(x))
steps = int(50 * {seconds} / (time.process_time() - began)) + 1
steps = int(mx.distributed.all_max(mx.array(steps)).item())
"""


@pytest.mark.parametrize(
    "step", ["mx.distributed.all_sum(long(x))", "long(mx.distributed.all_sum(x) / 2)"], ids=["before", "after"]
)
def test_a_long_computation_in_the_same_evaluation_is_no_stall(
    ring2: Cluster, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is measured in processor time: however busy the machine is then and later, it takes no less."""
    grace = 2.0
    monkeypatch.setattr(stalled_links, "STILL_AFTER", grace)
    ring2.run(LONG.format(seconds=2 * grace)).check()
    took = [0.0]
    while min(took) < grace + 1:  # the processor may be faster now
        cell = ring2.begin(
            f"began = time.monotonic()\nmx.eval({step})\ntime.monotonic() - began", screen=(shown := Shown())
        )
        took = [each.value for each in cell.finish(WITHIN * 2).check().values()]
        assert "all ranks are in" not in shown.text, shown.text
        ring2.run("steps *= 2").check()


@pytest.mark.mpi
def test_on_mpi_no_more_is_said_than_is_known(need_mpi: None, soon: None) -> None:
    """Over TCP, since what shared memory holds up cannot be stalled."""
    over_tcp = ["--mca", "btl", "tcp,self", "--mca", "btl_tcp_port_min_v4", "21000"]
    over_tcp += ["--mca", "btl_tcp_if_include", "lo", "--mca", "mpi_ft_enable", "0"]
    with Cluster(2, backend="mpi", mpi_args=over_tcp, name="stalled") as cluster:
        cluster.run(SUM).check()
        assert min(each.value for each in cluster.run(SOCKETS + "len(ring_sockets())").check().values()) > 0
        cluster.run("deafen(ring_sockets())").check()
        shown = Heard("is not known")
        message = stopped(cluster, cluster.begin(SUM, screen=shown), shown)
        assert "all ranks are in all_sum #" in shown.text and "Their traffic on mpi cannot be read" in shown.text
        assert "entered" not in shown.text and "no byte" not in shown.text, shown.text
        assert re.search(r"Still busy after \d s: ranks 0-1 blocked in all_sum #", message)
        assert "heal --kill 0-1" in message
        assert "goes on" not in message
