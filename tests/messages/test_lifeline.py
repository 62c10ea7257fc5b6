"""The side channel of notebook and ranks: strangers are not heard, junk does no harm, connections come back."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
import zmq

from allranks import Cluster
from allranks.messages.events import Answered, Hello, Memory, State, Unblocked
from allranks.messages.wire import encode
from tests.waiting import comes_true, eventually


@pytest.fixture
def stranger(ring2: Cluster) -> Iterator[Any]:
    """Connects to the notebook's end and knows the public key of its encryption, but not the cluster's secret."""
    context = zmq.Context()

    def connect(*, encrypted: bool = True) -> zmq.Socket[bytes]:
        each = context.socket(zmq.DEALER)
        each.setsockopt(zmq.LINGER, 0)
        if encrypted:
            each.curve_serverkey = public_key(ring2)
            each.curve_publickey, each.curve_secretkey = zmq.curve_keypair()
        each.connect(url(ring2))
        return each

    yield connect
    context.destroy(linger=0)


def url(cluster: Cluster) -> str:
    assert cluster._live.ranks is not None
    return cluster._live.ranks.lifeline.url


def public_key(cluster: Cluster) -> bytes:
    ranks = cluster._live.ranks
    assert ranks is not None
    return ranks.lifeline.keys[0].encode()


def works(cluster: Cluster) -> None:
    assert cluster.run("mx.distributed.all_sum(mx.array(1)).item()")[1].value == 2
    assert eventually(lambda: cluster.complete("mx.distributed.all_su", 21) is not None)


def uuid(cluster: Cluster, rank: int) -> str:
    assert cluster._live.ranks is not None
    return cluster._live.ranks.monitor.ranks[rank].uuid


def ignored(peer: zmq.Socket[bytes], ring2: Cluster) -> None:
    """Nothing is answered, while the cluster's own messages go to and fro."""
    works(ring2)
    assert not peer.poll(200)


def test_it_listens_on_loopback_only(ring2: Cluster) -> None:
    port = int(url(ring2).rpartition(":")[2])
    listening = {c.laddr.ip for c in psutil.Process().net_connections("tcp") if c.laddr.port == port and not c.raddr}
    assert listening == {"127.0.0.1"}


@pytest.mark.parametrize("token", ["", "wrong", "0" * 64, None, 7, ["a"], "täxt"])
def test_a_stranger_without_the_secret_is_ignored(token: Any, ring2: Cluster, stranger: Any) -> None:
    before = ring2.snapshot
    peer = stranger()
    hello = {
        "event": "hello",
        "token": token,
        "rank": 0,
        "pid": 1,
        "host": "x",
        "ready": True,
        "cell": 0,
        "open": False,
    }
    for name in (b"stranger", uuid(ring2, 0).encode()):
        peer.send_multipart([name, msgspec.msgpack.encode(hello)])
    peer.send_multipart([b"stranger", encode(Unblocked(1, None, broke=True))])
    ignored(peer, ring2)
    assert [view.pid for view in ring2.snapshot.ranks] == [view.pid for view in before.ranks]
    assert ring2.state == "whole"


def test_a_stranger_without_encryption_does_not_get_in(ring2: Cluster, stranger: Any) -> None:
    peer = stranger(encrypted=False)
    with suppress(zmq.Again):  # the connection may have been refused already, and a send would wait for another
        peer.send_multipart([b"stranger", encode(Hello("", 0, 1, "x", True, 0, False))], zmq.NOBLOCK)
    ignored(peer, ring2)


@pytest.mark.slow
def test_a_stranger_may_not_take_a_ranks_name(ring2: Cluster, stranger: Any) -> None:
    """It is asked for the secret, and the rank is not cut off."""
    peer = stranger()
    peer.send_multipart([uuid(ring2, 0).encode(), encode(State(memory=Memory(rss=666)))])
    assert not comes_true(ring2, lambda now: now.ranks[0].rss == 666, 1.0)
    peer.close()
    assert ring2.run("rank", timeout=60)[0].value == 0
    works(ring2)


JUNK = [
    [b""],
    [b"\xff\xfe no message"],
    [msgspec.msgpack.encode([])],
    [msgspec.msgpack.encode(7)],
    [msgspec.msgpack.encode(None)],
    [msgspec.msgpack.encode({})],
    [msgspec.msgpack.encode({"event": 7})],
    [msgspec.msgpack.encode({"event": "no_such_word"})],
    [msgspec.msgpack.encode({"event": "answered"})],
    [encode(Answered(1, b""))],
    [encode(State())],
    [b'{"event": "hello"}'],
    [b"", b"", b""],
    [encode(Hello("", 0, 1, "x", True, 0, False)), b"x" * 1_000_000],
]


