"""Whatever bytes come, to either end of a lifeline: no thread ends, and the next cell is right."""

from __future__ import annotations

import logging
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import zmq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from allranks import Cluster
from allranks.head.state.known_rank import Rank
from allranks.head.state.monitor import Monitor
from allranks.lifeline.head_end import Lifeline
from allranks.messages.events import Event, Hello, State
from allranks.messages.host_messages import (
    DescribeCluster,
    Ended,
    HostAnswer,
    Ports,
    Present,
    RankConfig,
    Start,
    Started,
    Suspended,
    read_event,
    read_order,
    to_line,
)
from allranks.messages.requests import Request
from allranks.messages.wire import NotUnderstood, Reader, encode
from tests.waiting import eventually

BATCH, BATCHES, VARIANTS = 20, 50, 10
"""10,000 messages at each end: each that is made comes with variants in which bytes are changed."""
UUID, TOKEN = "rank-0", "secret"
many = settings(
    max_examples=BATCHES, deadline=None, database=None, suppress_health_check=list(HealthCheck), derandomize=True
)

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=20)
    | st.binary(max_size=20)
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


def kinds_of(base: type) -> list[type[Any]]:
    below: list[type[Any]] = base.__subclasses__()
    return [leaf for each in below for leaf in kinds_of(each)] or [base]


def damaged(base: type, tag: str) -> st.SearchStrategy[bytes]:
    """Messages with a known tag, whose fields are missing, unknown, or of any type."""

    def fields_of(kind: type[Any]) -> st.SearchStrategy[dict[str, Any]]:
        names = [field.name for field in msgspec.structs.fields(kind)]
        some = st.dictionaries(st.sampled_from([*names, "unknown"]), values, max_size=len(names) + 1)
        return some.map(lambda found: {tag: kind.__struct_config__.tag, **found})

    return st.sampled_from(kinds_of(base)).flatmap(fields_of).map(msgspec.msgpack.encode)


def deep(depth: int) -> bytes:
    return b"\x81\xa5event" * depth


def junk(base: type, tag: str) -> st.SearchStrategy[bytes]:
    nested = st.integers(1, 50_000).map(deep) | st.integers(1, 50_000).map(lambda depth: b"\x91" * depth)
    return st.binary(max_size=200) | values.map(msgspec.msgpack.encode) | damaged(base, tag) | nested


def variants(batch: list[bytes], chance: random.Random) -> Iterator[bytes]:
    for each in batch:
        yield each
        for _ in range(VARIANTS - 1):
            changed = bytearray(each or b"\x00")
            for _ in range(chance.randrange(1, 4)):
                changed[chance.randrange(len(changed))] = chance.randrange(256)
            yield bytes(changed)


@pytest.fixture
def monitor() -> Monitor:
    monitor = Monitor("junk")
    monitor.put(Rank(0, "localhost", UUID, ready=True))
    return monitor


@pytest.fixture
def head(monitor: Monitor, caplog: pytest.LogCaptureFixture) -> Iterator[Lifeline]:
    caplog.set_level(logging.CRITICAL, "allranks")  # ten thousand lines are no use to anybody
    lifeline = Lifeline(TOKEN)
    lifeline.listen(on_message=monitor.receive, on_gone=monitor.disconnected)
    yield lifeline
    lifeline.close()


@pytest.fixture
def connect(head: Lifeline) -> Iterator[Any]:
    context = zmq.Context()

    def peer() -> zmq.Socket[bytes]:
        each = context.socket(zmq.DEALER)
        each.setsockopt(zmq.SNDHWM, 0)
        each.curve_serverkey = head.keys[0].encode()
        each.curve_publickey, each.curve_secretkey = zmq.curve_keypair()
        each.connect(head.url)
        return each

    yield peer
    context.destroy(linger=0)


def test_junk_of_a_rank_and_of_strangers_is_survived(head: Lifeline, monitor: Monitor, connect: Any) -> None:
    rank, stranger, name = connect(), connect(), UUID.encode()
    hello = encode(Hello(TOKEN, 0, 4711, "localhost", True, 0, False))
    rank.send_multipart([name, hello])
    known = monitor.ranks[0]
    assert monitor.wait(lambda: known.connected, 60)

    @many
    @given(
        st.lists(junk(Event, "event"), min_size=BATCH, max_size=BATCH),
        st.lists(st.binary(max_size=9), max_size=3),
        st.randoms(use_true_random=False),
    )
    def send(batch: list[bytes], buffers: list[bytes], chance: random.Random) -> None:
        for each in variants(batch, chance):
            rank.send_multipart([name, each, *buffers])
            stranger.send_multipart([chance.choice([name, b"stranger"]), each, *buffers])

    send()
    rank.send_multipart(
        [name, hello]
    )  # what it sent may have passed for a word that it has ended, or stands in a debugger
    rank.send_multipart([name, encode(State(entered=123_456))])
    assert monitor.wait(lambda: known.report.entered == 123_456, 120)
    assert head._thread.is_alive()
    monitor.snapshot()


