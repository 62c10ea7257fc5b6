"""A port that was free when it was chosen may be another process's a moment later: who says so is understood."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from allranks.machine.tcp_ports import free_ports, says_port_is_taken, says_transient

RING = "import mlx.core as mx; mx.distributed.init(strict=True, backend='ring')"


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        yield holder.getsockname()[1]


def test_python_and_zeromq_are_understood(taken: int) -> None:
    with socket.socket() as one, pytest.raises(OSError) as said:
        one.bind(("127.0.0.1", taken))
    assert says_port_is_taken(str(said.value))
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        with pytest.raises(zmq.ZMQError) as zeromq:
            context.socket(zmq.ROUTER).bind(f"tcp://127.0.0.1:{taken}")
        assert says_port_is_taken(str(zeromq.value))
    finally:
        context.destroy(linger=0)


def test_mlx_is_understood(taken: int, tmp_path: Path) -> None:
    nodes = [[f"127.0.0.1:{taken}"], [f"127.0.0.1:{free_ports(1)[0]}"]]
    (tmp_path / "hosts.json").write_text(json.dumps(nodes))
    env = {"MLX_RANK": "0", "MLX_HOSTFILE": str(tmp_path / "hosts.json")}
    ended = subprocess.run([sys.executable, "-c", RING], env=env, capture_output=True, text=True, timeout=60)
    assert ended.returncode and says_port_is_taken(ended.stderr), ended.stderr


def test_other_trouble_is_not() -> None:
    assert not says_transient("rank 1: a neighbour of rank 1 did not join in 30 s")
    assert not says_transient("ranks 0-1 ended by mpirun, which exited with code 213:\nThere are not enough slots")


def test_a_port_and_the_listener_of_mpirun_may_be_free_at_the_next_try() -> None:
    assert says_transient("rank 0: [Errno 98] Address already in use")
    assert says_transient(
        "ranks 0-1 ended by mpirun, which exited with code 213:\n"
        "The PMIx server's listener thread failed to start. We cannot\ncontinue."
    )
