"""Free TCP ports of this host."""

from __future__ import annotations

import socket
from random import SystemRandom


def free_ports(count: int, address: str = "", among: range = range(20_000, 32_000)) -> list[int]:
    """`count` random TCP ports without a listener, by default below the range for outgoing connections.

    Random, since the ring has no handshake: a stale process on a reused port would be mistaken for a neighbour.
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


def says_transient(text: str) -> bool:
    """Whether a start failed for a cause that may be gone at the next attempt: a port in use, or mpirun's listener.

    mpirun (Open MPI 5.0.11) exits with 213 now and then on a busy machine, since its listener failed to start.
    Probably a network interface, for example of a VPN or of containers, was removed meanwhile: lfortran/lfortran#8610.
    """
    return says_port_is_taken(text) or "The PMIx server's listener thread failed to start" in text


def says_port_is_taken(text: str) -> bool:
    """Whether the text is an error of the system, pyzmq (27.3) or MLX's ring (0.32.4) about a port in use."""
    return "Address already in use" in text or "bind socket" in text
