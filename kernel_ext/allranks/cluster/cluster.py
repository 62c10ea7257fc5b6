"""`Cluster`: a world of ranks that stay up between cells. Each of its methods hands over to the part that does it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

from allranks.cluster_settings import Settings
from allranks.discovery.running_clusters import RunningCluster
from allranks.files.fetch import FetchResult
from allranks.files.share_files import ShareResult
from allranks.files.sync_result import SyncResult
from allranks.head.world import attaching
from allranks.head.world.change import WorldChange
from allranks.head.world.detached_cluster_file import only_left_behind
from allranks.hosts_from_options import hosts_of
from allranks.messages.cell_options import Check
from allranks.notebook.comm_proxies import ProxiedComms
from allranks.notebook.feed_dashboards import Screen, Watch
from allranks.notebook.notify import Notifier
from allranks.notebook.stop_button import Stop
from allranks.up_options import UpOptions
from allranks_backends.views import Snapshot

from . import complete_and_inspect, copy_files, debug, measurements
from .applied_functions import AppliedFunctions, Arguments, RemoteFunction, Returned, finished
from .cell import Cell
from .cell_queue import CellQueue
from .cell_result import CellResult
from .cell_text import CellText
from .cells import Cells
from .compare_variables import Difference
from .console import console_command
from .dashboards import Dashboards
from .exchange_values import ValueExchange
from .heal_and_resize import HealAndResize
from .live_ranks import LiveRanks, unsaid
from .measurements import Measurements
from .option_keywords import KEYWORDS, Keywords, local_options
from .plain_client import plain_client
from .run_history import RUNS, RunHistory
from .saved_state import LoadedState, SaveAndLoad, SavedState
from .start_and_end import StartAndEnd
from .start_times import StartTimes
from .sync_folder import SyncFolder
from .variables_table import Variables

if TYPE_CHECKING:
    from typing import Self

    import pandas

    from allranks.bench.bench_result import BenchResult
    from allranks.timeline.timeline import Timeline
    from allranks_widgets import Dashboard, Recorder

    from .debug import RankDebugger

UP = Keywords(UpOptions)


class Cluster:
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

    With ``sync``, before each cell, this process's working folder is copied to all hosts that lack it, and the ranks
    reload modules that have changed: see `sync`. They also reload modules if IPython's ``%autoreload 2`` is on.

    The keywords are the options of ``%distributed up`` (`UpOptions`). Nothing starts before `up`, which ``with`` calls.
    Raises UsageError for an invalid argument.
    """

    last_bench: BenchResult | None = None
    """The result of the last `bench`; None before the first."""

    @UP.alone
    def __init__(self, *given: Any, **options: Any) -> None:
        asked = UpOptions(*given, **options)
        hosts, named, env = (
            ([], None, {}) if asked.joins else hosts_of(asked.n, asked.hosts, asked.hostfile, asked.ranks_per_host)
        )
        backend = named if asked.backend == "auto" and named else asked.backend
        self._build(LiveRanks(Settings.of(asked, hosts, backend, env), hosts, backend))
        if asked.sync:
            self._folder.refuse_if_too_much()

    def _build(self, live: LiveRanks) -> None:
        """Make the parts of a new cluster, or of one that `attach` takes over. A part may use parts made before it."""
        self._live = live
        watch = Watch(lambda: live.snapshot, lambda seen: live.logs.since(seen))
        self._values = ValueExchange(live)
        self._states = SaveAndLoad(live)
        self._changes = HealAndResize(live)
        self._folder = SyncFolder(live)
        self._cells = Cells(live, self._folder, watch)
        self._dashboards = Dashboards(live, watch, self._cells, self._changes)
        self._start = StartAndEnd(live, self._cells, watch)

    # Up and down.

    def up(self, progress: Callable[[str], None] = unsaid) -> Self:
        """Start the ranks and form the world; returns this cluster.

        While a scheduler or ipyparallel starts the ranks, `progress` is called with a line of text on what is still
        missing, and with an empty text at the end. Before other ranks start, it is called with a warning if a host gets
        more than two ranks per core. Raises UsageError if this cluster is up or being started, if a
        cluster without a notebook has its name, or, with ``keep``, if any running cluster has. Raises CannotStart with
        the reason, and CellInterrupted after Ctrl-C; after either, nothing is left running.
        """
        self._start.up(progress)
        return self

    def was_left_behind(self) -> bool:
        """Whether a cluster of the same name and settings runs without a notebook: `attach` can take it over."""
        return self._start.was_left_behind()

    @classmethod
    def attach(cls, name: str | None = None) -> Self:
        """Take over a cluster whose notebook is gone, including its running cell (`adopted_cells`).

        A cluster with ``keep=True`` outlives its notebook; a cluster with a lease does, too, unless the notebook ended
        it. Without a `name`, take over the only such cluster. Raises NoCluster if there is no such cluster, or if it
        cannot be taken over, and UsageError if there are several and no name is given.
        """
        ranks = attaching.attach(name or only_left_behind(), ProxiedComms())
        cluster = cls.__new__(cls)  # not by `__init__`: the folder and program that it checks may be gone by now
        cluster._build(LiveRanks.attached(ranks))
        return cluster

    def await_ended_cells(self) -> None:
        """After `attach`: wait, at most 10 s, for ranks to report cells that ended while no notebook was attached."""
        self._live.await_ended_cells()

    def let_go(self) -> None:
        """Do not end the ranks when this process ends: until their lease expires, another process can attach."""
        self._live.ranks_up().let_go()

    def down(self) -> None:
        """End every process that this cluster started and remove its files; does nothing if it is already down.

        Processes on hosts that are out of reach (`not_ended`) are ended once these hosts are reached again, if this
        process still runs then.
        """
        self._start.down()

    def __enter__(self) -> Self:
        return self.up()

    def __exit__(self, *_: object) -> None:
        self.down()

    # What there is.

    @property
    def name(self) -> str:
        """The name under which `attach` finds this cluster."""
        return self._live.settings.name

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self._live.size

    @property
    def local(self) -> bool:
        """Whether all ranks run on this machine."""
        return self._live.local

    @property
    def backend(self) -> str:
        """The collective runtime in use; ``auto`` until `up` has chosen one."""
        return self._live.backend

    @property
    def chosen_because(self) -> str:
        """Why ``auto`` chose the backend; empty if the backend was given, before `up`, and after `attach`."""
        return self._start.chosen_because

    @property
    def chosen_network(self) -> str:
        """Why `up` chose a different network from the one that ssh uses; empty if it did not, and after `down`."""
        return self._live.ranks.chosen_network if self._live.ranks is not None else ""

    @property
    def connections(self) -> int:
        """TCP connections per ring link."""
        return self._live.settings.options.connections

    @property
    def working_folders(self) -> str:
        """Which ranks work in which folder, as text, if a host lacks ``cwd``; otherwise, and with ``sync``, empty."""
        return self._start.working_folders

    @property
    def beside(self) -> list[RunningCluster]:
        """Clusters that ran on the other hosts, without a notebook, when `up` started this cluster."""
        return self._start.beside

    @property
    def start_times(self) -> StartTimes | None:
        """How long each step of `up` took; None before `up`, and after `attach`."""
        return self._start.start_times

    @property
    def not_ended(self) -> list[str]:
        """Hosts that `down` could not reach: ranks may still run there."""
        return self._start.not_ended

    @property
    def state(self) -> str:
        """``down``, ``starting``, ``whole``, ``broken``, or ``incomplete`` if a change of the world did not finish."""
        return self._live.state

    @property
    def snapshot(self) -> Snapshot:
        """The current state of the cluster, its hosts, ranks and links."""
        return self._live.snapshot

    def choose_ranks(self, ranks: Sequence[int] | int | None) -> list[int]:
        """Return these ranks sorted, without repetition; all ranks for None. Raises UsageError for an invalid rank."""
        return self._live.choose_ranks(ranks)

    # Cells.

    @property
    def check(self) -> Check:
        """The consistency check of cells whose options set none: ``warn``, ``strict`` or ``off``. Can be set."""
        return self._cells.check

    @check.setter
    def check(self, check: Check) -> None:
        self._cells.check = check

    @property
    def ordered(self) -> bool:
        """Whether collectives are ordered in cells whose options do not set ``ordered``. Can be set."""
        return self._cells.ordered

    @ordered.setter
    def ordered(self, ordered: bool) -> None:
        self._cells.ordered = ordered

    @property
    def notifier(self) -> Notifier | None:
        """Notifies the user of cells that took long, hang, or are at a breakpoint; None for no notifications.

        Can be set.
        """
        return self._cells.notifier

    @notifier.setter
    def notifier(self, notifier: Notifier | None) -> None:
        self._cells.notifier = notifier

    @property
    def queue(self) -> CellQueue:
        """Cells that wait for earlier cells to succeed."""
        return self._cells.queue

    @property
    def last_timeline(self) -> Timeline | None:
        """The timeline of the last cell that ran with a timeline; None if no cell did."""
        return self._cells.last_timeline

    @KEYWORDS.after_code
    def run(self, code: str, **options: Any) -> CellResult:
        """Run `code` as an IPython cell and wait for its end.

        The keywords are the fields of `CellOptions`, and ``screen`` and ``count``.

        The result has what each rank returned, printed and raised; `CellResult.check` raises CellFailed if a rank did
        not finish. Output is also shown if a ``screen`` is given. ``count`` is the cell's number in tracebacks.

        Raises NoCluster, WorldBroken, CannotStart (a broken world cannot be re-formed), WouldHang, Busy, UsageError,
        CellTimeout (after ``timeout`` seconds), CellInterrupted (Ctrl-C) and, if files are copied or modules reloaded
        before the cell, CannotCopy; none of these errors ends a rank. An unknown keyword raises TypeError.
        """
        return self._cells.begin(code, **options).finish()

    @KEYWORDS.after_code
    def begin(self, code: str, **options: Any) -> Cell:
        """Send a cell without waiting for its end; `Cell.finish` returns the result, `Cell.interrupt` stops the cell.

        The keywords are those of `run`.
        """
        return self._cells.begin(code, **options)

    @KEYWORDS.after_code
    async def run_async(self, code: str, **options: Any) -> CellResult:
        """Same as `run`, while other tasks of the event loop run. Cancelling it stops the cell, as Ctrl-C does."""
        return await finished(lambda: self._cells.begin(code, **options))

    @KEYWORDS.alone
    def options(self, **options: object) -> AppliedFunctions:
        """Call functions with these options: ``cluster.options(ranks=[0], timeout=5).apply(function, x)``.

        The keywords are those of `run`, kept apart from the function's own arguments. Raises UsageError for an invalid
        value and TypeError for an unknown keyword.
        """
        local_options(**options)  # raises here, not at the first call
        return self._cells.functions(options)

    def apply(self, function: Callable[..., Returned], /, *args: object, **kwargs: object) -> list[Returned]:
        """Call ``function(*args, **kwargs)`` on all ranks and return their values (`AppliedFunctions.apply`)."""
        return self._cells.functions({}).apply(function, *args, **kwargs)

    async def apply_async(
        self, function: Callable[..., Returned], /, *args: object, **kwargs: object
    ) -> list[Returned]:
        """Same as `apply`, while other tasks of the event loop run. Cancelling it stops the cell, as Ctrl-C does."""
        return await self._cells.functions({}).apply_async(function, *args, **kwargs)

    def remote(self, function: Callable[Arguments, Returned]) -> RemoteFunction[Arguments, Returned]:
        """Decorate a function so that calls to it run on all ranks: `AppliedFunctions.remote` without options."""
        return self._cells.functions({}).remote(function)

    def adopted_cells(self, screen: Callable[[Sequence[int]], Screen | None] = lambda _ranks: None) -> list[Cell]:
        """The cells that ran, or had ended unseen, when `attach` took the cluster over.

        `Cell.finish` returns the result of such a cell. `screen` is called with a cell's ranks, and returns the screen
        that shows its output. Raises NoCluster.
        """
        return self._cells.adopted_cells(screen)

    def printed(self, *, ranks: Sequence[int] | int | None = None) -> CellText:
        """What the last cell printed on `ranks` (default: all its ranks), to be shown, searched and saved.

        Each rank keeps the output of its last four cells that printed something, including output that was not sent to
        this process: up to 1 GiB of one cell, and 1 GiB of all earlier cells together. Raises NoCluster, UsageError for
        an invalid rank, if no cell has run, or if the last cell's ranks no longer exist, CannotCopy if the output of no
        rank can be read, and CellInterrupted.
        """
        return self._cells.printed(ranks=ranks)

    def interrupt(self, *, ranks: Sequence[int] | int | None = None, within: float = 0.0) -> str:
        """Stop all running cells: Python code raises KeyboardInterrupt, blocked collectives are aborted.

        If the backend's collectives cannot be aborted, the missing ranks enter them. With `ranks`, only these are
        stopped; the other ranks go on as if these had raised. Waits up to `within` seconds for the ranks to end their
        cells. Returns a text on the ranks that still run and what to do about them; empty if all have ended their
        cells, or if `within` is 0.
        """
        return self._cells.interrupt(ranks=ranks, within=within)

    def abort_collectives(self, *, ranks: Sequence[int] | int | None = None) -> list[int]:
        """Unblock ranks that wait in a collective (``%distributed abort``); ranks that run other code go on.

        If the backend's collectives cannot be aborted, `ranks` that run other code are interrupted, too. The cell fails
        on the unblocked ranks, and the world is re-formed when the cell has ended. Returns the ranks that waited.
        """
        return self._cells.abort_collectives(ranks=ranks)

    # Debugging.

    def to_debug(self) -> int:
        """The rank to debug: the first one at a breakpoint, otherwise one whose last cell raised.

        Of several that raised, it is the rank with the newest cell. If none raised, it is a rank that was stopped or
        unblocked. Raises UsageError if there is nothing to debug.
        """
        return debug.rank_to_debug(self._live.ranks_up().monitor)

    def debug(self, rank: int) -> RankDebugger:
        """The debugger of one rank: at its ``breakpoint()``, or post-mortem after the error of its last cell.

        For example ``cluster.debug(2).ask("p x")``. Raises UsageError if there is nothing to debug, and Busy if the
        rank runs a cell and is not at a breakpoint, or does not answer within 10 s.
        """
        return debug.enter(self._live.ranks_up(), self._live.choose_ranks(rank)[0])

    def console(self, rank: int) -> str:
        """Have a rank listen for a Jupyter console on this machine; returns the shell command that opens it.

        The console connects to the rank directly, not through the notebook. Raises UsageError if some ranks of the
        cluster are on other hosts, NoAnswer if the rank does not answer, RankError if it cannot listen, and what `run`
        raises.
        """
        return console_command(self._live, rank)

    # Values and variables.

    def push(self, values_by_name: Mapping[str, object], *, ranks: Sequence[int] | int | None = None) -> None:
        """Set variables on the ranks. Arrays are sent as raw bytes.

        The values are bound once all ranks in `ranks` have loaded them, so either all ranks have the new values or none
        has. The exception is a rank that dies or stops while values are bound: the error then names the ranks that have
        them. Raises CannotTravel for a value that cannot be sent, UsageError for an invalid name, NoAnswer for a rank
        that is dead or does not answer, RankError for a rank that cannot load the values, and what `run` raises.
        """
        self._values.push(values_by_name, ranks=ranks)

    def pull(self, name: str, *, ranks: Sequence[int] | int | None = None) -> list[Any]:
        """The value of `name` (or of a dotted path such as ``model.layers``) on each rank, in rank order.

        Ranks whose cell calls ``log`` or `end_step` in a loop answer after their next step, if the value is evaluated.
        They may be at different steps.

        Raises Busy for ranks that run any other cell, CannotTravel for a value that cannot be sent, UsageError if a
        rank has no such variable, NoAnswer if a rank is dead, stopped or unreachable, RankError for another error on a
        rank, and what `run` raises.
        """
        return self._values.pull(name, ranks=ranks)

    def scatter(self, values_by_name: Mapping[str, object]) -> None:
        """Split arrays, lists or tuples along the first axis, and set one part on each rank.

        If `size` does not divide the length, the first ranks get one element more, as with ``numpy.array_split``.
        Raises UsageError for a value without a first axis, WorldBroken if a rank is dead, and what `push` raises.
        """
        self._values.scatter(values_by_name)

    def gather(self, name: str, *, ranks: Sequence[int] | int | None = None) -> Any:
        """The parts of `name` on `ranks` (default: all), joined along the first axis in rank order: an array or list.

        Raises UsageError if the parts cannot be joined, and what `pull` raises.
        """
        return self._values.gather(name, ranks=ranks)

    def vars(self, *names: str) -> Variables:
        """The ranks' variables: type, shape and bytes of each name, and whether ranks agree. Evaluates nothing.

        The table leaves out ranks that do not answer, and names them. Raises UsageError for a name that no rank has,
        NoAnswer if no rank answers, and Busy for ranks that run a cell without steps (see `pull`).
        """
        return self._values.vars(*names)

    def diff(self, name: str, *, ranks: Sequence[int] | int | None = None) -> list[Difference]:
        """Where replicas of `name` differ: the path of each leaf that differs, and how far apart its values are.

        Raises UsageError if `ranks` has fewer than two ranks, and what `pull` raises.
        """
        return self._values.diff(name, ranks=ranks)

    @property
    def saves_to(self) -> str | None:
        """The folder to which `begin_save` is still writing; None otherwise."""
        return self._states.saves_to

    def save(
        self, path: str | os.PathLike[str], names: Sequence[str] | str | None = None, *, complete: bool = False
    ) -> SavedState:
        """Save the ranks' variables, or only these `names`, and their random states to the folder `path`.

        `path` is a folder on each host, or on a disk that hosts share; relative paths begin at the ranks' working
        folder. Arrays are written as safetensors, everything else with pickle; ``manifest.json`` lists the contents of
        each file. Arrays that are equal on all ranks are written once for each disk. An earlier state in the folder is
        replaced once the new one is complete on all hosts; until then, `load` finds the earlier one.

        Without `names`, variables that cannot be saved are left out, and named in the result. Raises CannotSave, before
        anything is written, if one of the `names` (or, with `complete`, any variable) cannot be saved, and also if a
        host cannot write; UsageError for a name that no rank has; WouldHang for a variable that waits for a collective
        on some ranks only; NoAnswer and WorldBroken for ranks that do not answer or die; CellInterrupted, and what
        `run` raises.
        """
        return self._states.save(path, names, complete=complete)

    def begin_save(self, path: str | os.PathLike[str], names: Sequence[str] | str | None = None) -> Future[SavedState]:
        """Same as `save`, but returns once ranks have a snapshot of their variables. Cells may run while it is written.

        Changes that these cells make are not saved. The future raises what `save` raises while it writes; it cannot be
        cancelled.
        """
        return self._states.begin_save(path, names)

    def load(self, path: str | os.PathLike[str], names: Sequence[str] | str | None = None) -> LoadedState:
        """Load what `save` wrote to the folder `path`: all variables and the random states, or only these `names`.

        If the world has as many ranks as saved the state, each rank gets the values of the rank with its number. A
        world of another size, or with a rank whose files are on another host, can load only variables that were equal
        on all ranks; if there are others, `names` must leave them out. Variables are bound once all ranks have loaded
        them and verified the checksums, so either all ranks have them or none has. The exception is a rank that dies or
        stops while variables are bound. Other variables of the ranks stay.

        Like `pickle`, this runs code from the files: load only what you have saved. Raises CannotLoad if there is no
        state, it is damaged, or it does not fit this world; UsageError for a name that it does not have; NoAnswer and
        WorldBroken for ranks that do not answer or die; CellInterrupted, and what `run` raises.
        """
        return self._states.load(path, names)

    # The ranks of the world.

    def heal(
        self, *, source: int | None = None, kill: Sequence[int] = (), progress: Callable[[str], None] = unsaid
    ) -> WorldChange:
        """Replace dead ranks by new processes and re-form the world; the other ranks keep all variables.

        With `source`, a new rank gets the variables of that rank, as far as they can be sent. Ranks to `kill` are
        killed first; this is for ranks that are stuck and cannot be interrupted. Running cells are stopped. If all
        processes must be restarted, `progress` is called with a line on the variables that will be lost, before any
        process is ended. Returns what was kept, what was lost, and which cells were stopped.

        Raises CannotStart, UsageError for an invalid rank, NoAnswer for a rank whose process is stopped, NotLoaded if
        new processes lack variables that were saved for them (the message says where these are), Busy if a cell cannot
        be interrupted, and CellInterrupted after Ctrl-C.
        """
        return self._changes.heal(source=source, kill=kill, progress=progress)

    def resize(self, size: int, *, source: int | None = None, progress: Callable[[str], None] = unsaid) -> WorldChange:
        """Grow or shrink the world to `size` ranks; ranks that stay keep their variables. Returns what was kept.

        With `source`, a new rank gets the variables of that rank, as far as they can be sent. `progress` is as in
        `heal`. Raises what `heal` raises, Busy if ranks run a cell, WorldBroken if a rank that would stay is dead, and
        UsageError if `size` is below 1 or the ranks would not fit into memory.
        """
        return self._changes.resize(size, source=source, progress=progress)

    def rewire(
        self,
        backend: str | None = None,
        *,
        connections: int | None = None,
        progress: Callable[[str], None] = unsaid,
    ) -> WorldChange:
        """Move the ranks to another backend; they keep their variables. Returns what was kept and lost.

        `connections` is the number of TCP connections per ring link. `progress` is as in `heal`. Raises what `heal`
        raises, Busy if ranks run a cell, WorldBroken if a rank is dead, and UsageError for an unknown backend or
        `connections` below 1.
        """
        return self._changes.rewire(backend, connections=connections, progress=progress)

    # Files.

    @property
    def auto_sync(self) -> bool:
        """Whether the working folder is copied to all hosts, and changed modules are reloaded, before each cell.

        Can be set. Switching it on raises UsageError if the working folder is the home folder or ``/``, or no longer
        exists.
        """
        return self._folder.auto_sync

    @auto_sync.setter
    def auto_sync(self, on: bool) -> None:
        self._folder.auto_sync = on

    def sync(
        self,
        *,
        limit: int | str | None = None,
        include: Sequence[str] = (),
        overwrite: bool = False,
        progress: Callable[[str], None] = unsaid,
    ) -> SyncResult:
        """Copy the notebook's working folder to all hosts that lack it, and reload modules that have changed.

        Sends changed files, except notebooks, secrets, files that ``.gitignore`` excludes, and the largest files beyond
        50 MiB in total. `limit` (bytes, or text such as ``"2G"``) sets another limit; `include` has patterns, as in
        ``.gitignore``, of files that are sent nevertheless. Both also apply to later cells. On a host, only files that
        came from here are replaced or removed, unless `overwrite` is set. Afterwards, ranks work in the copy: in the
        folder that ``cwd`` names, or in one below ``~/allranks``. `progress` is called with a line of text before the
        first files are sent to a host.

        Raises UsageError for the home folder and for invalid arguments, CannotCopy if a host cannot take the files,
        CellInterrupted, and what `run` raises. No host is changed before all hosts have received all files.
        """
        return self._folder.sync(limit=limit, include=include, overwrite=overwrite, progress=progress)

    def fetch(
        self,
        pattern: str,
        *,
        ranks: Sequence[int] | int | None = None,
        to: str | Path | None = None,
        overwrite: bool = False,
    ) -> FetchResult:
        """Copy files of the ranks here: into the folder ``fetched`` beside the notebook, or into the folder `to`.

        `pattern` is a pattern of `glob`, with ``**``: relative to each rank's working folder, absolute, or below ``~``.
        A file that is equal on all ranks that have it is fetched once, under its own path; files that differ between
        ranks are stored below ``rank-0``, ``rank-1`` and so on. Ranks may be running a cell. Modification times are
        kept. Existing files are replaced in ``fetched``, but in the folder `to` only with `overwrite`.

        Raises UsageError if no rank has such a file, or it is here already, CannotCopy if a file cannot be read there
        or written here, or changes meanwhile, NoAnswer and WorldBroken for dead ranks, NoCluster, and CellInterrupted
        (files that are complete by then stay).
        """
        return copy_files.fetch(self._live, pattern, ranks=ranks, to=to, overwrite=overwrite)

    def share(
        self,
        path: str | Path,
        *,
        source: int | str | None = None,
        to: str | Path | None = None,
        overwrite: bool = False,
    ) -> ShareResult:
        """Copy a file or folder from the host that has it to all other hosts, from host to host, and verify checksums.

        `path` is a path on that host (relative paths begin at its rank's working folder), or the id of a repository in
        its Hugging Face cache, such as ``"mlx-community/Qwen3-0.6B-4bit"``. `source` names the host, or a rank on it;
        the default is a host whose copy did not come from a share: the notebook's host, if ranks run there and have the
        files, or the first one. On the other hosts the files get the same path; a path below the source's home folder
        becomes the same path below each host's own. Files of the Hugging Face cache go to the cache there. `to` names
        another folder. In a cell, ``allranks.shared(name)`` returns the path on each rank.

        Files that a host has already are not sent. Only files of an earlier share are replaced, unless `overwrite` is
        set. Ranks may be running a cell. If the network fails for a while, the share goes on when it is back; the next
        call continues a share that was stopped or failed.

        Raises UsageError if no host has the files, copies differ, or something else is in the way; CannotCopy if a host
        cannot send or take them; NoCluster and CellInterrupted. Nothing is put in place before all hosts have all
        files. If a host then cannot put a file in place, it and other hosts may have some of the files in place; each
        of these is complete, and the message says so.
        """
        return copy_files.share(self._live, path, source=source, to=to, overwrite=overwrite)

    # Views.

    def watch(self, *views: str) -> Dashboard:
        """The live dashboard, or some of its pictures: ``topology``, ``ranks``, ``throughput``, ``log``.

        It is updated until the cluster ends, and then keeps its last state; `Dashboard.close` ends it earlier. In a
        notebook, it goes on with the cluster that the next ``%distributed up`` starts. Raises UsageError for an unknown
        picture, and NoCluster.
        """
        return self._dashboards.watch(*views)

    def take_dashboards(self, ended: Cluster) -> None:
        """Have the dashboards of the `ended` cluster show this one. The recorders of `ended` record nothing more."""
        self._dashboards.take_from(ended._dashboards)

    @property
    def topology(self) -> Dashboard:
        """A live dashboard with only the picture of hosts, ranks and links."""
        return self.watch("topology")

    def record(self, path: str | Path) -> Recorder:
        """Record in the file `path` what a dashboard would show, until the returned recorder is closed.

        The recorder is a context manager.
        ``allranks_widgets.replay(path, Dashboard())`` replays the recording, without a cluster.
        """
        return self._dashboards.record(path)

    def history(self) -> pandas.DataFrame:
        """Traffic of the last ten minutes, in bytes per second: by link (``wire``) and by rank (``effective``)."""
        return self._live.ranks_up().monitor.history.frame()

    def logged(self, *names: str) -> pandas.DataFrame:
        """What ranks logged with ``log(loss=..., step=...)``, or only the values of these names; also after `down`.

        One row for each value: ``rank``, ``step``, ``name``, ``value``, ``time`` (UTC) and ``cell``, the number of the
        cell. If a rank logged one name more than 100,000 times, every second one of the older rows is dropped.
        """
        return self._live.logs.frame(names)

    @property
    def runs(self) -> RunHistory:
        """The cells that logged, also in earlier clusters of this process: compare, rename, hide and export them."""
        return RUNS

    def status(self) -> str:
        """The status table as text."""
        from allranks_widgets import status_text

        return status_text(self.snapshot)

    def __repr__(self) -> str:
        if self._live.ranks is None:
            return f"<Cluster {self.name!r}: down>"
        return self.status()

    def _repr_html_(self) -> str | None:
        from allranks_widgets import status_html

        return status_html(self.snapshot) if self._live.ranks is not None else None

    # Requests of the notebook's front end.

    def complete(self, code: str, cursor: int) -> dict[str, Any] | None:
        """Completions from the first living rank; None if there is none, or it does not answer within a second.

        Evaluates nothing, and works while the rank is busy.
        """
        return complete_and_inspect.complete(self._live, code, cursor)

    def inspect(self, name: str, detail: int = 0) -> dict[str, str] | None:
        """The first living rank's description of a name, as a MIME bundle; None if it has none.

        Also None if there is no living rank, or if it does not answer within a second.

        Evaluates nothing, and works while the rank is busy.
        """
        return complete_and_inspect.inspect(self._live, name, detail)

    def has_widget(self, model: str) -> bool:
        """Whether this id names the model of a rank's widget, and the page has that model."""
        return self._live.has_widget(model)

    @property
    def connection_file(self) -> Path:
        """ipyparallel's client connection file: ``ipyparallel.Client(str(cluster.connection_file))``."""
        return self._live.ranks_up().host.connection_file

    @property
    def client(self) -> Any:
        """A plain ``ipyparallel.Client`` of the ranks' engines, made on first use.

        Raises NoCluster, and CannotStart if ipyparallel's controller has ended.
        """
        return plain_client(self._live)

    # Measuring.

    def measure(self) -> Measurements:
        """Memory, the times of collectives and the last logged values, since `up` or `reset_measurements`.

        Memory is asked of the ranks in a cell that no dashboard shows; if they cannot run it, their last reports are
        used. Also works after `down`, without asking. Raises NoCluster if the cluster was never up.
        """
        return measurements.measure(self._live, self._cells)

    def reset_measurements(self) -> None:
        """Forget logged values and the times of collectives, and reset MLX's peak memory on the ranks if they are idle.

        Raises NoCluster.
        """
        measurements.reset(self._live, self._cells)

    def bench(
        self,
        ops: Sequence[str] = ("all_sum",),
        *,
        smallest: int = 1 << 10,
        largest: int = 64 << 20,
        seconds: float = 0.3,
        compare: Sequence[str] = (),
        connections: Sequence[int] = (),
        progress: Callable[[str], None] = unsaid,
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
        ranks = self._live.refuse_if_unable(range(self.size))
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
