"""Hosts are tried at an address and a port: only those that know the key are measured, and only those answer."""

from __future__ import annotations

import secrets
import socket
import threading
from contextlib import suppress

import pytest

from allranks.machine.keyed_connections import HELLO, NONCE, KeyedListener
from allranks.messages.requests import HostAt
from allranks.rank.world.try_addresses import Listening, try_all
from tests.waiting import eventually

KEY = secrets.token_bytes(32)
WITHIN = 20.0


def test_a_host_that_listens_is_reached_and_measured() -> None:
    listening = Listening(["127.0.0.1"], KEY, WITHIN)
    (port,) = listening.ports
    plain, measured = (try_all([HostAt("127.0.0.1", port)], KEY, 3.0, seconds)[0] for seconds in (0.0, 0.05))
    assert (plain.why_not, plain.rate, measured.why_not) == ("", 0.0, "")
    assert measured.rate > 1e6
    listening.stop()
    assert try_all([HostAt("127.0.0.1", port)], KEY, 3.0, 0.0)[0].why_not == "connection refused"


def test_what_does_not_answer_is_told_from_what_refuses_and_from_another() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        free = closed.getsockname()[1]
    stranger = Listening(["127.0.0.1"], secrets.token_bytes(32), WITHIN)
    with socket.socket() as full:  # its queue is full, so that it answers no connection
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        waiting = [socket.create_connection(("127.0.0.1", port), 1.0) for _ in range(1)]
        hosts = [HostAt("127.0.0.1", each) for each in (free, *stranger.ports, port)]
        assert [each.why_not for each in try_all(hosts, KEY, 0.5, 0.0)] == [
            "connection refused",
            "another machine answers there",
            "no answer within 0.5 s",
        ]
        for each in waiting:
            each.close()
    stranger.stop()


def test_a_connection_that_comes_while_a_listener_closes_is_ended() -> None:
    listener = KeyedListener(["127.0.0.1"], KEY, lambda _: None)
    listener.close()
    with socket.create_server(("127.0.0.1", 0)) as late, socket.create_connection(late.getsockname(), 3.0) as other:
        listener._take(late)  # the accept that was under way
        other.settimeout(WITHIN)
        assert other.recv(1000) == b""


@pytest.mark.parametrize("said", [b"", bytes(64), KEY * 2, bytes(100_000)], ids=["nothing", "zeros", "key", "much"])
def test_a_stranger_gets_no_more_than_a_nonce(said: bytes) -> None:
    listening = Listening(["127.0.0.1"], KEY, WITHIN)
    received = b""
    # An error may take away what was sent before, or come first: the listener closes while more is sent.
    with socket.create_connection(("127.0.0.1", listening.ports[0]), 3.0) as stranger, suppress(OSError):
        stranger.sendall(said)
        stranger.shutdown(socket.SHUT_WR)
        while data := stranger.recv(1000):
            received += data
    assert len(received) <= len(HELLO) + NONCE
    listening.stop()


def test_the_key_is_never_sent() -> None:
    """A listener that does not know it receives a proof, which is of no use with another nonce."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(3.0)
        received = bytearray()

        def tried() -> None:
            assert try_all([HostAt("127.0.0.1", server.getsockname()[1])], KEY, 3.0, 0.0)[0].why_not

        trying = threading.Thread(target=tried)
        trying.start()
        connection, _ = server.accept()
        with connection:
            connection.settimeout(3.0)
            connection.sendall(HELLO + bytes(NONCE))
            while len(received) < 2 * NONCE and (data := connection.recv(1000)):
                received += data
        trying.join()
    assert len(received) == 2 * NONCE and KEY not in received


def test_it_stops_by_itself() -> None:
    (port,) = Listening(["127.0.0.1"], KEY, 0.2).ports
    host = HostAt("127.0.0.1", port)
    assert eventually(lambda: try_all([host], KEY, 3.0, 0.0)[0].why_not == "connection refused", 5.0)


def test_an_address_of_another_host_is_not_listened_at() -> None:
    assert Listening(["203.0.113.1"], KEY, 1.0).ports == [0]
