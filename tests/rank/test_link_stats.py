"""What a rank reads of its own sockets is what the kernel counted."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Iterator

import pytest

from allranks.rank.metrics.link_stats import LinkStats, read

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
    time.sleep(0.05)  # the last acknowledgement


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
