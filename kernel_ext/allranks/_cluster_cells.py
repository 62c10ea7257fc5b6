"""The part of `Cluster` that runs cells, stops them and looks into them."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

from . import _debug
from ._arguments import known_check
from ._cell import Cell, Screen
from ._cluster_base import ClusterBase
from ._ranks import Ranks
from ._recording import Recording
from ._result import CellResult
from ._watch import Nowhere, Tee
from .errors import CannotStart, UsageError

if TYPE_CHECKING:
    from ._debug import Debugger
    from ._timeline import Timeline

SHOWN_WITHIN = 5.0
"""Seconds that an interrupt waits for the end of a cell to be shown, once its ranks are done."""


class ClusterCells(ClusterBase):
    """Cells on the ranks."""

    last_timeline: Timeline | None = None
    """That of the last cell that was recorded."""

    def run(
        self,
        code: str,
        *,
        ranks: Sequence[int] | int | None = None,
        timeout: float | None = None,
        want_values: bool = True,
        screen: Screen | None = None,
        count: int | None = None,
        max_output: int | None = None,
        check: str | None = None,
        ordered: bool | None = None,
        profile: bool = False,
        timeline: bool | Literal["lazy"] = False,
        breakpoints: bool = False,
    ) -> CellResult:
        """Run `code` as an IPython cell on `ranks` (all by default) and wait for its end.

        What ranks raise is in the result (`CellResult.check` raises it). Output is in the result, `max_output` bytes of
        text a rank (4 MB), and shown where a `screen` is given. `want_values` brings the last expression's value along,
        `count` is the cell's number in tracebacks, `check` and `ordered` replace the cluster's own for this cell.
        `profile` times each collective by evaluating it at once, which costs overlap (`OpView.transfer`, `wait`).
        `timeline` does the same and records when (`CellResult.timeline`); ``"lazy"`` records without evaluating.
        With `breakpoints` a rank stops at ``breakpoint()``, where `debug` goes; without, it passes over it with a line.

        Raises NoCluster, WorldBroken, WouldHang, Busy, UsageError, CellTimeout (after `timeout` seconds) and
        CellInterrupted (Ctrl-C); the ranks live on after each of them.
        """
        cell = self.begin(
            code,
            ranks=ranks,
            want_values=want_values,
            screen=screen,
            count=count,
            max_output=max_output,
            check=check,
            ordered=ordered,
            profile=profile,
            timeline=timeline,
            breakpoints=breakpoints,
        )
        return cell.finish(timeout)

    def begin(
        self,
        code: str,
        *,
        ranks: Sequence[int] | int | None = None,
        want_values: bool = True,
        screen: Screen | None = None,
        count: int | None = None,
        max_output: int | None = None,
        check: str | None = None,
        ordered: bool | None = None,
        profile: bool = False,
        timeline: bool | Literal["lazy"] = False,
        breakpoints: bool = False,
        widgets: bool = False,
        read: Callable[[str], str] | None = None,
    ) -> Cell:
        """Send a cell without waiting; `Cell.finish` follows it and has the result, `Cell.interrupt` stops it.

        `widgets` says that it is shown on a page that has widgets, so that tqdm.notebook draws its own.

        `read` (``input``) asks the user for the commands of the debugger, while `Cell.finish` follows the cell.
        """
        check = known_check(check) if check else self.check
        chosen = self.choose_ranks(ranks)
        ranks_up = self._refuse_if_unable(chosen)
        if len(chosen) < self.size:
            self._refuse_pending(ranks_up, chosen, code)
        number = next(self._cells)
        tee = None
        if self._watch.watched and not isinstance(screen, Nowhere):
            tee = Tee(self._watch, screen, number, chosen, code, count or number)
        cell = Cell(
            number,
            code,
            chosen,
            ranks_up.monitor,
            ranks_up.lifeline,
            count=count or number,
            screen=tee or screen,
            want_values=want_values,
            max_output=max_output,
            check=check,
            ordered=self.ordered if ordered is None else ordered,
            profile=profile or timeline is True,
            recording=self._recording(ranks_up, chosen, code, count or number, timeline) if timeline else None,
            breakpoints=breakpoints,
            widgets=widgets,
            read=read,
            on_end=self._after_cell,
        )
        if tee is not None:
            tee.cell = cell
        cell.start()
        self._following.append(cell)
        return cell

    def _recording(self, ranks: Ranks, chosen: list[int], code: str, count: int, how: bool | str) -> Recording:
        about = {"name": self.name, "backend": self.backend, "count": count, "code": code, "size": self.size}
        recording = Recording(ranks.monitor, ranks.lifeline, chosen, {**about, "lazy": how == "lazy"})
        recording.begin()
        return recording

    def _after_cell(self, cell: Cell) -> str | None:
        """Form the world anew if the cell had to break it; returns what to tell the user."""
        ranks = self._ranks
        self._culprits = sorted(cell.result.errors) if cell.result is not None else []
        if cell.result is not None and cell.result.timeline is not None:
            self.last_timeline = cell.result.timeline
        if cell in self._following:
            self._following.remove(cell)
        if ranks is None or not cell.broke:
            return None
        if cell.mismatch and ranks.monitor.breakable:
            ranks.monitor.state = "broken"
        if not self._changing.acquire(blocking=False):
            return None  # somebody heals it at this moment
        started = time.monotonic()
        try:
            if not self._can_form_anew(ranks):
                return None
            ranks.form_anew()
        except CannotStart as error:
            return f"The world could not be formed anew: {error} %distributed heal tries again."
        finally:
            self._changing.release()
        return (
            f"The world was formed anew (epoch {ranks.monitor.epoch}) in {time.monotonic() - started:.2f} s; "
            "all variables are kept."
        )

    def adopted_cells(self, screen: Callable[[Sequence[int]], Screen | None] = lambda _ranks: None) -> list[Cell]:
        """The cells that ran, or ended unseen, when `attach` took the cluster over; `Cell.finish` follows one."""
        ranks = self._up()
        cells = []
        for number, (members, events) in sorted(ranks.monitor.adopted().items()):
            cell = Cell(number, "", members, ranks.monitor, ranks.lifeline, count=number, screen=screen(members))
            cell.adopt(events)
            cells.append(cell)
        return cells

    # Stopping and freeing.

    def interrupt(self, *, ranks: Sequence[int] | int | None = None, within: float = 0.0) -> str:
        """Stop every cell that runs: Python code raises KeyboardInterrupt, blocked collectives are freed.

        On some ``ranks`` only, the cell fails there, and then it is as if these had raised. Waits up to `within`
        seconds for what they run to end, and returns what still runs then, in words; nothing where all has ended.
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
        return monitor.snapshot().doing(busy)

    def _wait_for_ends(self, cells: Sequence[Cell]) -> None:
        """Let those who follow these cells show how they ended, and form the world anew where that is due."""
        deadline = time.monotonic() + SHOWN_WITHIN
        for cell in cells:
            cell.shown.wait(max(0.0, deadline - time.monotonic()))

    def break_collectives(self, *, ranks: Sequence[int] | int | None = None) -> None:
        """Free ranks that wait in a collective (``%distributed break``); Python code goes on.

        The cell fails on them, and the world is formed anew when it is over.
        """
        chosen = self.choose_ranks(ranks)
        for cell in list(self._following):
            cell.free(chosen)

    # Looking into a rank.

    def to_debug(self) -> int:
        """The first rank that stands at a breakpoint, or else the first whose last cell raised. Raises UsageError."""
        views = self._up().monitor.snapshot().ranks
        at_breakpoint = [view.rank for view in views if view.state == "debugging"]
        failed = [view.rank for view in views if view.state == "failed"]
        raised = [rank for rank in self._culprits if rank in failed]  # and was not only freed
        if found := at_breakpoint or raised or failed:
            return found[0]
        raise UsageError("no rank stands at a breakpoint, and none raised in its last cell: nothing to look at.")

    def debug(self, rank: int) -> Debugger:
        """The debugger of one rank: at its ``breakpoint()``, or a look back at what its last cell raised.

        ``cluster.debug(2).ask("p x")``. Raises UsageError where there is nothing to look at, and Busy.
        """
        return _debug.enter(self._up(), self.choose_ranks(rank)[0])

    def console(self, rank: int) -> str:
        """Have a rank listen for a console on loopback; returns the shell command that opens one.

        The console is ipyparallel's and Jupyter's own: nothing of it passes through the notebook. Raises UsageError
        for ranks on other hosts, and what `run` raises.
        """
        number = self.choose_ranks(rank)[0]
        if self._settings.shared:
            host = self.snapshot.ranks[number].host
            raise UsageError(
                f"a console reaches ranks of clusters on one machine only. Rank {number} is on {host}: run cells "
                f"on it with %%rank {number}, or look back at an error with %distributed debug -r {number}."
            )
        header = self._told(number, self._ask_all({"do": "console"}, number)[number], "console")
        install = "" if shutil.which("jupyter-console") else "pip install jupyter-console    # it is not here yet\n"
        return f"{install}jupyter console --existing {header['file']}"

    def has_widget(self, model: str) -> bool:
        """Whether the page has this model of a widget on a rank."""
        return self._ranks is not None and self._ranks.monitor.comms.shows(model)
