"""A process that ends with its parent, however that ends, also while it waits in a library."""

from __future__ import annotations

import os
import signal
import threading

_STDIN = 0


def end_with_parent(grace: float) -> None:
    """End when standard input, a pipe of the parent's, is closed: interrupted, and at once after `grace` seconds."""

    def watch() -> None:
        while os.read(_STDIN, 1 << 10):
            pass
        if grace:
            os.kill(os.getpid(), signal.SIGINT)
            threading.Event().wait(grace)
        os._exit(1)

    threading.Thread(target=watch, name="end with parent", daemon=True).start()