@pytest.mark.parametrize("frames", JUNK, ids=lambda frames: str(frames[0][:20]))
def test_junk_of_a_stranger_is_survived(frames: list[bytes], ring2: Cluster, stranger: Any) -> None:
    peer = stranger()
    peer.send_multipart(frames)
    peer.send_multipart([b"junk", *frames])
    ignored(peer, ring2)


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 5000, secrets.token_bytes(5000)])
def test_bytes_that_are_no_zeromq_are_survived(data: bytes, ring2: Cluster) -> None:
    with socket.create_connection(("127.0.0.1", int(url(ring2).rpartition(":")[2])), timeout=60) as raw:
        raw.sendall(data)
        works(ring2)


def connection_of(cluster: Cluster, rank: int) -> str:
    """Python to run on a rank: shut the lifeline's own TCP connection down, from inside."""
    port = int(url(cluster).rpartition(":")[2])
    return f"""
import os, socket, stat
if rank == {rank}:
    for name in os.listdir("/proc/self/fd"):
        try:
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as each:
                if each.family == socket.AF_INET and each.getpeername()[1] == {port}:
                    each.shutdown(socket.SHUT_RDWR)
                    dropped = True
        except OSError:
            pass
"""


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="finds the connection in /proc")
def test_a_dropped_connection_comes_back_and_nothing_is_lost(ring2: Cluster, tmp_path: Path) -> None:
    """The cell goes on while the connection is gone; all that was printed meanwhile arrives, once and in order."""
    cell = ring2.begin(
        "print('before')\n" + connection_of(ring2, 1) + "for i in range(1000):\n    print('line', i)\nrank * 5"
    )
    result = cell.finish(60)
    assert result.ok
    for rank in (0, 1):
        assert result[rank].stdout == "before\n" + "".join(f"line {i}\n" for i in range(1000))
        assert result[rank].value == rank * 5
    assert ring2.pull("dropped", ranks=1) == [True]
    assert comes_true(ring2, lambda now: all(rank.state == "idle" for rank in now.ranks), 60)
    assert ring2.state == "whole"
    works(ring2)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="finds the connection in /proc")
def test_connections_may_drop_again_and_again(ring2: Cluster) -> None:
    for _ in range(5):
        assert ring2.run(connection_of(ring2, 0) + "rank", timeout=60)[1].value == 1
    works(ring2)


def test_death_is_known_long_before_any_heartbeat(ring2: Cluster) -> None:
    pid = ring2.snapshot.ranks[0].pid
    assert pid is not None
    began = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    assert comes_true(ring2, lambda now: now.ranks[0].state == "dead", 60)
    # Half a second is promised, and milliseconds are usual; a machine busy with other things gets more.
    assert time.monotonic() - began < 60.0
    assert ring2.state == "broken"


@pytest.mark.slow
@pytest.mark.mpi
def test_death_of_an_mpi_rank_is_known_as_soon(mpi2: Cluster) -> None:
    pid = mpi2.snapshot.ranks[1].pid
    assert pid is not None
    began = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    assert comes_true(mpi2, lambda now: now.ranks[1].state == "dead", 60)
    assert time.monotonic() - began < 60.0


def test_the_secret_is_in_no_process_argument_or_environment(ring2: Cluster) -> None:
    assert ring2._live.ranks is not None
    secret = ring2._live.ranks.settings.token
    for view in ring2.snapshot.ranks:
        process = psutil.Process(view.pid)
        for each in (process, *process.parents()[:2]):
            assert not any(secret in word for word in each.cmdline())
        assert secret not in json.dumps(process.environ())


@pytest.mark.slow
def test_an_agent_that_stumbles_goes_on(ring2: Cluster) -> None:
    """Whatever raises in its thread: the rank still takes cells, tells its state and says what went wrong."""
    ring2.run(
        "from allranks.rank.process.engine import RankEngine\n"
        "meters = RankEngine.instance().agent.meters\n"
        "meters.memory = lambda: 1 / 0",
        ranks=0,
    ).check()
    for i in range(3):
        assert ring2.run(f"import asyncio\nawait asyncio.sleep(0.5)\n{i}", timeout=60)[0].value == i
    ring2.run("del meters.memory", ranks=0).check()
    works(ring2)
    assert ring2.state == "whole"
