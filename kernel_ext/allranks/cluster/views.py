"""The part of `Cluster` that shows it: tables, dashboards, figures, completion, ipyparallel's own view."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import structs

from allranks.errors import CannotStart, UsageError
from allranks.head.world.ranks import A
from allranks.messages.questions import RequestFailed
from allranks.messages.requests import Complete, Inspect, Question

from .cells import ClusterCells
from .members import ClusterMembers
from .run_history import RUNS, RunHistory

if TYPE_CHECKING:
    import pandas

    from allranks_widgets import Dashboard, Recorder

ANSWER_WITHIN = 1.0
"""Seconds that a front end waits for completions: then it shows what it knows itself."""


class ClusterViews(ClusterCells, ClusterMembers):
    """Tables, dashboards and figures."""

    def watch(self, *views: str) -> Dashboard:
        """The live dashboard, or some of its pictures: ``topology``, ``ranks``, ``throughput``, ``log``.

        It follows the cluster to its end, and keeps what it showed last; `Dashboard.close` ends it before. In a
        notebook, it goes on with the cluster that the next ``%distributed up`` starts.
        """
        from allranks_widgets.dashboard import VIEWS, Dashboard

        if unknown := [view for view in views if view not in VIEWS]:
            raise UsageError(f"unknown picture {unknown[0]!r}: choose from {', '.join(VIEWS)}.")
        living = self._up()
        dashboard = Dashboard(views or VIEWS, on_action=self._act)
        dashboard.history(living.monitor.history.snapshots(living.monitor.snapshot()))
        self._watch.add(dashboard)
        return dashboard

    def take_dashboards(self, ended: ClusterViews) -> None:
        """Have the dashboards of a cluster that has ended show this one; its recorders are left as they are."""
        if not ended._watch.watched:
            return
        from allranks_widgets.dashboard import Dashboard

        monitor = self._up().monitor
        for viewer in ended._watch.take_all():
            if isinstance(viewer, Dashboard):
                viewer.start_over(monitor.history.snapshots(monitor.snapshot()), self._act)
                self._watch.add(viewer)

    @property
    def topology(self) -> Dashboard:
        """The picture of hosts, ranks and links."""
        return self.watch("topology")

    def record(self, path: str | Path) -> Recorder:
        """Record what a dashboard would show, until the recorder is closed (it is a context manager too).

        ``allranks_widgets.replay(path, Dashboard())`` replays it, without a cluster.
        """
        from allranks_widgets import Recorder

        self._up()
        recorder = Recorder(path)
        self._watch.add(recorder)
        return recorder

    def _act(self, verb: str, rank: int | None) -> str | None:
        """Carry out a click in a dashboard; returns a message."""
        chosen, where = (None, "") if rank is None else ([rank], f" on rank {rank}")
        if verb == "interrupt":
            busy = self._up().monitor.busy(self.choose_ranks(chosen))
            self.interrupt(ranks=chosen)
            return None if busy else f"No cell is running{where}."
        if verb == "abort":
            waited = self.abort_collectives(ranks=chosen)
            return None if waited else f"Nothing is blocked in a collective{where}."
        if not self._changing.acquire(blocking=False):
            return "The world is already being changed."
        try:
            return str(self.heal(kill=[each for each in chosen or () if self.snapshot.ranks[each].state != "dead"]))
        finally:
            self._changing.release()

    def history(self) -> pandas.DataFrame:
        """The last ten minutes of traffic: bytes a second on each link (``wire``) and by rank (``effective``)."""
        return self._up().monitor.history.frame()

    def logged(self, *names: str) -> pandas.DataFrame:
        """What ranks logged with ``log(loss=..., step=...)``, or only these names; also after `down`.

        One row for each figure: ``rank``, ``step``, ``name``, ``value``, ``time`` (UTC) and ``cell``, the number of the
        cell. Where a rank logged one name more than 100,000 times, every second one of the older rows is dropped.
        """
        return self._logs.frame(names)

    @property
    def runs(self) -> RunHistory:
        """The cells that logged, also those of clusters before this one: to be compared, renamed, hidden, exported."""
        return RUNS

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
        found = self._ask_one(Complete(code, cursor))
        return structs.asdict(found) if found is not None else None

    def inspect(self, name: str, detail: int = 0) -> dict[str, str] | None:
        """What a rank says of a name, as a MIME bundle; evaluates nothing and works while it is busy."""
        answer = self._ask_one(Inspect(name, detail))
        return answer.found if answer is not None else None

    def _ask_one(self, question: Question[A]) -> A | None:
        ranks = self._ranks
        rank = next((rank for rank in ranks.monitor.alive() if rank.ready), None) if ranks is not None else None
        if ranks is None or rank is None:
            return None
        try:
            return ranks.lifeline.ask(rank.uuid, question).result(ANSWER_WITHIN).answer
        except (TimeoutError, ConnectionError, RequestFailed):
            return None

    @property
    def connection_file(self) -> Path:
        """ipyparallel's client connection file: ``ipyparallel.Client(str(cluster.connection_file))``."""
        return self._up().host.connection_file

    @property
    def client(self) -> Any:
        """A plain ``ipyparallel.Client`` of the same engines; made when first asked for.

        Raises NoCluster, and CannotStart where ipyparallel's controller has ended.
        """
        if why := self._up().process_events.no_controller:
            raise CannotStart(
                f"plain ipyparallel cannot reach the ranks: {why}. Cells still run; "
                "%distributed down, then %distributed up starts another one."
            )
        if self._client is None:
            import ipyparallel

            client = ipyparallel.Client(str(self.connection_file))
            # An engine counts as registered after a heartbeat; ours are up already, so this is at most a second or two.
            deadline, alive = time.monotonic() + 10, self._up().monitor.alive()
            while len(client.ids) < len(alive) and time.monotonic() < deadline:
                time.sleep(0.02)
            # ZeroMQ passes on no output of the engines until the client's subscription has reached them.
            heard = any(rank.busy or rank.silent for rank in alive)
            while not heard and time.monotonic() < deadline:
                heard = client[:].execute("", silent=True).wait_for_output(1)
            self._client = client
        return self._client
