"""Sends cells to the ranks, and stops them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec

from allranks.errors import CannotStart, CellInterrupted, UsageError
from allranks.head.cell.still_busy import still_busy
from allranks.head.state.cell_run import CellRun
from allranks.head.state.code_constants import Constant
from allranks.head.world.ranks import Ranks
from allranks.messages.requests import KeepCall
from allranks.notebook.feed_dashboards import Nowhere, Screen, Tee, Watch
from allranks.notebook.ipython_shell import running_shell
from allranks_backends.plan import rank_label

from .applied_functions import AppliedFunctions, PackedCall
from .cell import Cell, SentCell
from .cell_queue import CellQueue
from .cell_text import CellText
from .live_ranks import LiveRanks
from .option_keywords import LocalOptions, local_options
from .run_history import RUNS
from .sync_folder import SyncFolder

if TYPE_CHECKING:
    from allranks.notebook.notify import Notifier
    from allranks.timeline.fetch_traces import Recording
    from allranks.timeline.timeline import Timeline

SHOWN_WITHIN = 5.0
"""Seconds that an interrupt waits for the end of a cell to be shown, once its ranks are done."""


class Cells:
    """Sends cells to the ranks, and stops them. `Cluster` documents its attributes."""

    def __init__(self, live: LiveRanks, folder: SyncFolder, watch: Watch) -> None:
        self._live, self._folder, self._watch = live, folder, watch
        self.check, self.ordered = live.settings.options.check, live.settings.options.ordered
        self.notifier: Notifier | None = None
        self.last_timeline: Timeline | None = None
        self.queue = CellQueue(self.begin, self._recent, lambda: list(live.following), self._is_busy)
        self._last: SentCell | None = None
        """The last cell that the user ran."""

    def functions(self, options: Mapping[str, object]) -> AppliedFunctions:
        """Return an object that calls functions on the ranks, in cells with these options."""
        return AppliedFunctions(self.begin, self._shown, options)

    def _shown(self, ranks: Sequence[int] | int | None, wait: bool) -> dict[str, object]:
        """The options that show a cell on `ranks` below the notebook's running cell; empty outside a notebook.

        `wait`: whether the running cell waits for the cell on `ranks`.
        """
        shell = running_shell()
        if shell is None:
            return {}
        from allranks.notebook.front_end import shown_in  # imports IPython, which scripts do not need

        return shown_in(shell, self._live.choose_ranks(ranks), self._live.has_widget, wait=wait)

    def begin(self, runs: str | PackedCall, **options: object) -> Cell:
        """Send a cell that runs code or calls a function (see `Cluster.begin`)."""
        given = local_options(**options)
        self._live.ranks_up()
        try:
            # If two threads start cells at once, all ranks must get these cells in the same order.
            with self._live.starting:
                return self._start(runs, given)
        except CellInterrupted:
            raise
        except KeyboardInterrupt:
            raise CellInterrupted from None

    def _start(self, runs: str | PackedCall, given: LocalOptions) -> Cell:
        code, names = (runs, runs) if isinstance(runs, str) else (runs.text, "\n".join(runs.names))
        said = list[str]()
        while True:
            ranks_up = self._live.refuse_if_unable(self._live.choose_ranks(given.ranks))
            with self._live.changing:
                generation, chosen = ranks_up.monitor.generation, self._live.choose_ranks(given.ranks)
            if len(chosen) < self._live.size:
                self._live.refuse_pending(ranks_up, chosen, names)
            said += filter(None, (self._live.formed_late, self._folder.before_cell(ranks_up, chosen)))
            self._live.formed_late = ""
            number = next(self._live.cell_numbers)
            if isinstance(runs, PackedCall):
                self._live.all_replies(partial(self._live.ask_all, KeepCall(number), chosen, runs.buffers), chosen)
            with self._live.changing:  # another thread may have changed the world meanwhile
                monitor = ranks_up.monitor
                if self._live.ranks is ranks_up and (monitor.state, monitor.generation) == ("whole", generation):
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
        self._live.following.append(cell)
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
        """A cell's run, which joins the history once the cell logs; with `late`, the cell may have logged already."""
        run = CellRun(number, code, chosen, self._live.backend, arguments=arguments, on_first=RUNS.join)
        ranks_up.monitor.logged.follow(number, run.add, late=late)
        return run

    def _recent(self) -> list[SentCell]:
        """The running cells, followed by the user's last cell."""
        last = self._last
        return [cell.sent for cell in self._live.following if cell.sent is not last] + ([] if last is None else [last])

    def _is_busy(self, ranks: Sequence[int] | int | None) -> bool:
        """Whether one of these ranks runs a cell. Raises NoCluster and UsageError."""
        return bool(self._live.ranks_up().monitor.busy(self._live.choose_ranks(ranks)))

    def _requests_underway(self, uuid: str) -> Sequence[str]:
        """The unanswered requests that the plain client (`Cluster.client`) has sent to the engine `uuid`."""
        # ipyparallel (9.2) makes public only the requests to all engines. A copy, since another thread adds to them.
        return tuple(self._live.client._outstanding_dict[uuid].copy()) if self._live.client is not None else ()

    def _recording(self, ranks: Ranks, chosen: list[int], code: str, count: int, how: bool | str) -> Recording:
        from allranks.timeline.fetch_traces import Recording  # only here: few cells have a timeline

        live = self._live
        about = {"name": live.settings.name, "backend": live.backend, "count": count, "code": code, "size": live.size}
        recording = Recording(ranks.monitor, ranks.lifeline, chosen, {**about, "lazy": how == "lazy"})
        recording.begin()
        return recording

    def _after_cell(self, cell: Cell) -> str | None:
        """Re-form the world if the cell left it broken; returns a message for the user, or None."""
        ranks = self._live.ranks
        if cell.result is not None and cell.result.timeline is not None:
            self.last_timeline = cell.result.timeline
        if cell in self._live.following:
            self._live.following.remove(cell)
        if ranks is None or not cell.broke:
            return None
        if cell.mismatch and ranks.monitor.breakable:
            ranks.monitor.state = "broken"
        if not self._live.changing.acquire(blocking=False):
            return None  # another thread is changing the world
        try:
            return self._live.form_anew(ranks) if self._live.can_form_anew(ranks) else None
        except CannotStart as error:
            return f"Could not re-form the world: {error} Try again with %distributed heal."
        finally:
            self._live.changing.release()

    def adopted_cells(self, screen: Callable[[Sequence[int]], Screen | None]) -> list[Cell]:
        """See `Cluster.adopted_cells`."""
        ranks = self._live.ranks_up()
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
            self._live.following.append(cell)
            cells.append(cell)
        return cells

    def printed(self, *, ranks: Sequence[int] | int | None) -> CellText:
        """See `Cluster.printed`."""
        living = self._live.ranks_up()
        number = self._last.number if self._last is not None else living.monitor.last_cell
        own = self._last.ranks if self._last is not None else range(self._live.size)
        if not number:
            raise UsageError("no cell has run yet.")
        if ranks is None and not (ranks := [rank for rank in own if rank < self._live.size]):
            raise UsageError(f"the last cell ran on {rank_label(list(own))}; this world has fewer ranks now.")
        return CellText(living, number, self._live.choose_ranks(ranks))

    # Stopping and unblocking.

    def interrupt(self, *, ranks: Sequence[int] | int | None, within: float) -> str:
        """See `Cluster.interrupt`."""
        if self._live.ranks is None:
            return ""
        chosen, following = self._live.choose_ranks(ranks), list(self._live.following)
        monitor = self._live.ranks.monitor
        self._live.ranks.interrupt(chosen)
        if ranks is None:
            for cell in following:
                cell.release()
        if within and monitor.wait(lambda: not monitor.busy(chosen), within):
            self._wait_for_ends([cell for cell in following if cell.followed and set(chosen) & set(cell.ranks)])
        busy = [rank.rank for rank in monitor.busy(chosen)] if within else []
        if not busy:
            return ""
        tried_for = math.inf if any(cell.unblocks for cell in following) else monitor.unblocks_for()
        return still_busy(monitor.snapshot(), busy, after=within, abortable=monitor.breakable, tried_for=tried_for)

    def _wait_for_ends(self, cells: Sequence[Cell]) -> None:
        """Wait, at most `SHOWN_WITHIN`, until the end of each cell is shown and the world re-formed if necessary."""
        deadline = time.monotonic() + SHOWN_WITHIN
        for cell in cells:
            cell.shown.wait(max(0.0, deadline - time.monotonic()))

    def abort_collectives(self, *, ranks: Sequence[int] | int | None) -> list[int]:
        """See `Cluster.abort_collectives`."""
        chosen = self._live.choose_ranks(ranks)
        waiting = [view.rank for view in self._live.snapshot.ranks if view.state == "waiting" and view.rank in chosen]
        for cell in list(self._live.following):
            cell.free(chosen)
        return waiting

    def end(self) -> None:
        """After the ranks have ended: end the run of each cell that has not ended itself."""
        for cell in list(self._live.following):
            cell.end_run()
        self._last = None
