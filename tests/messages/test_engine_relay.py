"""The controller's relay: a stranger's messages are dropped, and the ones around them arrive."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from allranks import Cluster
from allranks.hosts.engine_relay import Relay

WITHIN = 60_000
"""Milliseconds until a message must have arrived."""
PEERS: list[zmq.Socket[bytes]] = []
"""Open ends of the test."""


@pytest.fixture
def relay() -> Iterator[tuple[zmq.Context[Any], dict[str, str]]]:
    context: zmq.Context[Any] = zmq.Context()

    class Here(Relay):
        context_factory = staticmethod(lambda: context)

    device: Any = Here(zmq.ROUTER, zmq.ROUTER, zmq.PUB, b"in", b"out")
    urls = {"clients": "inproc://clients", "engines": "inproc://engines", "monitor": "inproc://monitor"}
    device.bind_in(urls["clients"])
    device.bind_out(urls["engines"])
    device.bind_mon(urls["monitor"])
    device.start()
    yield context, urls
    for each in PEERS:
        each.close(linger=0)
    PEERS.clear()
    context.term()
    device.join(60)


def peer(context: zmq.Context[Any], url: str, name: bytes = b"") -> zmq.Socket[bytes]:
    each: zmq.Socket[bytes] = context.socket(zmq.DEALER)
    if name:
        each.setsockopt(zmq.IDENTITY, name)
    each.setsockopt(zmq.RCVTIMEO, WITHIN)
    each.connect(url)
    PEERS.append(each)
    return each


@pytest.mark.parametrize("side", ["clients", "engines"])
@pytest.mark.parametrize("stray", [[b""], [b"x"], [b"engine"], [b"nobody", b"x"], [b"", b"", b""]], ids=repr)
def test_a_stray_message_costs_no_other(side: str, stray: list[bytes], relay: Any) -> None:
    context, urls = relay
    client, engine = peer(context, urls["clients"], b"client"), peer(context, urls["engines"], b"engine")
    engine.send_multipart([b"client", b"ready"])
    assert client.recv_multipart() == [b"engine", b"ready"]
    for _ in range(3):
        peer(context, urls[side]).send_multipart(stray)
        client.send_multipart([b"engine", b"a", b"b"])
        assert engine.recv_multipart() == [b"client", b"a", b"b"]
        engine.send_multipart([b"client", b"answer"])
        assert client.recv_multipart() == [b"engine", b"answer"]


def of_2010(*parts: bytes) -> bytes:
    """A message as ZeroMQ spoke before it had a greeting, which it takes from anybody still."""
    more = [1] * (len(parts) - 1) + [0]
    return b"\x01\x00" + b"".join(bytes([len(part) + 1, flag]) + part for part, flag in zip(parts, more, strict=True))


@pytest.mark.parametrize("parts", [[b""], [b"x"], [b"nobody", b"x"]], ids=repr)
@pytest.mark.parametrize("side", ["client", "engine"])
def test_stray_bytes_on_the_controllers_ports_lose_no_request(side: str, parts: list[bytes], ring2: Cluster) -> None:
    assert ring2._live.ranks is not None
    info = json.loads(ring2.connection_file.read_text()) if side == "client" else ring2._live.ranks.host.engine_info
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.settimeout(60)
        stranger.connect(f"{info['interface']}:{info['mux']}".removeprefix("ipc://"))
        stranger.sendall(of_2010(*parts))
        with contextlib.suppress(OSError):
            stranger.recv(1)  # ZeroMQ has answered, or closed the connection: it has read what came
        for number in range(3):
            assert ring2.client[:].apply_async(abs, -number).get(60) == [number] * 2
