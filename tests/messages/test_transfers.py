"""Large values go in parts: whole, bounded in memory, with other messages between, and stopped from either end."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Sized
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks import Cluster, errors
from allranks.lifeline import transfers
from allranks.lifeline.transfers import WINDOW, CannotHold, Transfers, is_large
from allranks.messages.events import Answered
from allranks.messages.requests import Nothing, Push
from allranks.messages.wire import encode
from tests.jupyter import Notebook
from tests.waiting import eventually, idle


class Pair:
    """Two ends, and what is on the way between them."""

    def __init__(self) -> None:
        self.wanted = True
        self.on_the_way: list[deque[tuple[Any, list[bytes]]]] = [deque(), deque()]
        self.most = 0
        self.ends = (self._end(0), self._end(1))

    def _end(self, index: int) -> Transfers:
        from allranks.messages.events.transfer_events import STEPS as EVENTS
        from allranks.messages.requests.transfer_requests import STEPS as REQUESTS

        def send(about: Any, frames: Any) -> None:
            self.on_the_way[index].append((about, [bytes(frame) for frame in frames]))
            parts = sum(1 for each, _ in self.on_the_way[index] if type(each).__name__ == "Part")
            self.most = max(self.most, parts)

        return Transfers((REQUESTS, EVENTS)[index], send, lambda _question: self.wanted)

    def deliver(self, at_most: int = 10**9) -> list[tuple[bytes, list[bytearray]]]:
        """Messages arrive, one from each end in turn; those that became whole."""
        whole = []
        while any(self.on_the_way) and at_most:
            at_most -= 1
            for index in (0, 1):
                if self.on_the_way[index]:
                    about, frames = self.on_the_way[index].popleft()
                    if (message := self.ends[1 - index].take(about, frames)) is not None:
                        whole.append(message)
        return whole


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers, "CHUNK", 10)


@pytest.fixture
def pair(small_parts: None) -> Pair:
    return Pair()


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=8).filter(any))
def test_buffers_come_as_they_were(buffers: list[bytes]) -> None:
    chunk, transfers.CHUNK = transfers.CHUNK, 10
    try:
        pair = Pair()
        pair.ends[0].begin(b"message", buffers)
        assert pair.deliver() == [(b"message", [bytearray(each) for each in buffers])]
        assert not pair.ends[0] and not pair.ends[1], "nothing is left behind"
    finally:
        transfers.CHUNK = chunk


def test_few_parts_are_sent_ahead_and_many_values_share_the_way(pair: Pair) -> None:
    values = [random.Random(i).randbytes(1000) for i in range(3)]
    for i, value in enumerate(values):
        pair.ends[0].begin(b"%d" % i, [value])
        pair.ends[1].begin(b"%d" % i, [np.frombuffer(value, "uint16").data])
    came = pair.deliver()
    assert sorted((int(message), bytes(*buffers)) for message, buffers in came) == [
        (i, value) for i, value in enumerate(values) for _ in (0, 1)
    ]
    assert pair.most <= 3 * WINDOW


def test_it_stops_where_nobody_waits_any_more(pair: Pair) -> None:
    pair.ends[0].begin(encode(Push()), [b"x" * 1000], 7)
    pair.ends[1].begin(encode(Answered(7, encode(Nothing()))), [b"x" * 1000])
    pair.deliver(8)
    assert 0 < pair.ends[0].moved[0] < pair.ends[0].moved[1] == 2000
    pair.wanted = False
    pair.ends[0].drop_unwanted()
    assert not pair.ends[0]
    assert pair.deliver() == []
    assert not pair.ends[1], "the other end has let go of both"


def test_what_cannot_be_held_fails_its_question(pair: Pair) -> None:
    push = Push()
    push.number = 7
    pair.ends[0].begin(encode(push), [b"x" * 100], 7)
    about, _ = pair.on_the_way[0].popleft()
    about.sizes[0] = 5
    pair.ends[1].take(about, [])
    about, frames = pair.on_the_way[0].popleft()
    with pytest.raises(CannotHold, match="more bytes than were announced") as caught:
        pair.ends[1].take(about, frames)
    assert caught.value.question == 7
    assert not pair.ends[1]
    pair.on_the_way[0].clear()
    assert pair.deliver() == [] and not pair.ends[0]


def test_only_large_messages_go_in_parts(small_parts: None) -> None:
    assert not is_large([]) and not is_large([b"12345", memoryview(b"12345")])
    assert is_large([b"12345", np.zeros(3, "uint16").data])


BIG = 40_000_000
"""Bytes: many parts."""


def test_large_values_go_to_and_from_ranks(ring2: Cluster) -> None:
    value = {"a": np.arange(BIG // 8, dtype="float32"), "b": [b"x" * 10, np.ones(BIG // 8, "int32")]}
    ring2.push({"value": value})
    here = ring2.pull("value")
    for found in here:
        assert (found["a"] == value["a"]).all() and (found["b"][1] == 1).all() and found["b"][0] == b"x" * 10
    here[0]["a"][0] = 5  # an array of its own
    assert here[1]["a"][0] == 0
    result = ring2.run("value['b'][1]").check()
    assert (result[1].value == 1).all()
    result[1].value[:] = 2
    assert (result[1].value == 1).all(), "each look at a value unpacks it"
    ring2.run("value = mx.full((2_500_000,), rank)").check()
    assert [array.sum().item() for array in ring2.apply(lambda x: x + 1, ring2.pull("value")[1])] == [5e6] * 2
    assert ring2.gather("value").shape == (5_000_000,)
    assert eventually(lambda: no_transfer(ring2))


def no_transfer(cluster: Cluster) -> bool:
    assert cluster._live.ranks is not None
    return not any(cluster._live.ranks.lifeline._transfers.values())


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch, ring2: Cluster) -> threading.Event:
    """The notebook confirms no part until the event is set, as if the way were slow."""
    assert ring2._live.ranks is not None
    begun = threading.Event()
    lifeline = ring2._live.ranks.lifeline

    def hold(_self: Any, number: int) -> None:
        begun.set()

    monkeypatch.setattr(Transfers, "_taken", hold)
    lifeline._transfers.clear()
    return begun


def test_other_messages_pass_a_value_that_is_on_its_way(ring2: Cluster, slow: threading.Event) -> None:
    pushing = ring2._live.ask_all(Push(), 0, [b"", np.zeros(100_000_000, "uint8").data])
    assert slow.wait(60)
    assert eventually(lambda: ring2.complete("mx.distributed.all_su", 21) is not None)
    assert ring2.run("rank", timeout=60)[0].value == 0
    assert not pushing[0].done()
    pushing[0].cancel()
    ring2.vars()  # the rank answers, after it was told
    assert eventually(lambda: no_transfer(ring2))


def test_ctrl_c_ends_a_transfer_and_leaves_nothing(ring2: Cluster, slow: threading.Event) -> None:
    def press() -> None:
        slow.wait(60)
        os.kill(os.getpid(), signal.SIGINT)

    pressing = threading.Thread(target=press)
    pressing.start()
    with pytest.raises(errors.CellInterrupted, match="stopped before ranks 0-1 had answered"):
        ring2.push({"never": np.zeros(100_000_000, "uint8")})
    pressing.join()
    ring2.vars()
    assert eventually(lambda: no_transfer(ring2))
    assert "never" not in ring2.run("dir()", timeout=60).check()[0].value


def length(value: Sized) -> int:
    return len(value)


VERBS: dict[str, Callable[[Cluster], object]] = {
    "push": lambda cluster: cluster.push({"never": np.zeros(100_000_000, "uint8")}),
    "pull": lambda cluster: cluster.pull("held"),
    "diff": lambda cluster: cluster.diff("held"),
    "vars": lambda cluster: cluster.vars(),
    "console": lambda cluster: cluster.console(1),
    "call": lambda cluster: cluster.apply(length, np.zeros(100_000_000, "uint8")),
}


@pytest.mark.parametrize("verb", VERBS)
def test_ctrl_c_as_the_request_is_sent_ends_it_too(
    verb: str, ring2: Cluster, slow: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring2.run("import numpy as np\nheld = np.full(100_000_000, rank, 'uint8')", timeout=60).check()
    ask_all, pressed = ring2._live.ask_all, list[bool]()

    def then_pressed(*args: Any, **options: Any) -> Any:
        asked = ask_all(*args, **options)
        if not pressed:
            pressed.append(True)
            os.kill(os.getpid(), signal.SIGINT)
        return asked

    monkeypatch.setattr(ring2._live, "ask_all", then_pressed)
    small = verb in ("diff", "vars", "console")  # ranks may answer before the stop is noted
    when = "(before|once) rank.* had answered" if small else "before ranks 0-1 had answered"
    with pytest.raises(BaseException, match=f"stopped {when}") as stopped:
        VERBS[verb](ring2)
    assert stopped.type is errors.CellInterrupted
    monkeypatch.undo()
    ring2.vars()
    assert eventually(lambda: no_transfer(ring2))
    ring2.run("del held", timeout=60).check()


VALUE = "import numpy as np\nnp.zeros(100_000_000, 'uint8')"


def test_ctrl_c_ends_a_cell_whose_value_is_on_its_way(
    ring2: Cluster, monkeypatch: pytest.MonkeyPatch, patient_stop: None
) -> None:
    begun, sending = threading.Event(), set[int]()

    def hold(self: Transfers, number: int, frames: Any) -> None:
        """A part has come, is not confirmed, and the rest is not taken."""
        sending.add(id(self))
        if len(sending) == ring2.size:
            begun.set()

    monkeypatch.setattr(Transfers, "_part", hold)

    def press() -> None:
        begun.wait(60)
        os.kill(os.getpid(), signal.SIGINT)

    pressing = threading.Thread(target=press)
    pressing.start()
    with pytest.raises(errors.CellInterrupted) as stopped:
        ring2.run(VALUE, timeout=60)
    pressing.join()
    assert "heal" not in str(stopped.value), "no rank is stuck"
    assert idle(ring2)
    monkeypatch.undo()
    ring2.vars()
    assert eventually(lambda: no_transfer(ring2))
    assert (ring2.run(VALUE, timeout=60)[1].value == 0).all()


def test_a_cell_whose_value_cannot_be_held_ends(ring2: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_self: Any, _frames: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(transfers._Incoming, "add", full)
    result = ring2.run(VALUE, timeout=60)
    assert result.ok
    with pytest.raises(errors.CannotTravel, match="not enough memory for the 100,000"):
        _ = result[0].value
    monkeypatch.undo()
    assert idle(ring2) and ring2.run("rank", timeout=60)[1].value == 1


@pytest.mark.slow
def test_a_rank_that_dies_in_the_middle_is_named() -> None:
    with Cluster(1, backend="ring", name="dies") as cluster:
        cluster.run("import numpy as np\nvalue = np.zeros(200_000_000, 'uint8')").check()
        pid = cluster.snapshot.ranks[0].pid
        assert pid is not None and cluster._live.ranks is not None
        lifeline = cluster._live.ranks.lifeline

        def kill() -> None:
            while not any(transfers.moved[0] for transfers in lifeline._transfers.values()):
                time.sleep(0.001)
            os.kill(pid, signal.SIGKILL)

        killing = threading.Thread(target=kill)
        killing.start()

        def pull() -> None:
            while killing.is_alive() or not cluster.snapshot.ranks[0].cause:
                cluster.pull("value")

        with pytest.raises(errors.WorldBroken, match="rank 0 ended in the meantime"):
            pull()
        killing.join()
        assert eventually(lambda: not lifeline._transfers)


@pytest.mark.slow
def test_how_far_it_is_is_shown_in_a_notebook(notebook: Notebook) -> None:
    notebook.ok(
        "import numpy as np\n"
        "import allranks.notebook.transfer_progress as progress\n"
        "progress.SHOW_AFTER = progress.SHOW_EVERY = 0.01\n"
        "from allranks.notebook.live_lines import LiveArea\n"
        "said, want = [], LiveArea.want\n"
        "LiveArea.want = lambda self, lines: (said.append(dict(lines)), want(self, lines))[1]\n"
        "from allranks.magics import magics"
    )
    cell = notebook.ok("big = np.zeros(150_000_000, 'uint8')\n%distributed push big")
    said = notebook.ok("print(said)").stdout
    assert "of 150.0 MB" in said and said.strip().endswith("{}]")
    assert "of 150.0 MB" not in cell.all, "nothing of it stays"
    notebook.ok("LiveArea.want = want; del big\nprogress.SHOW_AFTER = 1.0")


@pytest.mark.slow
def test_the_stop_button_ends_a_transfer_with_a_sentence(notebook: Notebook) -> None:
    notebook.ok(
        "import numpy as np\nfrom allranks.lifeline.transfers import Transfers\n"
        "taken, Transfers._taken = Transfers._taken, lambda self, number: None"
    )
    pushing = notebook.begin("never = np.zeros(150_000_000, 'uint8')\n%distributed push never")
    notebook.shows(pushing, "of 150.0 MB")
    notebook.interrupt()
    cell = notebook.finish(pushing)
    assert cell.error == "CellInterrupted: stopped before ranks 0-3 had answered"
    assert "of 150.0 MB" not in cell.all
    notebook.ok("Transfers._taken = taken; del never")
    assert set(notebook.ok("%%distributed\n'never' in dir()").by_rank.values()) == {"False\n"}
