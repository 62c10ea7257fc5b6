"""Descriptors that are kept for an abort: user code that has used up all others could not be unblocked.

An abort needs sockets (see `placeholders`), joining the next world too, and a report reads files of ``/proc``.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

COUNT = 32
"""At the least; see `Reserve.keep_for`."""


class Reserve:
    """Open descriptors of ``/dev/null``, from the first time they were lent."""

    def __init__(self) -> None:
        self._held: list[int] = []
        self._lent, self._count = 0, COUNT
        self._lock = threading.RLock()

    def keep_for(self, sockets: int) -> None:
        """Have enough for an abort of a world of so many sockets: two for each, and some for what is read meanwhile."""
        self._count = max(COUNT, 2 * sockets + 12)

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Within, as many descriptors more are free; afterwards as many are held as the process can open."""
        with self._lock:
            self._lent += 1
            while self._held:
                os.close(self._held.pop())
        try:
            yield
        finally:
            with self._lock:
                self._lent -= 1
                if not self._lent:
                    self._hold()

    def _hold(self) -> None:
        try:
            while len(self._held) < self._count:
                self._held.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:  # the process is at its limit
            pass


def is_at_limit(error: OSError) -> bool:
    """Whether there was no descriptor left, of this process or of the machine."""
    return error.errno in (errno.EMFILE, errno.ENFILE)
