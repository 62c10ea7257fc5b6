"""Connections of the lifeline: by which one a message came, and which have ended, also where descriptors repeat."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import msgspec
import pytest
import zmq

from allranks.lifeline import head_end
from allranks.lifeline.connections import Connection
from allranks.lifeline.delivery import Before
from allranks.lifeline.head_end import Lifeline
from allranks.messages.cell_options import CellOptions, CellRequest
from allranks.messages.events import Event, Hello, State
from allranks.messages.requests import Acknowledge, Greet, Register, Request, RunCell
from allranks.messages.wire import Buffer, Reader, encode
from tests.waiting import eventually

TOKEN = "secret"
RANKS, CONNECTS = 64, 1_000
WITHIN = 60.0
"""Seconds."""


class Notebook:
    """The notebook's end, with what it received."""

    def __init__(self) -> None:
        self.connected: set[str] = set()
        self.received: dict[str, int] = {}
        """The last number that each rank sent."""
        self.changed = threading.Condition()
        self._goes_on = threading.Event()
        self._goes_on.set()
        self._waits = threading.Event()
        self.lifeline = Lifeline(TOKEN)
        self.lifeline.listen(on_message=self._on_message, on_gone=self._on_gone)

    @contextmanager
    def stopped(self, waker: Callable[[], None]) -> Iterator[None]:
        """Within, it handles no message and no event, like a process that is stopped. `waker` sends it a message."""
        self._waits.clear()
        self._goes_on.clear()
        waker()
        try:
            assert self._waits.wait(WITHIN)
            yield
        finally:
            self._goes_on.set()

    def _on_message(self, uuid: str, event: Event, _buffers: Sequence[Buffer]) -> None:
        if not self._goes_on.is_set():
            self._waits.set()
            self._goes_on.wait()
        with self.changed:
            if isinstance(event, Hello):
                self.connected.add(uuid)
            elif isinstance(event, State):
                self.received[uuid] = event.entered
            self.changed.notify_all()

    def _on_gone(self, uuid: str) -> None:
        with self.changed:
            self.connected.discard(uuid)
            self.changed.notify_all()

    def has(self, number: int, ranks: Sequence[str]) -> bool:
        """Whether all of these become connected, and their messages up to that number arrive."""

        def arrived() -> bool:
            return all(self.received.get(uuid) == number and uuid in self.connected for uuid in ranks)

        with self.changed:
            return self.changed.wait_for(arrived, WITHIN)


class FakeRanks:
    """The ranks' ends, without processes."""

    def __init__(self, notebook: Notebook) -> None:
        self._url, self._key = notebook.lifeline.url, notebook.lifeline.keys[0].encode()
        self._context = zmq.Context()
        self._sockets: dict[str, zmq.Socket[bytes]] = {}

    def connect(self, uuid: str, *, greets: bool = True) -> None:
        each = self._sockets[uuid] = self._context.socket(zmq.DEALER)
        each.setsockopt(zmq.LINGER, 0)
        each.curve_serverkey = self._key
        each.curve_publickey, each.curve_secretkey = zmq.curve_keypair()
        each.connect(self._url)
        if greets:
            self.greet(uuid)

    def greet(self, uuid: str) -> None:
        self.send(uuid, Hello(TOKEN, 0, 1, "x", True, 0, False))

    def send(self, uuid: str, event: Event) -> None:
        self._sockets[uuid].send_multipart([uuid.encode(), encode(event)])

    def replace(self, uuid: str) -> zmq.Socket[bytes]:
        """Connect once more, and return the socket that was there before."""
        before = self._sockets[uuid]
        self.connect(uuid)
        return before

    def drop(self, uuid: str) -> None:
        self._sockets.pop(uuid).close()

    def receive(self, uuid: str) -> Request:
        each = self._sockets[uuid]
        assert each.poll(int(WITHIN * 1000)), "no message"
        return Reader(Request).read(each.recv())

    def close(self) -> None:
        self._context.destroy(linger=0)


@pytest.fixture
def notebook() -> Iterator[Notebook]:
    one = Notebook()
    yield one
    one.lifeline.close()


@pytest.fixture
def ranks(notebook: Notebook) -> Iterator[FakeRanks]:
    all_of_them = FakeRanks(notebook)
    yield all_of_them
    all_of_them.close()


def all_change(ranks: FakeRanks, names: Sequence[str], chance: random.Random) -> None:
    """These get new connections, each perhaps with the descriptor of another's old one."""
    for uuid in names:
        ranks.drop(uuid)
    for uuid in chance.sample(names, len(names)):
        ranks.connect(uuid)


