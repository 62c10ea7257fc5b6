"""Start ranks next to the engines of a running ipyparallel cluster, however the engines were started."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from allranks.errors import CannotStart

CONNECT_WITHIN = 10.0
"""Timeout, in seconds, for the controller's answer."""
LOOK_EVERY = 0.5
"""Seconds between checks for engines that are still starting."""
ALL_WITHIN = 3.0
"""Seconds without a new engine after which all engines count as started, if no number was given."""
SPAWN_WITHIN = 20.0
"""Timeout, in seconds, for an engine to start a process."""
_spawned: list[subprocess.Popen[bytes]] = []
"""On an engine: the processes that it started to join the cluster."""


def spawn_on_engines(
    profile: str, count: int | None, settings: Mapping[str, object], within: float, progress: Callable[[str], None]
) -> int:
    """Have each of the first `count` engines (all if None) start a rank; returns the number of ranks.

    Waits up to `within` seconds for missing engines. The engines themselves are not changed.
    `settings` contain secrets; they are sent like any other ipyparallel message. Raises CannotStart.
    """
    import ipyparallel

    wait = _Wait(within, progress)
    client = _connected(profile, wait)
    try:
        engines = _engines(client, profile, count, wait)
        started = [
            client[engine].apply_async(spawn, {**settings, "number": number}) for number, engine in enumerate(engines)
        ]
        for engine, answer in zip(engines, started, strict=True):
            try:
                answer.get(SPAWN_WITHIN)
            except ipyparallel.TimeoutError:
                raise CannotStart(f"engine {engine} does not answer: is it busy?") from None
            except ipyparallel.RemoteError as error:
                raise CannotStart(f"engine {engine} cannot start a rank: {error.ename}: {error.evalue}") from None
        return len(engines)
    finally:
        client.close()


def spawn(settings: Mapping[str, object]) -> int:
    """On an ipyparallel engine: start a process that joins the cluster and ends with the engine. Returns its pid."""
    process = subprocess.Popen(
        [sys.executable, "-m", "allranks.rank", "--join", "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(dict(settings)).encode() + b"\n")
    process.stdin.flush()
    _spawned[:] = [each for each in _spawned if each.poll() is None]
    _spawned.append(process)  # its standard input closes when the engine ends
    return process.pid


class _Wait:
    """Waits for engines or a controller that are still starting, and reports what is missing."""

    def __init__(self, within: float, progress: Callable[[str], None]) -> None:
        self._deadline, self._within, self._progress = time.monotonic() + within, within, progress

    def on(self, missing: str, advice: str) -> None:
        """Report what is `missing` and sleep until the next check. Raises CannotStart once the deadline has passed."""
        if time.monotonic() >= self._deadline:
            self._progress("")
            waited = f" after {self._within:g} s" if self._within else ""
            hint = "" if self._within else " If it is still starting: --timeout 60 waits for it."
            raise CannotStart(f"{missing}{waited}. {advice}{hint}")
        self._progress(f"{missing} yet. {advice}")
        time.sleep(LOOK_EVERY)

    def over(self) -> None:
        """Clear the progress message, since the wait is over."""
        self._progress("")


def _connected(profile: str, wait: _Wait) -> Any:
    """Connect a client to the profile's cluster. Raises CannotStart."""
    import ipyparallel

    while True:
        try:
            return ipyparallel.Client(profile=profile, timeout=CONNECT_WITHIN)
        except (OSError, ipyparallel.TimeoutError):
            wait.on(f"no running ipyparallel cluster with profile {profile!r}", f"Start one: {_start(profile)}")


def _engines(client: Any, profile: str, count: int | None, wait: _Wait) -> list[int]:
    """The ids of the client's first `count` engines (all if None). Raises CannotStart."""
    waited, known, since = False, 0, 0.0
    while True:
        engines = list(client.ids)
        if len(engines) != known:
            known, since = len(engines), time.monotonic()
        enough = known >= (count or 1)
        if enough and (count or not waited or time.monotonic() - since > ALL_WITHIN):
            wait.over()
            return engines[:count]
        if enough:  # the engines of a cluster register one by one, so more may follow
            time.sleep(LOOK_EVERY)
            continue
        waited = True
        has = f"the ipyparallel cluster with profile {profile!r} has {known} engines"
        wait.on(f"{has}, not {count}" if count else has, f"Start more: {_start(profile)}")


def _start(profile: str) -> str:
    return f"ipcluster start -n 4 --profile {profile}"
