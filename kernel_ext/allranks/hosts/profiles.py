"""Ranks beside the engines of a running ipyparallel cluster, however those were started."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from allranks.errors import CannotStart
from allranks.rank.process.join import spawn

CONNECT_WITHIN = 10.0
"""Seconds the controller gets to answer."""
LOOK_EVERY = 0.5
"""Seconds after which engines that are still starting are looked for again."""
ALL_WITHIN = 3.0
"""Seconds without another engine after which all count as there, where their number is not given."""
SPAWN_WITHIN = 20.0
"""Seconds an engine gets to start a process."""


def spawn_on_engines(
    profile: str, count: int | None, settings: Mapping[str, Any], within: float, progress: Callable[[str], None]
) -> int:
    """Have the first `count` engines (all by default) each start a rank; returns how many.

    Engines that are not there yet are waited for, for `within` seconds. The engines themselves stay as they are.
    `settings` are secret; they travel as ipyparallel's messages do. Raises CannotStart.
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


class _Wait:
    """Waits for what is still starting, and says for what."""

    def __init__(self, within: float, progress: Callable[[str], None]) -> None:
        self._deadline, self._within, self._progress = time.monotonic() + within, within, progress

    def on(self, missing: str, advice: str) -> None:
        """Look again in a moment. Raises CannotStart once the time is over."""
        if time.monotonic() >= self._deadline:
            self._progress("")
            waited = f" after {self._within:g} s" if self._within else ""
            hint = "" if self._within else " If it is still starting: --timeout 60 waits for it."
            raise CannotStart(f"{missing}{waited}. {advice}{hint}")
        self._progress(f"{missing} yet. {advice}")
        time.sleep(LOOK_EVERY)

    def over(self) -> None:
        """What was waited for is there."""
        self._progress("")


def _connected(profile: str, wait: _Wait) -> Any:
    """A client of the profile's cluster. Raises CannotStart."""
    import ipyparallel

    while True:
        try:
            return ipyparallel.Client(profile=profile, timeout=CONNECT_WITHIN)
        except (OSError, ipyparallel.TimeoutError):
            wait.on(f"no running ipyparallel cluster with profile {profile!r}", f"Start one: {_start(profile)}")


def _engines(client: Any, profile: str, count: int | None, wait: _Wait) -> list[int]:
    """The first `count` of its engines; all of them without one. Raises CannotStart."""
    waited, known, since = False, 0, 0.0
    while True:
        engines = list(client.ids)
        if len(engines) != known:
            known, since = len(engines), time.monotonic()
        enough = known >= (count or 1)
        if enough and (count or not waited or time.monotonic() - since > ALL_WITHIN):
            wait.over()
            return engines[:count]
        if enough:  # engines of one cluster come one after the other
            time.sleep(LOOK_EVERY)
            continue
        waited = True
        has = f"the ipyparallel cluster with profile {profile!r} has {known} engines"
        wait.on(f"{has}, not {count}" if count else has, f"Start more: {_start(profile)}")


def _start(profile: str) -> str:
    return f"ipcluster start -n 4 --profile {profile}"
