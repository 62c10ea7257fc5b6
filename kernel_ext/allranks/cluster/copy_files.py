"""Copies files between hosts while the ranks are up: `fetch` brings them here, `share` from one host to all others."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from allranks.errors import CellInterrupted
from allranks.files.fetch import TARGET, Fetch, FetchResult
from allranks.files.share_files import HeadShare, ShareResult
from allranks.notebook.stop_button import Stop

from .live_ranks import LiveRanks, for_others


def fetch(
    live: LiveRanks,
    pattern: str,
    *,
    ranks: Sequence[int] | int | None,
    to: str | Path | None,
    overwrite: bool,
) -> FetchResult:
    """See `Cluster.fetch`."""
    chosen, living = live.choose_ranks(ranks), live.ranks_up()
    live.refuse_dead(chosen, for_others("fetch", repr(pattern)))
    target = Path(live.settings.folder, TARGET) if to is None else Path(to).expanduser().absolute()
    stop = Stop()
    try:
        with stop.noted():
            fetching = Fetch(living, chosen, target, stop.raise_if_pressed)
            return fetching.run(pattern, overwrite=overwrite or to is None)
    except KeyboardInterrupt:
        raise CellInterrupted(f"stopped; files that are whole are in {target}") from None


def share(
    live: LiveRanks,
    path: str | Path,
    *,
    source: int | str | None,
    to: str | Path | None,
    overwrite: bool,
) -> ShareResult:
    """See `Cluster.share`."""
    living, stop = live.ranks_up(), Stop()
    if not living.monitor.alive():
        live.refuse_if_broken(living)
    sharing = HeadShare(living, stop.raise_if_pressed)
    try:
        with stop.noted():
            return sharing.run(
                os.fspath(path), source=source, to=None if to is None else os.fspath(to), overwrite=overwrite
            )
    except KeyboardInterrupt:
        raise CellInterrupted(sharing.stopped()) from None
