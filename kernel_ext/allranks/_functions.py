"""One run of an experiment that is a function: called on the live cluster, with what it records, within its time."""

from __future__ import annotations

import contextvars
import hashlib
import inspect
import threading
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ._notebooks import Outcome, show_recorded
from ._runs import plain_results
from .cluster import Cluster
from .errors import AllranksError, UsageError

STOP_EVERY = 2.0
"""Seconds between two attempts to stop a run whose time is over."""

Function = Callable[..., Mapping[str, Any] | None]
"""Called with the live cluster and the parameters it takes; returns results by name."""

_recorded: contextvars.ContextVar[dict[str, Any] | None] = contextvars.ContextVar("recorded", default=None)


def record(**results: Any) -> None:
    """Results of the run that goes on: in a notebook they are shown, and kept in it for the experiment.

    In a function they are kept even if it fails later. Arrays of one element become numbers.
    """
    running = _recorded.get()
    if running is not None:
        running.update(results)
    else:
        show_recorded(results=results)


def source_of(function: Function) -> str:
    """Short checksum of a function's own source; of its instructions where there is none."""
    try:
        text = inspect.getsource(function).encode()
    except (OSError, TypeError):
        text = getattr(getattr(function, "__code__", None), "co_code", b"")
    return hashlib.sha1(text).hexdigest()[:8]


def call(
    function: Function, cluster: Cluster, arguments: Mapping[str, Any], timeout: float | None, outcome: Outcome
) -> None:
    """Call the function on the cluster, and note what comes of it."""
    token = _recorded.set({})
    limit = _Limit(cluster, timeout)
    try:
        with limit:
            returned = function(cluster, **arguments)
            if returned is not None and not isinstance(returned, Mapping):
                raise UsageError(
                    f"the function returned a {type(returned).__name__}: return a dict of results by name."
                )
            record(**(returned or {}))
    except Exception as error:
        outcome.error = "TimeoutError" if limit.over else type(error).__name__
        outcome.cause = limit.said if limit.over else _explain(error)
    finally:
        outcome.results = plain_results(_recorded.get() or {})
        _recorded.reset(token)


class _Limit:
    """Interrupts the ranks once the time of a run is over, until its function gives up."""

    def __init__(self, cluster: Cluster, seconds: float | None) -> None:
        self._cluster, self._seconds = cluster, seconds
        self._left = threading.Event()
        self.over = False
        self.said = f"the run took longer than {seconds} s"

    def _watch(self) -> None:
        wait = self._seconds
        while not self._left.wait(wait):
            self.over, wait = True, STOP_EVERY
            with suppress(AllranksError):  # the function may have ended the cluster
                self._cluster.interrupt()

    def __enter__(self) -> None:
        if self._seconds is not None:
            threading.Thread(target=self._watch, name="allranks-limit", daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self._left.set()


def _explain(error: Exception) -> str:
    """Why a run failed: the message of ours as it is, of others with its class and the line it comes from."""
    if isinstance(error, AllranksError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    where = f" (line {frames[-1].lineno} of {Path(frames[-1].filename).name})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"
