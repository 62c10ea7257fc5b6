"""Let what is on its way over a ring come to its end, without the neighbours.

A ring whose sockets are shut down raises in two collectives, and the third that is on its way hangs indefinitely: the
threads of both sockets have ended by then (mlx 0.32.4). One evaluation of a sharded model, or of gradients array by
array, has many on their way. So each socket is replaced, under the same descriptor, by one end of a pair whose other
end takes everything and gives what `poison` says: all of them come to their end, and what they computed is invalid.
"""

from __future__ import annotations

import os
import selectors
import socket
import threading
from contextlib import suppress
from typing import Any

CHUNK = 1 << 18
"""Bytes given or taken at once; a multiple of every pattern."""
CLOSED_WITHIN = 0.05
"""Seconds until the thread notices `close`."""


class Placeholders:
    """Serves the descriptors it was given until `close`."""

    def __init__(self, pattern: bytes) -> None:
        self._pattern = pattern
        self.descriptors: list[int] = []
        self._originals: list[socket.socket] = []
        """Kept open: neighbours that are to come to their end too must not see them closed."""
        self._ends: list[socket.socket] = []
        self._closed = False
        self._thread: threading.Thread | None = None

    def take(self, descriptors: list[int]) -> None:
        """Put a source of the pattern in place of these sockets."""
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
        """From now on the descriptors are closed at their other end."""
        self._closed = True
        if self._thread is not None:
            self._thread.join()
        _shut(self._ends)

    def let_go(self) -> None:
        """From now on the neighbours see their sockets closed."""
        _shut(self._originals)

    def _serve(self, selector: selectors.BaseSelector) -> None:
        given = memoryview(self._pattern * (CHUNK // len(self._pattern)))
        with selector:
            while not self._closed:
                for key, events in selector.select(CLOSED_WITHIN):
                    end: Any = key.fileobj
                    try:
                        if events & selectors.EVENT_READ and not end.recv(CHUNK):
                            selector.unregister(end)  # MLX has closed it
                        elif events & selectors.EVENT_WRITE:
                            key.data[0] += end.send(given[key.data[0] % len(self._pattern) :])
                    except BlockingIOError:
                        pass
                    except OSError:
                        selector.unregister(end)


def _shut(sockets: list[socket.socket]) -> None:
    for each in sockets:
        with suppress(OSError):  # the other end has closed it already
            each.shutdown(socket.SHUT_RDWR)
        each.close()
