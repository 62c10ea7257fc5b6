"""File descriptors reserved for an abort, so that user code which has used up all others can still be unblocked.

An abort opens sockets (see `placeholders`), as does joining the next world. A report reads files in ``/proc``, and a
traceback reads source files.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

COUNT = 32
"""Minimum number of reserved descriptors; see `Reserve.keep_for`."""


class Reserve:
    """Holds open descriptors of ``/dev/null``, from the end of the first `lent` on."""

    def __init__(self) -> None:
        self._held: list[int] = []
        self._lent, self._count = 0, COUNT
        self._lock = threading.RLock()

    def keep_for(self, sockets: int) -> None:
        """Reserve enough to abort a world with this many sockets: two for each, and 12 for files read meanwhile."""
        self._count = max(COUNT, 2 * sockets + 12)

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Free the reserved descriptors within the context; then reserve them again, as far as the process can."""
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
    """Whether `error` means that the process or the machine has no descriptor left."""
    return error.errno in (errno.EMFILE, errno.ENFILE)
