"""Call a function before SIGTERM ends the process, even while its main thread is blocked in C code.

Python runs signal handlers in the main thread only. But for each signal, the interpreter at once writes a byte to a
descriptor (`signal.set_wakeup_fd`). Another thread can read it, unless an event loop already uses the descriptor.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Callable
from functools import partial
from types import FrameType


def before_sigterm(call: Callable[[], None]) -> None:
    """On SIGTERM, call `call` and then end the process; does nothing if SIGTERM is already handled or ignored.

    Called in the main thread.
    """
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return
    came, wake = os.pipe()
    os.set_blocking(wake, False)
    used = signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    watched = used == -1
    if not watched:  # an event loop uses the descriptor for its own signals
        signal.set_wakeup_fd(used)

    def handle(_number: int, _frame: FrameType | None) -> None:
        if not watched:
            _end(call)

    def watch() -> None:
        while signals := os.read(came, 64):
            if signal.SIGTERM in signals and signal.getsignal(signal.SIGTERM) is handle:
                _end(call)

    def forget() -> None:
        """Undo `before_sigterm` in a forked child, which shares the pipe and holds no resources."""
        if watched:
            signal.set_wakeup_fd(-1)
        if signal.getsignal(signal.SIGTERM) is handle:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        masked(signal.SIG_UNBLOCK)

    def masked(how: int) -> None:
        signal.pthread_sigmask(how, [signal.SIGTERM])

    signal.signal(signal.SIGTERM, handle)
    # Masked during a fork: a child that gets SIGTERM before it calls `forget` would write into the shared pipe.
    block, unblock = partial(masked, signal.SIG_BLOCK), partial(masked, signal.SIG_UNBLOCK)
    os.register_at_fork(before=block, after_in_parent=unblock, after_in_child=forget)
    threading.Thread(target=watch, name="allranks-sigterm", daemon=True).start()


def _end(call: Callable[[], None]) -> None:
    try:
        call()
    finally:
        # End by the signal, so that the parent sees the cause. In C: Python sets handlers in the main thread only.
        ctypes.CDLL(None).signal(int(signal.SIGTERM), None)
        os.kill(os.getpid(), signal.SIGTERM)
