"""`Cluster`: a world of ranks that stay up between cells."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from allranks.check_arguments import hosts_of, rdma_links
from allranks.discovery.running_clusters import RunningCluster, left_behind_on
from allranks.errors import CannotStart, CellInterrupted, UsageError
from allranks.head.world import attaching
from allranks.head.world.detached import left_behind, only_left_behind, read_detached, readable
from allranks.head.world.ranks import START_TRIES, Ranks
from allranks.notebook.comm_proxies import ProxiedComms
from allranks.notebook.stop_button import Stop, undisturbed
from allranks.settings import Settings
from allranks.up_options import UpOptions
from allranks_backends.plan import Host, alike, rank_label
from allranks_backends.registry import cannot_run, choose, get_backend

from .cell_queue import CellQueue
from .cluster_views import ClusterViews
from .exchange_values import ClusterValues
from .options import Keywords
from .saved_state import ClusterSavedState
from .start_times import StartTimes

if TYPE_CHECKING:
    from typing import Self

    from allranks.bench.bench_result import BenchResult

UP = Keywords(UpOptions)
JOIN_WITHIN = 600.0
"""Default timeout, in seconds, for a scheduler to start its ranks."""


class Cluster(ClusterValues, ClusterSavedState, ClusterViews):
    """A world of MLX ranks.

    It has ``n`` ranks on this machine (default 2), or ``ranks_per_host`` for each entry of ``hosts`` or ``hostfile``.
    With ``join``, the path of a file that other hosts can read, a scheduler starts the ranks within ``timeout`` seconds
    (default 600), by running ``python -m allranks.rank --join FILE`` for each; ``n`` is needed only if its launcher
    does not report the number of ranks. ``ipp_profile`` is the profile of a running ipyparallel cluster, each of whose
    engines (or ``n`` of them) starts one rank; with ``timeout``, engines that are still starting are waited for.

    ``backend`` is ``auto``, ``ring``, ``jaccl``, ``jaccl-ring``, ``mpi`` or ``nccl``. ``env`` has environment variables
    for all ranks, ``cwd`` is their working folder (default: this process's), ``python`` their interpreter.
    ``connections`` is the number of TCP connections per ring link; ``mpi_args`` are passed to mpirun. With
    ``keep=True``, the cluster outlives this process: see `attach`, which takes it over by its ``name``. ``lease`` is
    how long idle ranks stay when this process is gone without having ended them, or cannot reach their hosts: seconds,
    ``"45m"``, ``"1h"``, or ``"none"`` for no limit. The default is 12 hours with ranks on other hosts or ``keep``, and
    0 otherwise. ``save`` is a folder to which variables are saved before a lease ends the ranks.

    ``check`` sets what happens when ranks enter different collectives, for which MLX returns invalid results: ``warn``
    reports it after the cell, ``strict`` raises before any rank enters, ``off`` disables the check. ``ordered`` (part
    of ``strict``) chains the collectives of a rank, so that evaluation order cannot swap their results.

    With ``sync``, this process's working folder is copied to all hosts that lack it before each cell, and the ranks
    reload modules that have changed: see `sync`. They also reload modules if IPython's ``%autoreload 2`` is on.

    The keywords are the options of ``%distributed up`` (`UpOptions`). Nothing starts before `up`, which ``with`` calls.
    Raises UsageError for an invalid argument.
    """

    @UP.alone
    def __init__(self, *given: Any, **options: Any) -> None:
        asked = UpOptions(*given, **options)
        hosts, named, env = (
            ([], None, {}) if asked.joins else hosts_of(asked.n, asked.hosts, asked.hostfile, asked.ranks_per_host)
        )
        backend = named if asked.backend == "auto" and named else asked.backend
        self._hold(Settings.of(asked, hosts, backend, env), hosts, backend)
        if asked.sync:
            self._folder_sync().folder.refuse_if_too_much()

    def _hold(self, settings: Settings, hosts: Sequence[Host], backend: str) -> None:
        """Set the attributes of a new cluster, or of one that `attach` takes over."""
        super().__init__(settings, hosts, backend)
        self.chosen_because = ""
        """Why ``auto`` chose this backend; empty if the backend was given."""
        self.working_folders = ""
        """A sentence on which ranks work in which folder, if a host lacks the notebook's folder; empty otherwise."""
        self.beside: list[RunningCluster] = []
        """Clusters without a notebook that had ranks on the other hosts when `up` started this cluster."""
        self.start_times: StartTimes | None = None
        """How long each step of `up` took; None before `up`, and after `attach`."""
        self.not_ended: list[str] = []
        """Hosts that `down` could not reach: ranks may still run there."""
        self.last_bench: BenchResult | None = None
        """The result of the last `bench`; None before the first."""
        self.queue = CellQueue(self.begin, self._recent_cells, lambda: list(self._following), self._is_busy)
        """Cells that wait for earlier cells to succeed."""

    # Up and down.

    def up(self, progress: Callable[[str], None] = lambda _text: None) -> Self:
        """Start the ranks and form the world; returns this cluster.

        `progress` is called with a line of text on ranks of a scheduler or ipyparallel that have not joined yet. Raises
        UsageError if this cluster is already up, or a detached cluster has its name. Raises CannotStart with the
        reason, and CellInterrupted after Ctrl-C; after either, nothing is left running.
        """
        alone = self._starting.acquire(blocking=False)
        try:
            if alone and self._ranks is None:
                self._start_ranks(progress)
                return self
        finally:
            if alone:
                self._starting.release()
        how = "being started by another thread" if self.state in ("down", "starting") else "already up"
        raise UsageError(f"the cluster {self.name!r} is {how}.")

    def _start_ranks(self, progress: Callable[[str], None]) -> None:
        if self._settings.lease != 0:
            self._refuse_if_left_behind()
            self._settings.attached_as = ""
        began = time.monotonic()
        for tries_left in reversed(range(START_TRIES)):
            try:
                with undisturbed():  # nothing could end a half-made `Ranks`
                    self._ranks = Ranks(self._settings, comms=ProxiedComms(), forks=self._forks_here())
                    self._monitor = self._ranks.monitor
                if self._settings.options.joins:
                    self._gather(self._ranks, progress)
                self._choose_backend(self._ranks)
                self._ranks.start(self._hosts, self._backend_name)
                self.working_folders = self._where_folder_lacks(self._ranks)
                self.beside = left_behind_on(self._ranks.reached.left_behind)
            except BaseException as error:
                self.down()
                if isinstance(error, KeyboardInterrupt):
                    raise CellInterrupted("start-up cancelled; everything was cleaned up") from None
                again = isinstance(error, CannotStart) and error.transient and not self._settings.options.joins
                if not (again and tries_left):
                    raise
            else:
                break
        assert self._ranks is not None
        self.start_times = StartTimes.of(began, time.monotonic(), self._ranks)
        self._watch.go_on()

    @property
    def chosen_network(self) -> str:
        """Why `up` chose another network than the one by which ssh reaches the hosts; empty if it did not."""
        return self._ranks.chosen_network if self._ranks is not None else ""

    def _refuse_if_left_behind(self) -> None:
        """Raise UsageError if a cluster without a notebook has this name or, with `keep`, if any running one has it."""
        kept = read_detached(self.name) if self._settings.options.keep else readable(self.name)
        if kept is not None and kept.exists and (self._settings.options.keep or not kept.has_notebook):
            take = "" if kept.has_notebook else f"take it over with %distributed attach {self.name}, or "
            where = f", attached to the notebook of process {kept.notebook[0]}" if kept.has_notebook else ""
            raise UsageError(
                f"a cluster named {self.name!r} is already up ({kept}{where}): {take}start another with --name."
            )

    def was_left_behind(self) -> bool:
        """Whether a cluster of the same name and settings runs without a notebook: `attach` can take it over."""
        kept = left_behind().get(self.name) if self._settings.lease != 0 else None
        return kept is not None and kept.is_like(self._settings, self._hosts, self._backend_name)

    def _gather(self, ranks: Ranks, progress: Callable[[str], None]) -> None:
        """Accept the ranks that a scheduler or ipyparallel engines start."""
        assert ranks.listener is not None
        how, asked = ranks.open_listener(), self._settings.options
        count, timeout = asked.n, asked.timeout
        if asked.ipp_profile is not None:
            from allranks.hosts.profiles import spawn_on_engines

            count = spawn_on_engines(asked.ipp_profile, count, how, timeout or 0.0, progress)
        self._hosts = ranks.gather(count, JOIN_WITHIN if timeout is None else timeout, progress)

    def _where_folder_lacks(self, ranks: Ranks) -> str:
        """A sentence on which ranks work in which folder, if a host lacks the notebook's folder; empty otherwise.

        With `sync`, it is empty, too: the report of `sync` names the folders.
        """
        lacks = [rank.host for rank in ranks.monitor.ranks if rank.folder]
        if self._settings.options.sync or not lacks:
            return ""
        here = self._settings.cwd
        where = alike({rank.rank: rank.folder or here for rank in ranks.monitor.ranks})
        said = "; ".join(f"{rank_label(numbers)} in {folder}" for folder, numbers in where.items())
        hosts = [ranks.monitor.shown_as(host) for host in dict.fromkeys(lacks)]
        return (
            f"{said}. {', '.join(hosts)} {'has' if len(hosts) == 1 else 'have'} no {here}: up --sync sends this folder "
            "there, and --cwd names another."
        )

    def _forks_here(self) -> bool:
        """Whether this machine's host process will start ranks, as far as is known before other hosts are reached."""
        engines = self._backend_name == "auto" or get_backend(self._backend_name).launcher == "engines"
        return engines and any(host.local for host in self._hosts)

    def _choose_backend(self, ranks: Ranks) -> None:
        sites = ranks.sites(self._hosts)
        if self._backend_name == "auto":
            mesh, ring = rdma_links(self._hosts)
            self._backend_name, self.chosen_because = choose(sites, rdma_mesh=mesh, rdma_ring=ring)
        elif reason := cannot_run(self._backend_name, sites):
            raise CannotStart(reason)

    @classmethod
    def attach(cls, name: str | None = None) -> Self:
        """Take over a cluster whose notebook is gone, including its running cell (`adopted_cells`).

        Clusters with ``keep=True`` outlive their notebook, and so do those with a lease if it did not end them. Without
        a `name`, take over the only such cluster. Raises NoCluster if there is none of that name or it cannot be taken
        over, and UsageError if there are several and no name is given.
        """
        ranks = attaching.attach(name or only_left_behind(), ProxiedComms())
        cluster = cls.__new__(cls)  # not by `__init__`: the folder and program that it checks may be gone by now
        cluster._hold(ranks.settings, ranks.hosts, ranks.backend.name)
        cluster._ranks, cluster._monitor = ranks, ranks.monitor
        cluster._cells = itertools.count(ranks.monitor.last_cell + 1)
        return cluster

    def down(self) -> None:
        """End every process that this cluster started and remove its files; does nothing if it is already down.

        Processes on hosts that are out of reach (`not_ended`) are ended once these hosts are reached, as long as this
        process runs.
        """
        ranks, self._ranks, self._formed_late = self._ranks, None, ""
        if ranks is None:
            return
        self.queue.close("the cluster ended")
        if self._client is not None:
            self._client.close()
            self._client = None
        ranks.end()
        for cell in list(self._following):
            cell.end_run()
        self._last = None
        self.not_ended = ranks.reached.away
        self._watch.stop()

    def __enter__(self) -> Self:
        return self.up()

    def __exit__(self, *_: object) -> None:
        self.down()

    # Measuring.

    def bench(
        self,
        ops: Sequence[str] = ("all_sum",),
        *,
        smallest: int = 1 << 10,
        largest: int = 64 << 20,
        seconds: float = 0.3,
        compare: Sequence[str] = (),
        connections: Sequence[int] = (),
        progress: Callable[[str], None] = lambda _text: None,
    ) -> BenchResult:
        """Measure these collectives with float32 arrays of `smallest` to `largest` bytes, in powers of two.

        Each call is evaluated on its own. Values are checked before and after the timed calls. A size takes about
        `seconds`, and at least eight calls. ``send`` measures each link separately. With `compare` (backends) or
        `connections` (of a ring link), the ranks are rewired to each choice, and back at the end; they keep their
        variables as with `rewire`. `progress` is called with a line of text before each step. algbw and busbw are
        defined as in nccl-tests: see `bench.bus_bandwidth`.

        Raises UsageError for operations or sizes that cannot be measured, CellFailed if a rank fails, and what `run`
        and `rewire` raise.
        """
        from allranks.bench.measure import Bench, sweep

        sizes = sweep(smallest, largest)
        ranks = self._refuse_if_unable(range(self.size))
        result = Bench(
            self,
            ranks,
            ops=ops,
            sizes=sizes,
            seconds=seconds,
            compare=compare,
            connections=connections,
            progress=progress,
            stop=Stop(around=True),
        ).run()
        self.last_bench, ranks.monitor.peak = result, result.peak
        return result
