"""One run of an experiment's function: called with the live cluster or on its ranks, within a time limit."""

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

from allranks.cluster.cluster import Cluster
from allranks.errors import AllranksError, UsageError

from .notebook_run import NotebookOutcome, show_recorded
from .runs_on_disk import plain_results

STOP_EVERY = 2.0
"""Seconds between two attempts to stop a run whose time is up."""

Function = Callable[..., Mapping[str, object] | None]
"""Called with the parameters it takes: on the ranks, or here with the live cluster first. Returns results by name."""

_recorded: contextvars.ContextVar[dict[str, object] | None] = contextvars.ContextVar("recorded", default=None)


def record(**results: object) -> None:
    """Record results of the current run. In a notebook, they are shown, and kept in its output for the experiment.

    Results of a function that takes the cluster are kept even if it fails later. A function that runs on the ranks
    cannot record results: it returns them. Arrays of one element become numbers.
    """
    running = _recorded.get()
    if running is not None:
        running.update(results)
    else:
        show_recorded(results=results)


def source_of(function: Function) -> str:
    """Short checksum of a function's own source, or of its bytecode if there is no source."""
    try:
        text = inspect.getsource(function).encode()
    except (OSError, TypeError):
        text = getattr(getattr(function, "__code__", None), "co_code", b"")
    return hashlib.sha1(text).hexdigest()[:8]


def call(
    function: Callable[..., object],
    cluster: Cluster,
    arguments: Mapping[str, object],
    timeout: float | None,
    outcome: NotebookOutcome,
) -> None:
    """Call the function, and store its results and its error in `outcome`.

    After `timeout` seconds, the ranks are interrupted; None means no limit.
    """
    token = _recorded.set({})
    limit = _Limit(cluster, timeout)
    try:
        with limit:
            record(**_results(function(**arguments)))
    except Exception as error:
        outcome.error = "TimeoutError" if limit.over else type(error).__name__
        outcome.cause = limit.said if limit.over else _explain(error)
    finally:
        outcome.results = plain_results(_recorded.get() or {})
        _recorded.reset(token)


def on_ranks(function: Function, cluster: Cluster) -> Callable[..., dict[str, object]]:
    """Return a function that calls `function` on every rank, and joins the results.

    Numbers become their mean over ranks, as logged values do; other values that differ between ranks become a list in
    rank order.
    """

    calls = cluster.options(screen=None)  # the run's entry has the error, in one sentence

    def call_on_ranks(**arguments: object) -> dict[str, object]:
        returned = [plain_results(_results(each)) for each in calls.apply(function, **arguments)]
        names = dict.fromkeys(name for each in returned for name in each)
        return {name: _joined([each[name] for each in returned if name in each]) for name in names}

    return call_on_ranks


def _joined(values: list[Any]) -> Any:
    if all(value == values[0] for value in values):
        return values[0]
    if all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values):
        return sum(values) / len(values)
    return values


def _results(returned: object) -> Mapping[str, object]:
    if returned is not None and not isinstance(returned, Mapping):
        raise UsageError(
            f"the function returned a {type(returned).__name__}: it must return a dict of results by name."
        )
    return returned or {}


class _Limit:
    """Interrupts the ranks once the time of a run is up, again and again until its function returns."""

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
    """Say why a run failed: the message of an error of allranks; for any other error also its class and line."""
    if isinstance(error, AllranksError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    where = f" (line {frames[-1].lineno} of {Path(frames[-1].filename).name})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"
