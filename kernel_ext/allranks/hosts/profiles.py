"""Ranks beside the engines of a running ipyparallel cluster, however those were started."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from allranks.errors import CannotStart
from allranks.rank.process.join import spawn

CONNECT_WITHIN = 10.0
"""Seconds the controller gets to answer."""
SPAWN_WITHIN = 20.0
"""Seconds an engine gets to start a process."""


def spawn_on_engines(profile: str, count: int | None, settings: Mapping[str, Any]) -> int:
    """Have the first `count` engines (all by default) each start a rank; returns how many.

    The engines themselves stay as they are. `settings` are secret; they travel as ipyparallel's messages do. Raises
    CannotStart.
    """
    import ipyparallel

    start = f"ipcluster start -n 4 --profile {profile}"
    try:
        client = ipyparallel.Client(profile=profile, timeout=CONNECT_WITHIN)
    except (OSError, ipyparallel.TimeoutError):
        raise CannotStart(f"no running ipyparallel cluster with profile {profile!r}. Start one: {start}") from None
    try:
        engines = client.ids[:count]
        if not engines or len(engines) < (count or 1):
            raise CannotStart(
                f"the ipyparallel cluster with profile {profile!r} has {len(engines)} engines"
                + (f", not {count}." if count else f". Start some: {start}")
            )
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
