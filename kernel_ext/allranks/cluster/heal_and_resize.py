"""Changes the ranks of the world: replaces dead ones, adds and removes ranks, rewires them to another backend."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from typing import Literal

from allranks.check_arguments import fits_here, known_backend
from allranks.errors import Busy, CannotStart, CellInterrupted, UsageError
from allranks.head.state.make_views import state_of, trouble
from allranks.head.world import healing
from allranks.head.world.change import WorldChange
from allranks.head.world.ranks import Ranks
from allranks.notebook.stop_button import undisturbed
from allranks_backends.plan import alike, rank_label
from allranks_backends.registry import cannot_run

from .live_ranks import LiveRanks, no_answer

JUST_ENDING = 1.0
"""Grace period, in seconds, for ranks that were just interrupted, or that enter collectives they had missed."""


class HealAndResize:
    """Heals, resizes and rewires the world."""

    def __init__(self, live: LiveRanks) -> None:
        self._live = live

    def heal(self, *, source: int | None, kill: Sequence[int], progress: Callable[[str], None]) -> WorldChange:
        """See `Cluster.heal`."""
        ranks = self._live.ranks_up()
        dead = [rank.rank for rank in ranks.monitor.ranks if rank.dead]
        doomed = self._live.choose_ranks(kill) if kill else []
        busy = [rank.rank for rank in ranks.monitor.busy(range(self._live.size))]
        copied = self._live.choose_ranks(source) if source is not None else []
        self._refuse_stopped([rank for rank in range(self._live.size) if rank not in doomed])
        if not dead and not doomed and not ranks.owed and ranks.monitor.state == "whole":
            return self._unchanged("heal", busy)
        if {*copied} & {*dead, *doomed}:
            why = "is dead" if copied[0] in dead else "is to be killed, too"
            raise UsageError(f"cannot copy from rank {source}: it {why}. Choose another rank.")
        self._refuse_empty(source)
        stopped = self._running_cells([rank for rank in busy if rank not in doomed])
        change = self._change("heal", lambda: healing.heal(ranks, source, doomed, progress))
        return replace(change, stopped_cells=stopped)

    def _change(self, verb: str, change: Callable[[], WorldChange]) -> WorldChange:
        """Carry out the change. After Ctrl-C, raises CellInterrupted, which says how far the change went."""
        ranks, done = self._live.ranks_up(), None
        try:
            with self._live.changing, undisturbed():
                ranks.monitor.changing = True
                try:
                    done = change()
                finally:
                    ranks.monitor.changing = False
            return done
        except KeyboardInterrupt:
            if done is not None:
                raise CellInterrupted(f"{verb} had to finish first. {done}") from None
            raise CellInterrupted(f"{verb} was stopped before its end. {self._left(ranks)}") from None

    def _left(self, ranks: Ranks) -> str:
        """Describe the world after a change that was stopped; if the world is incomplete, save its state, too."""
        state = state_of(ranks.monitor)
        if state == "incomplete":
            ranks.save()
        return trouble(ranks.monitor, state) or "Nothing was changed."

    def _refuse_stopped(self, numbers: Container[int]) -> None:
        """Raise NoAnswer if the process of one of these ranks is stopped: it could not join the next world."""
        there = [rank for rank in self._live.ranks_up().monitor.ranks if rank.rank in numbers and rank.dead is None]
        if stopped := [rank.rank for rank in there if rank.process_is_stopped()]:
            raise no_answer(self._live.snapshot, stopped, "Nothing was changed.")

    def _refuse_empty(self, source: int | None) -> None:
        """Raise UsageError if `source` is a new rank that has no variables yet."""
        owed = self._live.ranks_up().owed
        if source in owed and owed[source] is None:
            raise UsageError(f"cannot copy from rank {source}: it has no variables yet. Choose another rank.")

    def _running_cells(self, busy: Sequence[int]) -> dict[int, tuple[int, ...]]:
        """Map the cells that these ranks run, by their number in the notebook, to the ranks that run them."""
        counts = {cell.number: cell.count for cell in list(self._live.following)}
        monitor = self._live.ranks_up().monitor
        cells = alike({rank: monitor.ranks[rank].cell for rank in busy})
        return {counts.get(cell, cell): tuple(ranks) for cell, ranks in cells.items() if cell is not None}

    def _refuse_if_running(self, verb: str) -> None:
        """Raise Busy if ranks run a cell, which the change would stop.

        If a rank is dead, do nothing: the cell fails anyway.
        """
        monitor = self._live.ranks_up().monitor
        if any(rank.dead for rank in monitor.ranks):
            return
        monitor.wait(lambda: not monitor.busy(range(self._live.size)), JUST_ENDING)
        cells = self._running_cells([rank.rank for rank in monitor.busy(range(self._live.size))])
        if not cells:
            return
        each = "; ".join(
            f"{rank_label(ranks)} still {'runs' if len(ranks) == 1 else 'run'} cell {number}"
            for number, ranks in cells.items()
        )
        raise Busy(
            f"{verb} was not done: {each}. Wait for its end, or stop it first with %distributed interrupt "
            "(%distributed status shows where the ranks are)."
        )

    def _unchanged(self, verb: Literal["heal", "resize"], busy: Sequence[int] = ()) -> WorldChange:
        """The result of a change that had nothing to do."""
        monitor = self._live.ranks_up().monitor
        away = tuple(sorted({rank.host for rank in monitor.ranks} & monitor.away.keys()))
        same = WorldChange(verb, self._live.size, self._live.backend, monitor.generation, changed=False)
        return replace(same, busy=tuple(busy), away=away)

    def resize(self, size: int, *, source: int | None, progress: Callable[[str], None]) -> WorldChange:
        """See `Cluster.resize`."""
        ranks = self._live.ranks_up()
        if size < 1:
            raise UsageError(f"resize {size}: a world needs at least 1 rank.")
        if self._live.local:
            fits_here(f"resize {size}", size - self._live.size)
        if source is not None:
            self._live.choose_ranks(source)
            self._refuse_empty(source)
        self._refuse_stopped(range(min(size, self._live.size)))
        dead = [rank.rank for rank in ranks.monitor.ranks if rank.dead]
        # The world need not be whole if all dead ranks are removed, or if this completes an earlier change.
        if state_of(ranks.monitor) != "incomplete" and (not dead or dead[0] < size):
            ranks = self._live.whole()
        if size == self._live.size and not ranks.owed:
            return self._unchanged("resize")
        self._refuse_if_running(f"resize {size}")
        if reason := cannot_run(self._live.backend, ranks.sites(healing.resized(ranks, size)), up=True):
            raise CannotStart(reason)
        stopped = self._running_cells([rank.rank for rank in ranks.monitor.busy(range(min(size, self._live.size)))])

        def change() -> WorldChange:
            self._refuse_if_running(f"resize {size}")  # another thread may have begun a cell
            try:
                return healing.resize(ranks, size, source, progress)
            finally:
                self._live.hosts = ranks.hosts

        return replace(self._change("resize", change), stopped_cells=stopped)

    def rewire(
        self,
        backend: str | None,
        *,
        connections: int | None,
        progress: Callable[[str], None],
    ) -> WorldChange:
        """See `Cluster.rewire`."""
        ranks = self._live.ranks_up()
        self._refuse_stopped(range(self._live.size))
        if state_of(ranks.monitor) != "incomplete":  # another backend may complete an earlier change
            ranks = self._live.whole()
        self._refuse_if_running("rewire")
        if connections is not None and connections < 1:
            raise UsageError(f"--connections {connections}: a ring link needs at least 1.")
        name = backend or self._live.backend
        known_backend(name)
        if reason := cannot_run(name, ranks.sites(ranks.hosts), up=True):
            raise CannotStart(reason)
        links = connections or ranks.settings.options.connections

        def change() -> WorldChange:
            self._refuse_if_running("rewire")  # another thread may have begun a cell
            try:
                return healing.rewire(ranks, name, links, progress)
            finally:
                assert ranks.plan is not None
                self._live.backend = ranks.plan.backend

        return self._change("rewire", change)
