"""Log in to several hosts at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from allranks.errors import CannotStart
from allranks.hosts.host_end import ConnectionInfo, OnEvent
from allranks_backends.plan import Host

from .interpreter import Interpreter
from .remote import READY_WITHIN, RemoteHost


def reach(
    hosts: Sequence[Host],
    *,
    python: Callable[[Host], Interpreter],
    engine_info: ConnectionInfo,
    lifeline_url: str,
    on_event: Callable[[str], OnEvent],
    forks: bool = True,
) -> list[RemoteHost]:
    """Log in to all `hosts` at once; returns when each can start ranks. Raises one CannotStart for all failures."""
    if not hosts:
        return []
    ends: list[RemoteHost] = []
    failures: list[CannotStart] = []
    try:
        for host in hosts:
            end = RemoteHost.begin(
                host,
                python=python(host),
                engine_info=engine_info,
                lifeline_url=lifeline_url,
                on_event=on_event(host.name),
                forks=forks,
            )
            ends.append(end)
        deadline = time.monotonic() + READY_WITHIN
        for end in ends:
            try:
                end.ready(deadline)
            except CannotStart as error:
                failures.append(error)
        if failures:
            causes = [cause for error in failures for cause in error.causes]
            raise CannotStart("\n".join(map(str, failures)), causes=causes)
    except BaseException as error:  # including Ctrl-C, and OSError when processes or descriptors run out
        for end in ends:
            threading.Thread(target=end.end).start()  # not daemons, so that a script that exits now still cleans up
        for end in ends:
            end.wait_end()
        if isinstance(error, FileNotFoundError):
            raise CannotStart("ssh was not found on this machine; ranks on other hosts need it.") from None
        if isinstance(error, OSError):
            raise CannotStart(f"ssh cannot be started on this machine: {error.strerror}.") from None
        raise
    return ends
