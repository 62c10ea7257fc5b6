"""Complete the collectives in flight on a ring without the neighbours.

After a shutdown of a ring's sockets, two collectives raise, and the third one in flight hangs indefinitely: the threads
of both sockets have ended by then (mlx 0.32.4). One evaluation of a sharded model, or of gradients array by array, has
many collectives in flight. So each socket is replaced, under the same descriptor, by one end of a socket pair, whose
other end receives everything and sends the pattern of `poison`. All collectives return, and their results are invalid.
"""

from __future__ import annotations

import os
import selectors
import socket
import threading
from contextlib import suppress
from typing import Any

CHUNK = 1 << 18
"""Maximum number of bytes sent or received at once; a multiple of the length of every pattern."""
CLOSED_WITHIN = 0.05
"""Maximum seconds until the thread notices `close`."""


class Placeholders:
    """Serves the descriptors passed to `take`, until `close`."""

    def __init__(self, pattern: bytes) -> None:
        self._pattern = pattern
        self.descriptors: list[int] = []
        self._originals: list[socket.socket] = []
        """The ring's own sockets, kept open: neighbours that are yet to be aborted must not see them closed."""
        self._ends: list[socket.socket] = []
        self._closed = False
        self._thread: threading.Thread | None = None

    def take(self, descriptors: list[int]) -> None:
        """Replace these sockets with sources of the pattern."""
        selector = selectors.DefaultSelector()
        self.descriptors += descriptors
        for descriptor in descriptors:
            self._originals.append(socket.socket(fileno=os.dup(descriptor)))
            ours, theirs = socket.socketpair()
            for each in (ours, theirs):
                each.setblocking(False)
            os.dup2(ours.fileno(), descriptor)
            ours.close()
            self._ends.append(theirs)
            selector.register(theirs, selectors.EVENT_READ | selectors.EVENT_WRITE, data=[0])
        self._thread = threading.Thread(target=self._serve, args=(selector,), name="allranks-drain", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving, and close our ends of the socket pairs."""
        self._closed = True
        if self._thread is not None:
            self._thread.join()
        _shut(self._ends)

    def let_go(self) -> None:
        """Close the ring's own sockets, so that the neighbours see them closed."""
        _shut(self._originals)

    def _serve(self, selector: selectors.BaseSelector) -> None:
        given = memoryview(self._pattern * (CHUNK // len(self._pattern)))
        with selector:
            while not self._closed:
                for key, events in selector.select(CLOSED_WITHIN):
                    end: Any = key.fileobj
                    try:
                        if events & selectors.EVENT_READ and not end.recv(CHUNK):
                            selector.unregister(end)  # MLX has closed its end
                        elif events & selectors.EVENT_WRITE:
                            key.data[0] += end.send(given[key.data[0] % len(self._pattern) :])
                    except BlockingIOError:
                        pass
                    except OSError:
                        selector.unregister(end)


def _shut(sockets: list[socket.socket]) -> None:
    for each in sockets:
        with suppress(OSError):  # the other end is closed already
            each.shutdown(socket.SHUT_RDWR)
        each.close()
