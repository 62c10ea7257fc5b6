"""What allranks is compared with: ipyparallel as it comes, wired by hand."""

from __future__ import annotations

import io
import json
import logging
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any


@contextmanager
def plain_cluster(n: int, **options: Any) -> Iterator[Any]:
    """A client of ``ipyparallel.Cluster(n)`` with its defaults; ended with its engines and its controller."""
    import ipyparallel

    cluster = ipyparallel.Cluster(n=n, log_level=logging.WARNING, **options)
    client = None
    try:
        with redirect_stderr(io.StringIO()):  # its progress bar
            client = cluster.start_and_connect_sync()
        yield client
    finally:
        if client is not None:
            client.close()
        cluster.stop_cluster_sync()


def join_ring(client: Any) -> list[float]:
    """Join the engines into a ring world of MLX, wired as allranks wires its own; the first ``all_sum`` of each."""
    count = len(client.ids)
    with tempfile.TemporaryDirectory() as folder:
        hostfile = Path(folder, "ring.json")
        hostfile.write_text(json.dumps([[f"127.0.0.1:{port}"] for port in _free_ports(count)]))
        sums: list[float] = client[:].map_sync(_join, range(count), [count] * count, [str(hostfile)] * count)
    return sums


def _join(rank: int, size: int, hostfile: str) -> float:
    """Runs in an engine."""
    import os
    import time

    os.environ["MLX_RANK"], os.environ["MLX_HOSTFILE"] = str(rank), hostfile
    import mlx.core as mx

    if rank == size - 1:
        time.sleep(0.03)  # it connects first, and a refused connect costs the ring a second: allranks waits so too
    mx.distributed.init(strict=True, backend="ring")
    total: Any = mx.distributed.all_sum(mx.ones(10))[0].item()
    return float(total)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()
