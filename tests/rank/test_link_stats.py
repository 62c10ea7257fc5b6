"""What a rank reads of its own sockets is what the kernel counted."""

from __future__ import annotations

import select
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from allranks.rank.metrics import link_stats
from allranks.rank.metrics.link_stats import LinkStats, read
from tests.waiting import eventually

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="written for macOS too, but not run there")

Pair = tuple[socket.socket, socket.socket, int]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Both ends of a TCP connection on loopback, and the port that was listened on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        near = socket.create_connection(("127.0.0.1", port))
        far, _ = server.accept()
    yield near, far, port
    near.close()
    far.close()


def send(source: socket.socket, target: socket.socket, nbytes: int) -> None:
    left = nbytes
    while left:
        sent = source.send(b"x" * min(left, 50_000))
        got = 0
        while got < sent:
            got += len(target.recv(65536))
        left -= sent
    assert eventually(lambda: (state := read(source.fileno())) is not None and not state.queued), "acknowledged"


def test_bytes_are_those_sent(pair: Pair) -> None:
    near, far, port = pair
    wire = LinkStats()
    wire.join([near.fileno()], mine=[1], neighbours={7: [port]})
    (before,) = wire.read()
    assert before.peer == 7
    assert before.connections == 1
    assert before.interface == "lo"
    assert before.nominal is None, "loopback claims no speed"
    send(near, far, 1_000_000)
    (after,) = wire.read()
    assert after.sent - before.sent == 1_000_000
    assert after.rate > 0
    assert 0 < after.rtt < 1


def test_the_end_that_was_connected_to_is_known_by_its_own_port(pair: Pair) -> None:
    near, far, port = pair
    wire = LinkStats()
    wire.join([far.fileno()], mine=[port], neighbours={3: [1], 5: [2]})
    before = wire.read()
    send(far, near, 200_000)
    (after,) = wire.read()
    assert [link.peer for link in before] == [3], "the left neighbour, which is named first, connects"
    assert after.sent - before[0].sent == 200_000


def test_two_ranks_are_each_others_left_and_right(pair: Pair) -> None:
    near, far, port = pair
    wire = LinkStats()
    wire.join([near.fileno(), far.fileno()], mine=[port], neighbours={1: [port]})
    (link,) = wire.read()
    assert (link.peer, link.connections) == (1, 2)


def stalled(wire: LinkStats) -> float | None:
    sum(range(10_000))  # the thread runs, as a ring's does while a transfer is pending
    return wire.stalled(wire.read())


def test_nothing_arrives_while_a_transfer_is_pending(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    near, far, port = pair
    wire = LinkStats()
    wire.join([near.fileno()], mine=[], neighbours={1: [port]}, threads=[threading.get_native_id()])
    monkeypatch.setattr(link_stats, "ASLEEP_AFTER", 60.0)  # this process may stand still for seconds
    assert stalled(wire) is None, "it takes two readings"
    assert stalled(wire) is not None
    time.sleep(0.3)
    assert (stalled(wire) or 0.0) >= 0.3
    send(near, far, 1000)
    assert stalled(wire) == 0.0
    time.sleep(0.3)
    assert (stalled(wire) or 0.0) >= 0.3
    monkeypatch.setattr(link_stats, "ASLEEP_AFTER", 0.1)
    time.sleep(0.3)
    assert stalled(wire) == 0.0, "the process was stopped"
    wire.leave()
    assert stalled(wire) is None


def _sleeps(thread: int) -> bool:
    return Path(f"/proc/self/task/{thread}/stat").read_text().rpartition(")")[2].split()[0] == "S"


def test_a_link_at_rest_is_not_stalled(pair: Pair) -> None:
    """The ring's threads sleep: no transfer is pending, however long nothing has moved."""
    near, _far, port = pair
    over, wire = threading.Event(), LinkStats()
    thread = threading.Thread(target=over.wait)
    thread.start()
    assert eventually(lambda: _sleeps(thread.native_id or 0))
    wire.join([near.fileno()], mine=[], neighbours={1: [port]}, threads=[thread.native_id or 0])
    assert stalled(wire) is None
    for _ in range(3):
        time.sleep(0.2)
        assert stalled(wire) == 0.0
    over.set()
    thread.join()


def test_what_is_not_acknowledged_is_counted(pair: Pair) -> None:
    near, far, port = pair
    far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    near.setblocking(False)
    wire = LinkStats()
    wire.join([near.fileno()], mine=[], neighbours={1: [port]})
    assert wire.read()[0].queued == 0
    while select.select([], [near], [], 0)[1]:
        near.send(b"x" * 65_536)
    assert wire.read()[0].queued > 10_000


def test_a_closed_link_is_unknown_and_harmless(pair: Pair) -> None:
    near, _far, port = pair
    wire = LinkStats()
    wire.join([near.fileno()], mine=[], neighbours={1: [port]})
    near.close()
    assert wire.read() == []
    wire.leave()
    assert wire.read() == []
    assert read(10_000) is None


def test_what_is_no_connection_is_left_alone(pair: Pair) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as other:
        wire = LinkStats()
        wire.join([server.fileno(), other.fileno(), 0], mine=[server.getsockname()[1]], neighbours={1: [2]})
        assert wire.read() == []
        assert server.fileno() >= 0 and other.fileno() >= 0
        server.getsockname()  # still open
