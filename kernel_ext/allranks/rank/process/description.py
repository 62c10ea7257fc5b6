"""The file in which a host process says which cluster it belongs to, and what runs of it here."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from allranks.messages.host_messages import Describe


class Description:
    """Nothing is written before the head has described the cluster."""

    def __init__(self) -> None:
        self._told: Describe | None = None
        self._launched: dict[str, tuple[int, float]] = {}
        self._since = time.time()
        self._written: object = None

    @property
    def launched(self) -> list[tuple[int, float]]:
        """Which processes a launcher's ranks are here."""
        return list(self._launched.values())

    def take(self, order: Describe) -> None:
        """A launcher's ranks are identified now: once they have ended, their numbers may be others'."""
        self._told = order
        ranks = {name: _launched_rank(pid) for name, pid in order.pids.items()}
        self._launched = {name: identity for name, identity in ranks.items() if identity is not None}

    def update(
        self, folders: Sequence[Path], processes: Mapping[str, int], lease: float | None, away_since: float | None
    ) -> None:
        """Write the file again where something in it has changed."""
        if self._told is None:
            return
        now = (self._told, tuple(folders), dict(processes), lease, away_since)
        if now == self._written:
            return
        self._written = now
        import psutil  # no host process needs it before its ranks are there

        from allranks.machine.clusters import HOST_PROCESS, HostedCluster
        from allranks.machine.facts import installed
        from allranks.machine.identity import identity_of, this_machine

        identities = {HOST_PROCESS: identity_of(), **self._launched}
        for name, pid in processes.items():
            try:
                identities[name] = identity_of(pid)
            except psutil.Error:  # it has ended meanwhile
                continue
        told = asdict(self._told)
        del told["pids"]
        cluster = HostedCluster(
            **told,
            node=this_machine(),
            processes=identities,
            since=self._since,
            lease=lease,
            away_since=away_since,
            folders=[str(folder) for folder in folders],
            version=installed("allranks"),
        )
        try:
            cluster.write()
        except OSError:  # a disk that is full ends no cluster
            pass


def _launched_rank(pid: int) -> tuple[int, float] | None:
    """Which process that is, if it is a rank: the head may name one that ended while it was away."""
    import psutil

    from allranks.machine.identity import identity_of

    try:
        return identity_of(pid) if "allranks.rank" in psutil.Process(pid).cmdline() else None
    except psutil.Error:
        return None
