"""The part of `Cluster` that shows its state: tables, dashboards, logged values, completion, ipyparallel's client."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import structs

from allranks.errors import CannotStart, UsageError
from allranks.head.world.ranks import A
from allranks.lifeline.open_questions import RequestFailed
from allranks.messages.requests import Complete, Inspect, Question

from .cells import ClusterCells
from .members import ClusterMembers
from .run_history import RUNS, RunHistory

if TYPE_CHECKING:
    import pandas

    from allranks_widgets import Dashboard, Recorder

ANSWER_WITHIN = 1.0
"""Seconds that a front end waits for completions before it shows only those of the notebook."""


class ClusterViews(ClusterCells, ClusterMembers):
    """Shows tables, dashboards and logged values."""

    def watch(self, *views: str) -> Dashboard:
        """The live dashboard, or some of its pictures: ``topology``, ``ranks``, ``throughput``, ``log``.

        It is updated until the cluster ends, and then keeps its last state; `Dashboard.close` ends it earlier. In a
        notebook, it goes on with the cluster that the next ``%distributed up`` starts. Raises UsageError for an unknown
        picture, and NoCluster.
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
        """Have the dashboards of the `ended` cluster show this one; its recorders record nothing more."""
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
        """A live dashboard with only the picture of hosts, ranks and links."""
        return self.watch("topology")

    def record(self, path: str | Path) -> Recorder:
        """Record what a dashboard would show, until the recorder, a context manager, is closed.

        ``allranks_widgets.replay(path, Dashboard())`` replays the recording, without a cluster.
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
        """Traffic of the last ten minutes, in bytes per second: by link (``wire``) and by rank (``effective``)."""
        return self._up().monitor.history.frame()

    def logged(self, *names: str) -> pandas.DataFrame:
        """What ranks logged with ``log(loss=..., step=...)``, or only the values of these names; also after `down`.

        One row for each value: ``rank``, ``step``, ``name``, ``value``, ``time`` (UTC) and ``cell``, the number of the
        cell. If a rank logged one name more than 100,000 times, every second one of the older rows is dropped.
        """
        return self._logs.frame(names)

    @property
    def runs(self) -> RunHistory:
        """The cells that logged, also in earlier clusters of this process: compare, rename, hide and export them."""
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

    # Requests of the notebook's front end.

    def complete(self, code: str, cursor: int) -> dict[str, Any] | None:
        """Completions from the first living rank, or None if none answers within a second.

        Evaluates nothing, and works while the rank is busy.
        """
        found = self._ask_one(Complete(code, cursor))
        return structs.asdict(found) if found is not None else None

    def inspect(self, name: str, detail: int = 0) -> dict[str, str] | None:
        """A rank's description of a name, as a MIME bundle; None if it has none or does not answer within a second.

        Evaluates nothing, and works while the rank is busy.
        """
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
        """A plain ``ipyparallel.Client`` of the same engines, made on first use.

        Raises NoCluster, and CannotStart if ipyparallel's controller has ended.
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