def test_no_message_is_dropped_where_descriptors_are_reused(notebook: Notebook, ranks: FakeRanks) -> None:
    """Also where many connections ended and began while the notebook was stopped."""
    chance = random.Random(CONNECTS)
    names = [f"rank-{number}" for number in range(RANKS)]
    for uuid in names:
        ranks.connect(uuid)
        ranks.send(uuid, State(entered=0))
    assert notebook.has(0, names)
    made, number = RANKS, 0
    while made < CONNECTS:
        changing = chance.sample(names, chance.randint(1, RANKS))
        if chance.random() < 0.5:
            with notebook.stopped(partial(ranks.send, chance.choice(names), State(entered=number))):
                all_change(ranks, changing, chance)
        else:
            all_change(ranks, changing, chance)
        made += len(changing)
        number += 1
        for uuid in names:
            ranks.send(uuid, State(entered=number))
        assert notebook.has(number, names), sorted(set(names) - notebook.connected)


def test_what_still_comes_by_a_connection_that_was_replaced_is_dropped(notebook: Notebook, ranks: FakeRanks) -> None:
    """Where a rank takes its routing id along, libzmq 4.3.5 ends this process two seconds after the end of that one."""
    names = [f"rank-{number}" for number in range(RANKS)]
    for uuid in names:
        ranks.connect(uuid)
        ranks.send(uuid, State(entered=1))
    assert notebook.has(1, names)
    replaced = dict(notebook.lifeline._greeted)
    old = [ranks.replace(uuid) for uuid in names]
    for uuid in names:
        ranks.send(uuid, State(entered=2))
    assert notebook.has(2, names)
    for uuid, socket in zip(names, old, strict=True):
        socket.send_multipart([uuid.encode(), encode(State(entered=3))])
        socket.close(linger=1000)
    connections = notebook.lifeline._connections
    assert eventually(lambda: not any(map(connections.is_open, replaced.values())))
    assert notebook.has(2, names)


