"""The file in which a host process describes its cluster and the cluster's processes on this host."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from allranks.messages.host_messages import DescribeCluster


class Description:
    """Writes the file that describes the cluster on this host, once the head has described the cluster."""

    def __init__(self) -> None:
        self._told: DescribeCluster | None = None
        self._launched: dict[str, tuple[int, float]] = {}
        self._since = time.time()
        self._written: object = None

    @property
    def launched(self) -> list[tuple[int, float]]:
        """The identities of the ranks here that a launcher started."""
        return list(self._launched.values())

    def take(self, order: DescribeCluster) -> None:
        """Store the description; identify a launcher's ranks now, since their pids may be reused once they end."""
        self._told = order
        ranks = {name: _launched_rank(pid) for name, pid in order.pids.items()}
        self._launched = {name: identity for name, identity in ranks.items() if identity is not None}

    def update(
        self, folders: Sequence[Path], processes: Mapping[str, int], lease: float | None, away_since: float | None
    ) -> None:
        """Write the file again if its content has changed."""
        if self._told is None:
            return
        now = (self._told, tuple(folders), dict(processes), lease, away_since)
        if now == self._written:
            return
        self._written = now
        import psutil  # a host process needs it only once its ranks run

        from allranks.machine.describe_host import installed
        from allranks.machine.hosted_clusters import HOST_PROCESS, HostedCluster
        from allranks.machine.process_identity import identity_of, this_machine

        identities = {HOST_PROCESS: identity_of(), **self._launched}
        for name, pid in processes.items():
            try:
                identities[name] = identity_of(pid)
            except psutil.Error:  # it has just ended
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
        except OSError:  # a full disk must not end the cluster
            pass


def _launched_rank(pid: int) -> tuple[int, float] | None:
    """The identity of process `pid` if it is a rank; the head may name a rank that ended while the head was away."""
    import psutil

    from allranks.machine.process_identity import identity_of

    try:
        return identity_of(pid) if "allranks.rank" in psutil.Process(pid).cmdline() else None
    except psutil.Error:
        return None
