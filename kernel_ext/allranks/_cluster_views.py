"""The part of `Cluster` that shows it: tables, dashboards, figures, completion, ipyparallel's own view."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ._cluster_cells import ClusterCells
from ._cluster_members import ClusterMembers
from .errors import UsageError

if TYPE_CHECKING:
    import pandas

    from allranks_widgets import Dashboard, Recorder


class ClusterViews(ClusterCells, ClusterMembers):
    """What there is to see."""

    def watch(self, *views: str) -> Dashboard:
        """The live dashboard, or some of its pictures: ``topology``, ``ranks``, ``throughput``, ``log``.

        It follows the cluster to its end, and keeps what it showed last; `Dashboard.close` ends it before.
        """
        from allranks_widgets.dashboard import VIEWS, Dashboard

        if unknown := [view for view in views if view not in VIEWS]:
            raise UsageError(f"there is no picture {unknown[0]!r}: there are {', '.join(VIEWS)}.")
        living = self._up()
        dashboard = Dashboard(views or VIEWS, on_action=self._act)
        dashboard.history(living.monitor.history.snapshots(living.monitor.snapshot()))
        self._watch.add(dashboard)
        return dashboard

    @property
    def topology(self) -> Dashboard:
        """The picture of hosts, ranks and links."""
        return self.watch("topology")

    def record(self, path: str | Path) -> Recorder:
        """Write down what a dashboard would be shown, until the recorder is closed (it is a context manager too).

        ``allranks_widgets.replay(path, Dashboard())`` shows it again, without a cluster.
        """
        from allranks_widgets import Recorder

        self._up()
        recorder = Recorder(path)
        self._watch.add(recorder)
        return recorder

    def _act(self, verb: str, rank: int | None) -> str | None:
        """What a click in a dashboard asks for; returns what to say."""
        chosen, where = (None, "") if rank is None else ([rank], f" on rank {rank}")
        if verb == "interrupt":
            busy = self._up().monitor.busy(self.choose_ranks(chosen))
            self.interrupt(ranks=chosen)
            return None if busy else f"No cell runs{where}."
        if verb == "break":
            waiting = [view.rank for view in self.snapshot.ranks if view.state == "waiting"]
            self.break_collectives(ranks=chosen)
            asked = [each for each in self.choose_ranks(chosen) if each in waiting]
            return None if asked else f"Nothing waits in a collective{where}."
        if not self._changing.acquire(blocking=False):
            return "The world is being changed already."
        try:
            return self.heal(kill=[each for each in chosen or () if self.snapshot.ranks[each].state != "dead"])
        finally:
            self._changing.release()

    def history(self) -> pandas.DataFrame:
        """The last ten minutes of traffic: bytes a second on each link (``wire``) and by rank (``effective``)."""
        return self._up().monitor.history.frame()

    def logged(self, *names: str) -> pandas.DataFrame:
        """What ranks told with ``log(loss=..., step=...)``, or these names of it; also after `down`.

        One row for each figure: ``rank``, ``step``, ``name``, ``value``, ``time`` (UTC) and ``cell``, the number of the
        cell that told it. Where a rank told one name more than 100,000 times, every second of the older rows is gone.
        """
        return self._logs.frame(names)

    def status(self) -> str:
        """The status table as text."""
        from allranks_widgets import status_text

        return status_text(self.snapshot)

    def __repr__(self) -> str:
        if self._ranks is None:
            return f"<Cluster {self.name!r}: down>"
        return self.status()

    def _repr_html_(self) -> str | None:
        from allranks_widgets import status_html

        return status_html(self.snapshot) if self._ranks is not None else None

    # What the notebook's front end asks.

    def complete(self, code: str, cursor: int) -> dict[str, Any] | None:
        """Completions the first rank alive knows; evaluates nothing and works while it is busy."""
        header = self._ask_one({"do": "complete", "code": code, "cursor": cursor})
        return header.get("matches") if header else None

    def inspect(self, name: str, detail: int = 0) -> dict[str, str] | None:
        """What a rank says of a name, as a MIME bundle; evaluates nothing and works while it is busy."""
        header = self._ask_one({"do": "inspect", "name": name, "detail": detail})
        return header.get("found") if header else None

    def _ask_one(self, order: dict[str, Any], within: float = 1.0) -> dict[str, Any] | None:
        ranks = self._ranks
        rank = next((rank for rank in ranks.monitor.alive() if rank.ready), None) if ranks is not None else None
        if ranks is None or rank is None:
            return None
        try:
            return ranks.lifeline.ask(rank.uuid, order).result(within)[0]
        except (TimeoutError, ConnectionError):
            return None

    @property
    def connection_file(self) -> Path:
        """ipyparallel's client connection file: ``ipyparallel.Client(str(cluster.connection_file))``."""
        return self._up().host.connection_file

    @property
    def client(self) -> Any:
        """A plain ``ipyparallel.Client`` of the same engines; made when first asked for."""
        if self._client is None:
            import ipyparallel

            client = ipyparallel.Client(str(self.connection_file))
            # An engine counts as registered after a heartbeat; ours are up already, so this is at most a second or two.
            deadline, alive = time.monotonic() + 10, self._up().monitor.alive()
            while len(client.ids) < len(alive) and time.monotonic() < deadline:
                time.sleep(0.02)
            self._client = client
        return self._client
