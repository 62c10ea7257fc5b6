"""The live dashboards of a cluster, its recorders, and what a click in a dashboard does."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from allranks.errors import UsageError
from allranks.notebook.feed_dashboards import Watch

from .cells import Cells
from .heal_and_resize import HealAndResize
from .live_ranks import LiveRanks, unsaid

if TYPE_CHECKING:
    from allranks_widgets import Dashboard, Recorder


class Dashboards:
    """Shows the cluster in dashboards and records what they show."""

    def __init__(self, live: LiveRanks, watch: Watch, cells: Cells, changes: HealAndResize) -> None:
        self._live, self._watch, self._cells, self._changes = live, watch, cells, changes

    def watch(self, *views: str) -> Dashboard:
        """See `Cluster.watch`."""
        from allranks_widgets.dashboard import VIEWS, Dashboard

        if unknown := [view for view in views if view not in VIEWS]:
            raise UsageError(f"unknown picture {unknown[0]!r}: choose from {', '.join(VIEWS)}.")
        living = self._live.ranks_up()
        dashboard = Dashboard(views or VIEWS, on_action=self._act)
        dashboard.history(living.monitor.history.snapshots(living.monitor.snapshot()))
        self._watch.add(dashboard)
        return dashboard

    def take_from(self, ended: Dashboards) -> None:
        """Take over the dashboards of another cluster, which has ended (see `Cluster.take_dashboards`)."""
        if not ended._watch.watched:
            return
        from allranks_widgets.dashboard import Dashboard

        monitor = self._live.ranks_up().monitor
        for viewer in ended._watch.take_all():
            if isinstance(viewer, Dashboard):
                viewer.start_over(monitor.history.snapshots(monitor.snapshot()), self._act)
                self._watch.add(viewer)

    def record(self, path: str | Path) -> Recorder:
        """See `Cluster.record`."""
        from allranks_widgets import Recorder

        self._live.ranks_up()
        recorder = Recorder(path)
        self._watch.add(recorder)
        return recorder

    def _act(self, verb: str, rank: int | None) -> str | None:
        """Carry out a click in a dashboard; returns a message."""
        chosen, where = (None, "") if rank is None else ([rank], f" on rank {rank}")
        if verb == "interrupt":
            busy = self._live.ranks_up().monitor.busy(self._live.choose_ranks(chosen))
            self._cells.interrupt(ranks=chosen, within=0.0)
            return None if busy else f"No cell is running{where}."
        if verb == "abort":
            waited = self._cells.abort_collectives(ranks=chosen)
            return None if waited else f"Nothing is blocked in a collective{where}."
        if not self._live.changing.acquire(blocking=False):
            return "The world is already being changed."
        try:
            doomed = [each for each in chosen or () if self._live.snapshot.ranks[each].state != "dead"]
            return str(self._changes.heal(source=None, kill=doomed, progress=unsaid))
        finally:
            self._live.changing.release()
