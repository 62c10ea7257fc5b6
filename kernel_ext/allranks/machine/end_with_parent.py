"""Ends a process with its parent, however the parent ends, even while the process is blocked in a library."""

from __future__ import annotations

import os
import signal
import threading

_STDIN = 0


def end_with_parent(grace: float) -> None:
    """When standard input, a pipe from the parent, closes, interrupt this process and end it after `grace` seconds.

    With a `grace` of 0, end it at once.
    """

    def watch() -> None:
        while os.read(_STDIN, 1 << 10):
            pass
        if grace:
            os.kill(os.getpid(), signal.SIGINT)
            threading.Event().wait(grace)
        os._exit(1)

    threading.Thread(target=watch, name="end with parent", daemon=True).start()
