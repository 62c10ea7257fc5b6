"""Asks the user for a line, and stops asking when the answer is no longer wanted."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable

from allranks.head.state.monitor import Monitor

Read = Callable[[str], str]
"""A function like ``input``, which in a kernel asks the notebook."""


def can_ask(shell: object) -> bool:
    """Whether the user can type: in a kernel, if the front end allows it (papermill does not), else in a terminal."""
    kernel = getattr(shell, "kernel", None)
    if kernel is not None:
        return bool(getattr(kernel, "_allow_stdin", False))
    return sys.stdin is not None and sys.stdin.isatty()


def ask(read: Read, prompt: str, monitor: Monitor, over: Callable[[], bool], deadline: float | None) -> str | None:
    """Ask the user for a line; returns None once `over` returns true or the deadline (`time.monotonic`) has passed.

    `over` is evaluated whenever the monitor receives something. Raises KeyboardInterrupt on Ctrl-C. Must be called in
    the main thread.
    """
    lock, state = threading.Lock(), {"typed": False, "dropped": False}

    def watch() -> None:
        within = 1e9 if deadline is None else max(0.0, deadline - time.monotonic())
        monitor.wait(lambda: state["typed"] or over(), within)
        with lock:
            if not state["typed"]:
                state["dropped"] = True
                # `input` blocks in C code of the kernel or of readline, which only a signal can interrupt.
                signal.pthread_kill(main, signal.SIGINT)

    main = threading.main_thread().ident or 0
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        threading.Thread(target=watch, name="allranks-prompt", daemon=True).start()
        text = read(prompt)
        with lock:
            state["typed"] = True
        if state["dropped"]:
            time.sleep(0.05)  # the signal is on its way
        return None if state["dropped"] else text
    except KeyboardInterrupt:
        if state["dropped"]:
            return None
        raise
    finally:
        with lock:
            state["typed"] = True
        with monitor.changed:
            monitor.changed.notify_all()
        signal.signal(signal.SIGINT, before)
