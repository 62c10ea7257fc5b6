"""all_sum over a link of 200 Mbit/s, by number of connections, against one plain TCP stream over the same link.

Both figures are payload, in Mbit/s (10⁶ bits), that one host sends. In a ring of n ranks each rank sends 2(n-1)/n times
the array in a call, whichever way round, so that this is busbw as `bench` measures it, whatever the connections. MLX's
ring sends one way round with one connection, and both ways with more; with one network interface a host, both ways
leave through it. Headers are left out on both sides. The stream is ``sendall`` of 1 MiB at a time from one host to the
other, in one direction, timed by the receiver from the first byte. Each host's own sending is held at the rate (tbf).
"""

from __future__ import annotations

import sys

from allranks import Cluster
from tests.hosts.lab import Hosts, forbidden, made, missing

from ._table import Bar, Row, Table

MBIT = 200
NBYTES = 16 << 20
SECONDS = 4.0
CONNECTIONS = (1, 2, 4)
LEAST = 0.85

RECEIVE = """
import socket, sys, time
with socket.create_server((sys.argv[1], 0)) as server:
    print(server.getsockname()[1], flush=True)
    stream, _ = server.accept()
    got, first = 0, 0.0
    while data := stream.recv(1 << 20):
        first = first or time.perf_counter()
        got += len(data)
    print(got / (time.perf_counter() - first), flush=True)
"""
SEND = """
import socket, sys, time
stream, block = socket.create_connection((sys.argv[1], int(sys.argv[2]))), bytes(1 << 20)
until = time.perf_counter() + float(sys.argv[3])
while time.perf_counter() < until:
    stream.sendall(block)
"""


def measure(repeat: int | None, *, quick: bool = False) -> Table:
    """Rounds of the stream and of each number of connections in turn."""
    table = Table("link", f"all_sum of {NBYTES >> 20} MiB over a link of {MBIT} Mbit/s; higher is better")
    if reason := missing() or forbidden():
        table.notes.append(f"Not measured here: {reason}.")
        return table
    rounds, seconds = (repeat or 2, 0.5) if quick else (repeat or 5, SECONDS)
    ring: dict[int, list[float]] = {connections: [] for connections in CONNECTIONS}
    stream: list[float] = []
    with made(2) as hosts:
        for name in hosts.names:
            hosts.slow(name, MBIT)
        with Cluster(hosts=hosts.names, backend="ring") as cluster:
            for _ in range(rounds):
                stream.append(plain_stream(hosts, seconds))
                for connections in CONNECTIONS:
                    cluster.rewire(connections=connections)
                    size = NBYTES >> 4 if quick else NBYTES
                    peak = cluster.bench(("all_sum",), smallest=size, largest=size, seconds=seconds).peak
                    ring[connections].append(_mbit(peak or float("nan")))
    best = max(CONNECTIONS, key=lambda connections: sum(ring[connections]))
    for connections, figures in ring.items():
        bar = Bar("at least", LEAST) if connections == best else None
        table.rows.append(Row(f"--connections {connections}", "Mbit/s", figures, stream, "one TCP stream", bar))
    return table


def plain_stream(hosts: Hosts, seconds: float) -> float:
    """Mbit/s from the first host to the second."""
    receiver = hosts.begin(hosts.names[1], sys.executable, "-c", RECEIVE, hosts.address(hosts.names[1]))
    with receiver:
        assert receiver.stdout is not None
        port = receiver.stdout.readline().strip()
        sent = hosts.inside(hosts.names[0], sys.executable, "-c", SEND, hosts.address("host2"), port, str(seconds))
        assert sent.returncode == 0, sent.stderr
        return _mbit(float(receiver.stdout.readline()))


def _mbit(bytes_a_second: float) -> float:
    return round(bytes_a_second * 8 / 1e6, 1)
