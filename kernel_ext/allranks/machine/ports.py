"""Free TCP ports of this host."""

from __future__ import annotations

import socket
from random import SystemRandom


def free_ports(count: int, address: str = "", among: range = range(20_000, 32_000)) -> list[int]:
    """`count` random TCP ports without a listener, by default below the range outgoing connections take theirs from.

    Random, since the ring has no handshake: a stale process on a reused port would be taken for a neighbour.
    """
    random, found = SystemRandom(), list[int]()
    while len(found) < count:
        port = random.choice(among)
        with socket.socket() as probe:
            try:
                probe.bind((address, port))
            except OSError:
                continue
        if port not in found:
            found.append(port)
    return found


def says_port_is_taken(text: str) -> bool:
    """Whether the operating system, pyzmq (27.3) or MLX's ring (0.32.4) says so: a port is another process's now."""
    return "Address already in use" in text or "bind socket" in text