def test_junk_to_a_rank_is_survived(ring2: Cluster) -> None:
    assert ring2._live.ranks is not None
    lifeline, uuid = ring2._live.ranks.lifeline, ring2._live.ranks.monitor.ranks[1].uuid
    reader = Reader(Request)

    def harmless(data: bytes) -> bool:
        """What is no request at all: those that are one are carried out, and one of them is `Exit`."""
        try:
            reader.read(data)
        except NotUnderstood:
            return True
        return False

    @many
    @given(st.lists(junk(Request, "request"), min_size=BATCH, max_size=BATCH), st.randoms(use_true_random=False))
    def send(batch: list[bytes], chance: random.Random) -> None:
        for each in filter(harmless, variants(batch, chance)):
            lifeline._outbox.append(([uuid.encode(), each], None))
        lifeline._wake()

    send()
    result = ring2.run("mx.distributed.all_sum(mx.array(rank)).item()", timeout=60).check()
    assert [result[rank].value for rank in (0, 1)] == [1, 1]
    assert eventually(lambda: ring2.complete("mx.distributed.all_su", 21) is not None)
    assert any(thread.name == "allranks-lifeline" for thread in threading.enumerate())


def test_a_message_that_does_not_fit_is_named_with_its_sender_and_field(
    head: Lifeline, monitor: Monitor, connect: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "allranks")
    rank = connect()
    hello = encode(Hello(TOKEN, 0, 4711, "localhost", True, 0, False))
    for each in (hello, msgspec.msgpack.encode({"event": "state", "line": "three"}), encode(State(entered=5))):
        rank.send_multipart([UUID.encode(), each])
    assert monitor.wait(lambda: monitor.ranks[0].report.entered == 5, 60)
    [record] = caplog.records
    assert record.message == f"a message of {UUID} was dropped: Expected `int | null`, got `str` - at `$.line`"


def test_every_type_travels() -> None:
    """A type that could not be told from another, or not be decoded, would fail here and not on a user's machine."""
    assert Reader(Event).read(encode(State(cpu=float("inf")))) == State(cpu=float("inf"))
    for base in (Event, Request):
        tags = [kind.__struct_config__.tag for kind in kinds_of(base)]
        assert len(set(tags)) == len(tags) > 15


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"Last login: Fri Nov 20",
        b"7",
        b"null",
        b'{"type": "Started"}',
        b'{"type": "Started", "body": {"rank": "one", "pid": 5}}',
        b'{"type": "Start", "body": {"ranks": []}}',
        b'{"type": ["Started"], "body": {}}',
        b"[" * 100_000,
        b'{"type": "Prepared", "body": {"directory": 5}}',
    ],
    ids=lambda line: str(line[:30]),
)
def test_what_is_no_event_of_a_host_is_told_from_one(line: bytes) -> None:
    with pytest.raises(NotUnderstood):
        read_event(line)


def test_orders_and_events_of_a_host_come_as_they_were() -> None:
    config = RankConfig(0, "mac1", "uuid", "/tmp/x", "token", "tcp://a", "key", {"mux": 5}, env={"A": "1"})
    present = Present({"rank 0": 5}, [Ended("rank 1", 6, 0, False)], "abc", 3, [5])
    assert read_order(to_line(Start([config]))) == (Start([config]), None, None)
    described = DescribeCluster(
        "id", "main", "ring", 1, ["mac1"], {}, "mac1", "process 7 on laptop", "python", {"rank 0": 5}
    )
    assert read_order(to_line(described)) == (described, None, None)
    assert read_order(to_line(Ports(3), 7, ("abc", 9))) == (Ports(3), 7, ("abc", 9))
    for event in (
        Started(0, 5),
        Suspended(5, True),
        present,
        Ended("rank 0", 5, -9, False, "log"),
        HostAnswer(7, [1, 2]),
    ):
        assert read_event(to_line(event)) == event


def test_a_host_process_needs_the_standard_library_alone() -> None:
    """One that lacks a package says which: it must get that far."""
    lacking = "zmq", "msgspec", "numpy", "psutil", "mlx", "ipyparallel", "IPython"
    code = f"import sys\nsys.modules.update(dict.fromkeys({lacking}))\nimport allranks.host_process.host"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
