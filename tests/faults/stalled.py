"""A link on which nothing arrives, made from inside a rank: the kernel drops all that comes for the ring's sockets.

A packet filter on a socket (``SO_ATTACH_FILTER``) does what a firewall does that forgets a connection: what the peer
sends is not acknowledged, and is sent again and again. It needs no rights.
"""

from __future__ import annotations

SOCKETS = """
import ctypes, os, socket, struct
def tcp_sockets():
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            each = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue
        try:
            if each.family == socket.AF_INET and each.type == socket.SOCK_STREAM:
                found[each.getsockname()[1], each.getpeername()[1]] = each
        except OSError:
            pass
    return found
def ring_sockets():
    return [each for ports, each in tcp_sockets().items() if any(20000 <= port < 32000 for port in ports)]
def deafen(sockets):
    refuse = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))  # BPF: return 0 bytes of each packet
    for each in sockets:
        each.setsockopt(socket.SOL_SOCKET, 26, struct.pack("HL", 1, ctypes.addressof(refuse)))  # SO_ATTACH_FILTER
def hear(sockets):
    for each in sockets:
        each.setsockopt(socket.SOL_SOCKET, 27, 0)  # SO_DETACH_FILTER
def slow(sockets, rate):
    for each in sockets:
        each.setsockopt(socket.SOL_SOCKET, 47, rate)  # SO_MAX_PACING_RATE, bytes a second
"""
"""Defines these functions on a rank."""

STALL = SOCKETS + "if rank == 1: deafen(ring_sockets())\ndel tcp_sockets, ring_sockets, deafen, hear, slow\n"
"""Rank 1 receives nothing any more."""
