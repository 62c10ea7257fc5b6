"""Starts the ranks of a cluster, and ends them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from allranks.check_arguments import slow_text
from allranks.discovery.running_clusters import RunningCluster, left_behind_on
from allranks.errors import CannotStart, CellInterrupted, UsageError
from allranks.head.world.detached_cluster_file import left_behind, read_detached, readable
from allranks.head.world.ranks import START_TRIES, Ranks
from allranks.hosts_from_options import rdma_links
from allranks.notebook.comm_proxies import ProxiedComms
from allranks.notebook.feed_dashboards import Watch
from allranks.notebook.stop_button import undisturbed
from allranks_backends.plan import alike, rank_label
from allranks_backends.registry import cannot_run, choose, get_backend

from .cells import Cells
from .live_ranks import LiveRanks
from .start_times import StartTimes

JOIN_WITHIN = 600.0
"""Default timeout, in seconds, for a scheduler to start its ranks."""


class StartAndEnd:
    """Starts the ranks, forms the world, and ends every process. `Cluster` documents its attributes."""

    def __init__(self, live: LiveRanks, cells: Cells, watch: Watch) -> None:
        self._live, self._cells, self._watch = live, cells, watch
        self.chosen_because = ""
        self.working_folders = ""
        self.beside: list[RunningCluster] = []
        self.start_times: StartTimes | None = None
        self.not_ended: list[str] = []

    def up(self, progress: Callable[[str], None]) -> None:
        """See `Cluster.up`."""
        alone = self._live.starting.acquire(blocking=False)
        try:
            if alone and self._live.ranks is None:
                self._start_ranks(progress)
                return
        finally:
            if alone:
                self._live.starting.release()
        how = "being started by another thread" if self._live.state in ("down", "starting") else "already up"
        raise UsageError(f"the cluster {self._live.settings.name!r} is {how}.")

    def _start_ranks(self, progress: Callable[[str], None]) -> None:
        if self._live.settings.lease != 0:
            self._refuse_if_left_behind()
            self._live.settings.attached_as = ""
        began = time.monotonic()
        for tries_left in reversed(range(START_TRIES)):
            try:
                with undisturbed():  # nothing could end a half-made `Ranks`
                    ranks = Ranks(self._live.settings, comms=ProxiedComms(), forks=self._forks_here())
                    ranks.reached.others_fork = self._engines_fork
                    self._live.take(ranks)
                if self._live.settings.options.joins:
                    self._gather(ranks, progress)
                self._choose_backend(ranks)
                if tries_left == START_TRIES - 1 and not self._live.settings.options.joins:
                    self._warn_if_slow(ranks, progress)
                self._refuse_if_down(ranks)
                ranks.start(self._live.hosts, self._live.backend)
                self.working_folders = self._where_folder_lacks(ranks)
                self.beside = left_behind_on(ranks.reached.left_behind)
                self._refuse_if_down(ranks)
            except BaseException as error:
                self.down()
                if isinstance(error, KeyboardInterrupt):
                    raise CellInterrupted("start-up cancelled; everything was cleaned up") from None
                again = isinstance(error, CannotStart) and error.transient and not self._live.settings.options.joins
                if not (again and tries_left):
                    raise
            else:
                break
        self.start_times = StartTimes.of(began, time.monotonic(), ranks)
        self._watch.go_on()

    def _refuse_if_down(self, ranks: Ranks) -> None:
        """Raise CannotStart if another thread has called `down` since these ranks were made."""
        if self._live.ranks is not ranks:
            ranks.end()  # again: it may have been reached more hosts since
            raise CannotStart(f"the cluster {self._live.settings.name!r} was ended while it was being started.")

    def _refuse_if_left_behind(self) -> None:
        """Raise UsageError if a cluster without a notebook has this name, or, with `keep`, any running cluster has."""
        name, keep = self._live.settings.name, self._live.settings.options.keep
        kept = read_detached(name) if keep else readable(name)
        if kept is not None and kept.exists and (keep or not kept.has_notebook):
            where = f", attached to the notebook of process {kept.notebook[0]}" if kept.has_notebook else ""
            how = f": take it over with %distributed attach {name}, or start another with --name."
            if kept.has_notebook:
                how = ": start another with --name."
            elif kept.why_not:
                how = f", but {kept.why_not}. Or start another with --name."
            raise UsageError(f"a cluster named {name!r} is already up ({kept}{where}){how}")

    def was_left_behind(self) -> bool:
        """See `Cluster.was_left_behind`."""
        kept = left_behind().get(self._live.settings.name) if self._live.settings.lease != 0 else None
        return kept is not None and kept.is_like(self._live.settings, self._live.hosts, self._live.backend)

    def _gather(self, ranks: Ranks, progress: Callable[[str], None]) -> None:
        """Accept the ranks that a scheduler or ipyparallel engines start."""
        assert ranks.listener is not None
        how, asked = ranks.open_listener(), self._live.settings.options
        count, timeout = asked.n, asked.timeout
        if asked.ipp_profile is not None:
            from allranks.hosts.profiles import spawn_on_engines

            count = spawn_on_engines(asked.ipp_profile, count, how, timeout or 0.0, progress)
        self._live.hosts = ranks.gather(count, JOIN_WITHIN if timeout is None else timeout, progress)

    def _warn_if_slow(self, ranks: Ranks, progress: Callable[[str], None]) -> None:
        """Report hosts with more ranks per core than run fast, before the ranks start."""
        counts = Counter(host.name for host in self._live.hosts)
        if text := slow_text(counts, ranks.reached.cores(counts)):
            progress(text)

    def _where_folder_lacks(self, ranks: Ranks) -> str:
        """A sentence on which ranks work in which folder, if a host lacks the notebook's folder; empty otherwise.

        With `sync`, it is empty, too: the report of `sync` names the folders.
        """
        lacks = [rank.host for rank in ranks.monitor.ranks if rank.folder]
        if self._live.settings.options.sync or not lacks:
            return ""
        here = self._live.settings.cwd
        where = alike({rank.rank: rank.folder or here for rank in ranks.monitor.ranks})
        said = "; ".join(f"{rank_label(numbers)} in {folder}" for folder, numbers in where.items())
        hosts = [ranks.monitor.shown_as(host) for host in dict.fromkeys(lacks)]
        return (
            f"{said}. {', '.join(hosts)} {'has' if len(hosts) == 1 else 'have'} no {here}: up --sync sends this folder "
            "there, and --cwd names another."
        )

    def _forks_here(self) -> bool:
        """Whether this machine's host process will start ranks, as far as is known before other hosts are reached."""
        return self._engines_fork and any(host.local for host in self._live.hosts)

    @property
    def _engines_fork(self) -> bool:
        """Whether host processes, not `mpirun`, will start the ranks, as far as is known before hosts are reached."""
        return self._live.backend == "auto" or get_backend(self._live.backend).launcher == "engines"

    def _choose_backend(self, ranks: Ranks) -> None:
        sites = ranks.sites(self._live.hosts)
        if self._live.backend == "auto":
            mesh, ring = rdma_links(self._live.hosts)
            self._live.backend, self.chosen_because = choose(sites, rdma_mesh=mesh, rdma_ring=ring)
        elif reason := cannot_run(self._live.backend, sites):
            raise CannotStart(reason)

    def down(self) -> None:
        """See `Cluster.down`."""
        live = self._live
        ranks, live.ranks, live.formed_late = live.ranks, None, ""
        if ranks is None:
            return
        self._cells.queue.close("the cluster ended")
        if live.client is not None:
            live.client.close()
            live.client = None
        ranks.end()
        self._cells.end()
        self.not_ended = ranks.reached.away
        self._watch.stop()