def test_messages_are_handled_without_a_look_at_each_connection(
    notebook: Notebook, ranks: FakeRanks, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks.connect("rank")
    connections, looks = notebook.lifeline._connections, list[Connection]()
    is_open = connections.is_open

    def noted(connection: Connection) -> bool:
        looks.append(connection)
        return is_open(connection)

    monkeypatch.setattr(connections, "is_open", noted)
    for number in range(10):
        ranks.send("rank", State(entered=number))
        assert notebook.has(number, ["rank"])
    looks.clear()
    for number in range(10, 20):
        ranks.send("rank", State(entered=number))
        assert notebook.has(number, ["rank"])
    assert not looks
    ranks.drop("rank")
    assert eventually(lambda: "rank" not in notebook.connected)


def test_all_ranks_that_are_gone_are_reported_even_if_one_report_fails(
    notebook: Notebook, ranks: FakeRanks, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["rank-0", "rank-1", "rank-2"]
    for uuid in names:
        ranks.connect(uuid)
        ranks.send(uuid, State(entered=1))
    assert notebook.has(1, names)
    reported, on_gone = list[str](), notebook.lifeline._on_gone

    def fails_at_first(uuid: str) -> None:
        reported.append(uuid)
        on_gone(uuid)
        if len(reported) == 1:
            raise ValueError(uuid)

    monkeypatch.setattr(notebook.lifeline, "_on_gone", fails_at_first)
    ranks.connect("waker")
    with notebook.stopped(lambda: ranks.send("waker", State(entered=1))):
        for uuid in names:
            ranks.drop(uuid)
    assert eventually(lambda: sorted(reported) == names)


def test_a_known_rank_on_an_unknown_connection_is_asked_for_its_hello(notebook: Notebook, ranks: FakeRanks) -> None:
    ranks.connect("rank")
    ranks.send("rank", State(entered=1))
    assert notebook.has(1, ["rank"])
    ranks.drop("rank")
    ranks.connect("rank", greets=False)
    ranks.send("rank", State(entered=2))
    ranks.send("rank", State(entered=3))
    assert isinstance(ranks.receive("rank"), Greet)
    ranks.greet("rank")
    ranks.send("rank", State(entered=4))
    assert notebook.has(4, ["rank"])


def test_one_that_cannot_listen_leaves_nothing_open(notebook: Notebook) -> None:
    """A ZeroMQ context with open sockets blocks the process when the garbage collector finds it."""
    code = f"""
import gc, zmq
from allranks.lifeline.head_end import Lifeline
try:
    Lifeline("secret", url={notebook.lifeline.url!r})
except zmq.ZMQError as error:
    error.itself = error
    print(error)
gc.collect()
print("goes on")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=WITHIN)
    assert "Address already in use" in done.stdout
    assert done.stdout.endswith("goes on\n"), done.stderr


@pytest.fixture
def wakes(notebook: Notebook, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What is written to wake the lifeline's thread."""
    written, write = list[bytes](), os.write

    def noted(descriptor: int, data: bytes) -> int:
        if descriptor == notebook.lifeline._wake_write:
            written.append(data)
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", noted)
    return written


def connected(notebook: Notebook, ranks: FakeRanks, names: Sequence[str]) -> None:
    for uuid in names:
        ranks.connect(uuid)
        ranks.send(uuid, State(entered=1))
    assert notebook.has(1, names)


def test_a_cell_for_several_ranks_wakes_the_thread_once(
    notebook: Notebook, ranks: FakeRanks, wakes: list[bytes]
) -> None:
    connected(notebook, ranks, ["a", "b", "c"])
    cell = CellRequest(number=7, count=3, options=CellOptions())
    notebook.lifeline.execute("pass", cell, {"a": Before(), "b": Before(comms=2), "c": Before(after=["x", "y"])})
    sent = {uuid: ranks.receive(uuid) for uuid in ("a", "b", "c")}
    assert all(isinstance(each, RunCell) and each.code == "pass" and each.cell["number"] == 7 for each in sent.values())
    assert [(each.cell["comms"], each.after) for each in sent.values() if isinstance(each, RunCell)] == [
        (0, ()),
        (2, ()),
        (0, ("x", "y")),
    ]
    assert len(wakes) == 1


def test_a_cell_is_encoded_once_for_ranks_that_get_the_same_message(
    notebook: Notebook, ranks: FakeRanks, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["a", "b", "c", "d"]
    connected(notebook, ranks, names)
    encoded = list[msgspec.Struct]()

    def noted(message: msgspec.Struct) -> bytes:
        encoded.append(message)
        return encode(message)

    monkeypatch.setattr(head_end, "encode", noted)
    before = {"a": Before(), "b": Before(2, ["x"]), "c": Before(), "d": Before(2, ["x"])}
    notebook.lifeline.execute("pass", CellRequest(number=7, count=3, options=CellOptions()), before)
    sent = [ranks.receive(uuid) for uuid in names]
    assert [(each.cell["comms"], each.after) for each in sent if isinstance(each, RunCell)] == [
        (0, ()),
        (2, ("x",)),
        (0, ()),
        (2, ("x",)),
    ]
    assert len([each for each in encoded if isinstance(each, RunCell)]) == 2


def test_what_the_thread_itself_sends_does_not_wake_it(
    notebook: Notebook, ranks: FakeRanks, wakes: list[bytes]
) -> None:
    connected(notebook, ranks, ["rank"])

    def answer(uuid: str, _event: Event, _buffers: Sequence[Buffer]) -> None:
        notebook.lifeline.tell(uuid, Register())

    notebook.lifeline._on_message = answer
    ranks.send("rank", State(entered=2))
    assert isinstance(ranks.receive("rank"), Register) and not wakes


def test_acknowledgements_wait_and_only_the_last_is_sent(
    notebook: Notebook, ranks: FakeRanks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head_end, "ACKNOWLEDGED_WITHIN", 3600.0)
    connected(notebook, ranks, ["rank"])
    for number in (1, 2):
        notebook.lifeline.tell("rank", Acknowledge(number))
    notebook.lifeline.tell("rank", Register())
    assert isinstance(ranks.receive("rank"), Register)
    monkeypatch.undo()
    notebook.lifeline.tell("rank", Acknowledge(3))
    assert ranks.receive("rank") == Acknowledge(3)


def test_acknowledgements_wait_in_the_order_in_which_they_are_due(
    notebook: Notebook, ranks: FakeRanks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first that is not due ends the search."""
    monkeypatch.setattr(head_end, "ACKNOWLEDGED_WITHIN", 3600.0)
    connected(notebook, ranks, ["one", "other"])
    for uuid, cell in (("one", 1), ("other", 1), ("one", 2)):
        notebook.lifeline.tell(uuid, Acknowledge(cell))
    assert [*notebook.lifeline._acknowledged] == [b"other", b"one"]


def test_acknowledgements_that_wait_are_sent_at_the_end(
    notebook: Notebook, ranks: FakeRanks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, the next notebook would show the cell again."""
    monkeypatch.setattr(head_end, "ACKNOWLEDGED_WITHIN", 3600.0)
    connected(notebook, ranks, ["rank"])
    notebook.lifeline.tell("rank", Acknowledge(1))
    notebook.lifeline.close()
    assert ranks.receive("rank") == Acknowledge(1)
