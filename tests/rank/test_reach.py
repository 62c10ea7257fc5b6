"""Hosts are tried at an address and a port by who knows the token, and by nobody else."""

from __future__ import annotations

import secrets
import socket

from allranks.messages.requests import HostAt
from allranks.rank.world.reach import Listening, try_all


def test_who_listens_is_reached_and_measured() -> None:
    token = secrets.token_hex(16)
    listening = Listening(["127.0.0.1"], token, 20.0)
    (port,) = listening.ports
    plain, measured = (try_all([HostAt("127.0.0.1", port)], token, 3.0, seconds)[0] for seconds in (0.0, 0.05))
    assert (plain.why_not, plain.rate, measured.why_not) == ("", 0.0, "")
    assert measured.rate > 1e6
    listening.stop()
    assert try_all([HostAt("127.0.0.1", port)], token, 3.0, 0.0)[0].why_not == "connection refused"


def test_what_does_not_answer_is_told_from_what_refuses_and_from_another() -> None:
    token = secrets.token_hex(16)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        free = closed.getsockname()[1]
    (other,) = Listening(["127.0.0.1"], secrets.token_hex(16), 20.0).ports
    with socket.socket() as full:  # its queue is full, so that it answers nobody
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        waiting = [socket.create_connection(("127.0.0.1", port), 1.0) for _ in range(1)]
        hosts = [HostAt("127.0.0.1", each) for each in (free, other, port)]
        assert [each.why_not for each in try_all(hosts, token, 0.5, 0.0)] == [
            "connection refused",
            "another machine answers there",
            "no answer within 0.5 s",
        ]
        for each in waiting:
            each.close()


def test_a_stranger_learns_nothing() -> None:
    (port,) = Listening(["127.0.0.1"], "the token", 20.0).ports
    with socket.create_connection(("127.0.0.1", port), 3.0) as stranger:
        stranger.sendall(b"no token!")
        assert stranger.recv(1) == b""


def test_an_address_of_another_host_is_not_listened_at() -> None:
    assert Listening(["203.0.113.1"], "token", 1.0).ports == [0]
