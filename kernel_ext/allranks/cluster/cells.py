"""The part of `Cluster` that runs, stops and debugs cells."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec

from allranks.errors import CannotStart, CellInterrupted, UsageError
from allranks.head.cell.still_busy import still_busy
from allranks.head.state.cell_run import CellRun
from allranks.head.state.code_constants import Constant
from allranks.head.state.shared_advice import HEALS, died_text
from allranks.head.world.ranks import Ranks
from allranks.messages.requests import Console, KeepCall
from allranks.notebook.feed_dashboards import Nowhere, Screen, Tee
from allranks.notebook.ipython_shell import running_shell
from allranks.timeline.fetch_traces import Recording
from allranks_backends.plan import rank_label
from allranks_backends.views import AT_REST

from . import debug
from .applied_functions import AppliedFunctions, Arguments, PackedCall, RemoteFunction, Returned, finished
from .cell import Cell, SentCell
from .cell_queue import CellQueue
from .cell_result import CellResult
from .cell_text import CellText
from .folder_sync import ClusterFiles
from .options import KEYWORDS, LocalOptions, local_options
from .run_history import RUNS

if TYPE_CHECKING:
    from allranks.timeline.timeline import Timeline

    from .debug import RankDebugger

SHOWN_WITHIN = 5.0
"""Seconds that an interrupt waits for the end of a cell to be shown, once its ranks are done."""


class ClusterCells(ClusterFiles):
    """Runs cells on the ranks."""

    last_timeline: Timeline | None = None
    """The timeline of the last cell that ran with one."""
    queue: CellQueue
    _last: SentCell | None = None
    """The last cell that the user ran."""

    @KEYWORDS.after_code
    def run(self, code: str, **options: Any) -> CellResult:
        """Run `code` as an IPython cell and wait for its end; the keywords are those of `CellOptions`.

        The result has what each rank returned, printed and raised (`CellResult.check` raises it); output is also shown
        if a ``screen`` is given. ``count`` is the cell's number in tracebacks.

        Raises NoCluster, WorldBroken, WouldHang, Busy, UsageError, CellTimeout (after ``timeout`` seconds),
        CellInterrupted (Ctrl-C) and, with ``sync``, CannotCopy; the ranks stay alive after each of them. An unknown
        keyword raises TypeError.
        """
        return self.begin(code, **options).finish()

    @KEYWORDS.after_code
    def begin(self, code: str, **options: object) -> Cell:
        """Send a cell without waiting for its end; `Cell.finish` returns the result, `Cell.interrupt` stops the cell.

        The keywords are those of `run`.
        """
        return self._begin(code, **options)

    @KEYWORDS.after_code
    async def run_async(self, code: str, **options: object) -> CellResult:
        """Same as `run`, while other tasks of the event loop run. Cancelling it stops the cell, as Ctrl-C does."""
        return await finished(lambda: self._begin(code, **options))

    # Functions.

    @KEYWORDS.alone
    def options(self, **options: object) -> AppliedFunctions:
        """Call functions with these options: ``cluster.options(ranks=[0], timeout=5).apply(function, x)``.

        The keywords are those of `run`, kept apart from the function's own arguments. Raises UsageError for an invalid
        value and TypeError for an unknown keyword.
        """
        local_options(**options)  # raises here, not at the first call
        return self._functions(options)

    def apply(self, function: Callable[..., Returned], /, *args: object, **kwargs: object) -> list[Returned]:
        """Call ``function(*args, **kwargs)`` on all ranks and return their values (`AppliedFunctions.apply`)."""
        return self._functions({}).apply(function, *args, **kwargs)

    async def apply_async(
        self, function: Callable[..., Returned], /, *args: object, **kwargs: object
    ) -> list[Returned]:
        """Same as `apply`, while other tasks of the event loop run. Cancelling it stops the cell, as Ctrl-C does."""
        return await self._functions({}).apply_async(function, *args, **kwargs)

    def remote(self, function: Callable[Arguments, Returned]) -> RemoteFunction[Arguments, Returned]:
        """Decorate a function so that calls to it run on all ranks: `AppliedFunctions.remote` without options."""
        return self._functions({}).remote(function)

    def _functions(self, options: Mapping[str, object]) -> AppliedFunctions:
        return AppliedFunctions(self._begin, self._shown, options)

    def _shown(self, ranks: Sequence[int] | int | None, wait: bool) -> dict[str, object]:
        """The options with which a cell on `ranks` is shown below the running cell of the notebook; empty elsewhere."""
        shell = running_shell()
        if shell is None:
            return {}
        from allranks.notebook.front_end import shown_in  # imports IPython, which scripts do not need

        return shown_in(shell, self.choose_ranks(ranks), self.has_widget, wait=wait)

    # Cells that run code or call a function.

    def _begin(self, runs: str | PackedCall, **options: object) -> Cell:
        given = local_options(**options)
        self._up()
        try:
            # If two threads start cells at once, all ranks must get these cells in the same order.
            with self._starting:
                return self._start(runs, given)
        except CellInterrupted:
            raise
        except KeyboardInterrupt:
            raise CellInterrupted from None

    def _start(self, runs: str | PackedCall, given: LocalOptions) -> Cell:
        code, names = (runs, runs) if isinstance(runs, str) else (runs.text, "\n".join(runs.names))
        said = list[str]()
        while True:
            ranks_up = self._refuse_if_unable(self.choose_ranks(given.ranks))
            with self._changing:
                generation, chosen = ranks_up.monitor.generation, self.choose_ranks(given.ranks)
            if len(chosen) < self.size:
                self._refuse_pending(ranks_up, chosen, names)
            said += filter(None, (self._formed_late, self._before_cell(ranks_up, chosen)))
            self._formed_late = ""
            number = next(self._cells)
            if isinstance(runs, PackedCall):
                self._all_replies(self._ask_all(KeepCall(number), chosen, runs.buffers), chosen)
            with self._changing:  # another thread may have changed the world meanwhile
                monitor = ranks_up.monitor
                if self._ranks is ranks_up and (monitor.state, monitor.generation) == ("whole", generation):
                    return self._send(ranks_up, runs, code, given, number, chosen, "\n".join(said))

    def _send(
        self,
        ranks_up: Ranks,
        runs: str | PackedCall,
        code: str,
        given: LocalOptions,
        number: int,
        chosen: list[int],
        said: str,
    ) -> Cell:
        """Send a cell to ranks that can take it; `said` is shown before its output."""
        count = given.count or number
        tee = None
        if self._watch.watched and not isinstance(given.screen, Nowhere):
            tee = Tee(self._watch, given.screen, number, chosen, code, count)
        settled = msgspec.structs.replace(
            given,
            ranks=chosen,
            check=given.check or self.check,
            ordered=self.ordered if given.ordered is None else given.ordered,
            timing=given.timing or given.timeline is True,
            count=count,
            screen=tee or given.screen,
        )
        run = None
        if not isinstance(given.screen, Nowhere):
            arguments = runs.arguments if isinstance(runs, PackedCall) else {}
            run = self._run_of(ranks_up, number, code, chosen, arguments=arguments)
        cell = Cell(
            number,
            code,
            settled,
            ranks_up.monitor,
            ranks_up.lifeline,
            calls=runs.kind if isinstance(runs, PackedCall) else None,
            recording=self._recording(ranks_up, chosen, code, count, given.timeline) if given.timeline else None,
            before=said,
            run=run,
            notifier=(lambda: self.notifier) if run is not None else (lambda: None),
            on_end=self._after_cell,
        )
        if tee is not None:
            tee.result = lambda: cell.result
        cell.start(self._requests_underway)
        if run is not None:  # not a cell of bench or of an experiment
            self._last = cell.sent
        self._following.append(cell)
        return cell

    def _run_of(
        self,
        ranks_up: Ranks,
        number: int,
        code: str,
        chosen: Sequence[int],
        *,
        arguments: Mapping[str, Constant] = MappingProxyType({}),
        late: bool = False,
    ) -> CellRun:
        """A cell's `CellRun`, which joins the history once the cell logs; with `late`, it may have logged already."""
        run = CellRun(number, code, chosen, self.backend, arguments=arguments, on_first=RUNS.join)
        ranks_up.monitor.logged.follow(number, run.add, late=late)
        return run

    def _recent_cells(self) -> list[SentCell]:
        """The running cells, followed by the user's last cell."""
        last = self._last
        return [cell.sent for cell in self._following if cell.sent is not last] + ([] if last is None else [last])

    def _is_busy(self, ranks: Sequence[int] | int | None) -> bool:
        """Whether one of these ranks runs a cell. Raises NoCluster and UsageError."""
        return bool(self._up().monitor.busy(self.choose_ranks(ranks)))

    def _requests_underway(self, uuid: str) -> Sequence[str]:
        """The unanswered requests that `client` has sent to this engine."""
        # ipyparallel (9.2) makes public only the requests to all engines. A copy, since another thread adds to them.
        return tuple(self._client._outstanding_dict[uuid].copy()) if self._client is not None else ()

    def _recording(self, ranks: Ranks, chosen: list[int], code: str, count: int, how: bool | str) -> Recording:
        about = {"name": self.name, "backend": self.backend, "count": count, "code": code, "size": self.size}
        recording = Recording(ranks.monitor, ranks.lifeline, chosen, {**about, "lazy": how == "lazy"})
        recording.begin()
        return recording

    def _after_cell(self, cell: Cell) -> str | None:
        """Re-form the world if the cell had to break it; returns a message for the user."""
        ranks = self._ranks
        if cell.result is not None and cell.result.timeline is not None:
            self.last_timeline = cell.result.timeline
        if cell in self._following:
            self._following.remove(cell)
        if ranks is None or not cell.broke:
            return None
        if cell.mismatch and ranks.monitor.breakable:
            ranks.monitor.state = "broken"
        if not self._changing.acquire(blocking=False):
            return None  # another thread is healing the world
        try:
            return self._form_anew(ranks) if self._can_form_anew(ranks) else None
        except CannotStart as error:
            return f"Could not re-form the world: {error} Try again with %distributed heal."
        finally:
            self._changing.release()

    def adopted_cells(self, screen: Callable[[Sequence[int]], Screen | None] = lambda _ranks: None) -> list[Cell]:
        """The cells that ran, or had ended unseen, when `attach` took the cluster over.

        `Cell.finish` returns the result of such a cell. `screen` is called with a cell's ranks, and returns the screen
        that shows its output. Raises NoCluster.
        """
        ranks = self._up()
        cells = []
        for number, (members, events) in sorted(ranks.monitor.adopted().items()):
            options = LocalOptions(ranks=members, count=number, screen=screen(members))
            run = self._run_of(ranks, number, "", members, late=True)
            cell = Cell(
                number,
                "",
                options,
                ranks.monitor,
                ranks.lifeline,
                run=run,
                notifier=lambda: self.notifier,
                on_end=self._after_cell,
            )
            cell.adopt(events)
            self._following.append(cell)
            cells.append(cell)
        return cells

    def printed(self, *, ranks: Sequence[int] | int | None = None) -> CellText:
        """What the last cell printed on `ranks` (default: all its ranks), to be shown, searched and saved.

        Each rank keeps the output of its last four cells that printed something, including output that was not sent to
        this process: up to 1 GiB of one cell, and 1 GiB of all earlier cells together. Raises NoCluster, UsageError if
        no cell has run or its ranks no longer exist, CannotCopy if the output of no rank can be read, and
        CellInterrupted.
        """
        living = self._up()
        number = self._last.number if self._last is not None else living.monitor.last_cell
        own = self._last.ranks if self._last is not None else range(self.size)
        if not number:
            raise UsageError("no cell has run yet.")
        if ranks is None and not (ranks := [rank for rank in own if rank < self.size]):
            raise UsageError(f"the last cell ran on {rank_label(list(own))}; this world has fewer ranks now.")
        return CellText(living, number, self.choose_ranks(ranks))

    # Stopping and unblocking.

    def interrupt(self, *, ranks: Sequence[int] | int | None = None, within: float = 0.0) -> str:
        """Stop all running cells: Python code raises KeyboardInterrupt, blocked collectives are aborted.

        With `ranks`, only these are stopped; the other ranks go on as if these had raised. Waits up to `within` seconds
        for the ranks to end their cells. Returns a text that names the ranks that still run, and what to do; empty if
        all have ended, or if `within` is 0.
        """
        if self._ranks is None:
            return ""
        chosen, monitor, following = self.choose_ranks(ranks), self._ranks.monitor, list(self._following)
        self._ranks.interrupt(chosen)
        if ranks is None:
            for cell in following:
                cell.release()
        if within and monitor.wait(lambda: not monitor.busy(chosen), within):
            self._wait_for_ends([cell for cell in following if cell.followed and set(chosen) & set(cell.ranks)])
        busy = [rank.rank for rank in monitor.busy(chosen)] if within else []
        if not busy:
            return ""
        tried_for = math.inf if any(cell.unblocks for cell in following) else monitor.unblocks_for()
        return still_busy(monitor.snapshot(), busy, abortable=monitor.breakable, tried_for=tried_for)

    def _wait_for_ends(self, cells: Sequence[Cell]) -> None:
        """Wait until the threads that follow these cells have shown their end and re-formed the world if necessary."""
        deadline = time.monotonic() + SHOWN_WITHIN
        for cell in cells:
            cell.shown.wait(max(0.0, deadline - time.monotonic()))

    def abort_collectives(self, *, ranks: Sequence[int] | int | None = None) -> list[int]:
        """Unblock ranks that wait in a collective (``%distributed abort``); ranks that run other code go on.

        If the backend's collectives cannot be aborted, `ranks` that run other code are interrupted, too. The cell fails
        on the unblocked ranks, and the world is re-formed when the cell has ended. Returns the ranks that waited.
        """
        chosen = self.choose_ranks(ranks)
        waiting = [view.rank for view in self.snapshot.ranks if view.state == "waiting" and view.rank in chosen]
        for cell in list(self._following):
            cell.free(chosen)
        return waiting

    # Debugging.

    def to_debug(self) -> int:
        """The rank to debug: the first one at a breakpoint, otherwise the first one that raised in the newest cell.

        If no rank raised, it is one that was stopped or unblocked. Raises UsageError if there is nothing to debug.
        """
        monitor = self._up().monitor
        newest = sorted(monitor.ranks, key=lambda rank: -max(rank.past, default=0))
        ended = [rank for rank in newest if rank.state in AT_REST]
        at_breakpoint = [rank for rank in monitor.ranks if rank.state == "debugging"]
        failed = [rank for rank in ended if rank.failed]
        stopped = [rank for rank in ended if rank.unblocked or rank.interrupted]
        if found := at_breakpoint or failed or stopped:
            return found[0].rank
        dead = died_text(monitor.ranks)
        raise UsageError(
            "nothing to debug: no rank is at a breakpoint and none raised in its last cell"
            + (f"; {dead}. {HEALS}." if dead else "")
        )

    def debug(self, rank: int) -> RankDebugger:
        """The debugger of one rank: at its ``breakpoint()``, or post-mortem after the error of its last cell.

        For example ``cluster.debug(2).ask("p x")``. Raises UsageError if there is nothing to debug, and Busy if the
        rank runs a cell and is not at a breakpoint.
        """
        return debug.enter(self._up(), self.choose_ranks(rank)[0])

    def console(self, rank: int) -> str:
        """Have a rank listen for a Jupyter console on this machine; returns the shell command that opens it.

        The console connects to the rank directly, not through the notebook. Raises UsageError if some ranks of the
        cluster are on other hosts, and what `run` raises.
        """
        number = self.choose_ranks(rank)[0]
        if self._settings.shared:
            raise UsageError(
                "a console works only if all ranks of the cluster are on this machine. Run cells on rank "
                f"{number} with %%rank {number}, or debug its last error with %distributed debug -r {number}."
            )
        reply = self._all_replies(self._ask_all(Console(), number), number)[number]
        file = self._checked(number, reply, "console").answer.file
        install = "" if shutil.which("jupyter-console") else "pip install jupyter-console    # not installed yet\n"
        return f"{install}jupyter console --existing {file}"

    def has_widget(self, model: str) -> bool:
        """Whether the page has the model with this id, which belongs to a widget of a rank."""
        return self._ranks is not None and self._ranks.monitor.comms.shows(model)
