"""Shows folded blocks in the notebook, and carries out the ranks' clears and updates of output."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby, takewhile
from typing import ClassVar

from IPython.display import clear_output

from allranks.head.state.cell_run import CellRun
from allranks.head.state.logged import Row

from .bar_display import BarLine, BarLines
from .cell_curves import CellCurves
from .differing_lines import ROWS, LayoutChoice, LineColumns
from .figure_grid import Figures, is_figure
from .finished_bars import RankBar, bar_line
from .fold import Block
from .live_lines import LiveArea
from .output_writer import Display, MimeBundle, Writer, is_plain, settled
from .page_room import PageRoom

DISPLAYS_KEPT = 4096
"""Limit, over all cells, for the displays that an update can still find."""
FEW = 8
"""Number of lines that may differ between ranks before the page shows ranks in columns."""
AHEAD = 4
"""How many times as many lines as any other a rank in columns may print, and how many displays full of them."""


class Show:
    """The output of one cell on ``ranks``. For one thread at a time.

    ``live``: whether output can be removed and changed, true in a kernel and false in a terminal. If not, clears are
    ignored, an update is shown as a new display, unfinished lines are not shown, and curves are drawn only at the end.
    ``has_widget`` returns whether the page has the model with an id; other widgets are shown as text. If it is None,
    there may be no page, so output is not laid out in columns.
    """

    _displays: ClassVar[dict[tuple[int, str], Display]] = {}
    """Displays of all cells, by rank and the rank's own id: a cell may update displays of earlier cells."""

    def __init__(self, ranks: Sequence[int], *, live: bool, has_widget: Callable[[str], bool] | None = None) -> None:
        self.live = live
        self._has_widget = has_widget or (lambda _model: False)
        self._ranks, self._has_page = tuple(sorted(ranks)), has_widget is not None
        self._own_lines = Counter[tuple[int, ...]]()
        """How many lines only some ranks printed, by the ranks that printed them."""
        self._writer = Writer(ranks, live=live, has_page=self._has_page)
        self._live_area = LiveArea(self._writer.prefix) if live else None
        self._room = PageRoom() if live else None
        self._bars = BarLines(self)
        self._curves = CellCurves()
        self._picture: Display | None = None
        """The curves. The display belongs to no rank, so it stays when ranks clear their output."""
        # All that the output shows, so that it can be written again when part of it is removed. The first ``_painted``
        # items are on the screen; ``_stale`` says whether the screen is out of date.
        self._model: list[Block | Display] = []
        self._painted = 0
        self._stale = False
        self._changed: dict[Display, None] = {}
        self._clearing: set[int] = set()  # ranks whose clear_output(wait=True) is pending until their next output

    def blocks(self, blocks: Iterable[Block]) -> None:
        """Show ``blocks`` after the earlier output."""
        for block in blocks:
            self._take(block)
        self._paint()

    def live_lines(self, lines: Mapping[int, str]) -> None:
        """Show the unfinished last lines, by rank; empty if all lines are finished.

        Drawn at most 10 times a second; lines that come too soon are drawn by a later call.
        """
        if self._live_area and self._room:
            self._live_area.want(lines, self._room.summary if self._room.leaves_out else tuple)

    def logged(self, rows: Sequence[Row], run: CellRun | None = None) -> None:
        """Add values that ranks logged in ``run``, and draw the curves, which keep their place in the output."""
        with self._no_harm():
            self._curves.add(rows, run)
            if self.live and (bundle := self._curves.due()):
                self._show_picture(bundle)

    @contextmanager
    def _no_harm(self) -> Iterator[None]:
        """Log an exception instead of raising it: a picture that cannot be drawn must not end the cell."""
        try:
            yield
        except Exception:
            logging.getLogger("allranks").exception("the curves of a cell could not be drawn")
            self._curves = CellCurves()

    def _show_picture(self, bundle: MimeBundle) -> None:
        if self._picture is None:
            self._picture = Display((), {}, bundle, owner=self)
            self._model.append(self._picture)
        else:
            self._picture.bundle = bundle
            self._changed[self._picture] = None
        self._paint()

    def close(self) -> None:
        """End the cell's output: remove the unfinished lines, draw the final curves and release the output."""
        if self._live_area and self._room:
            self._live_area.want({})
            self._writer.write(self._room.conclude())
        with self._no_harm():
            if bundle := self._curves.due(ended=True):
                self._show_picture(bundle)
        self._curves, self._picture = CellCurves(), None
        for shown in self._model:
            if isinstance(shown, Display):
                shown.bundle = {}
        self._model.clear()
        self._painted = 0

    def _take(self, block: Block) -> None:
        if block.kind in ("display", "result", "update"):
            block = block._replace(content=settled(block.content, self._has_widget))
        if block.kind == "clear":
            if block.content:
                self._clearing.update(block.ranks)
            else:
                self._forget(block.ranks)
        elif block.kind == "update":
            self._update(block.ranks, block.content)
        else:
            if due := self._clearing.intersection(block.ranks):
                self._clearing -= due
                self._forget(due)
            if block.kind in ("display", "result") and block.content.get("display_id") is not None:
                self._add_display(block.ranks, block.content)
            else:
                self._add_block(block)

    def _add_block(self, block: Block) -> None:
        if self._room and block.kind == "error":  # summarise before the error, so that the error stays last
            self._model += self._room.conclude()
        elif self._room and block.kind == "bar":
            self._add_bar(block, self._room)
            return
        elif self._room and block.is_printed:
            fitting = self._room.take(block)
            if fitting is None:
                return
            block = fitting
        if not (self.live and is_figure(block) and self._add_figure(block)):
            self._model.append(block)

    def _add_bar(self, block: Block, room: PageRoom) -> None:
        """Show a bar on the line of other ranks' same bar, or on a new line if there is room."""

        def has_room(bars: Mapping[int, RankBar]) -> bool:
            line = Block("text", tuple(bars), bar_line(bars))
            return room.take(line) == line

        changed, new = self._bars.add(block.content, has_room)
        self._changed.update(dict.fromkeys(changed))
        self._model += new

    def _add_figure(self, block: Block) -> bool:
        """Put a figure next to the figures before it, if those belong to other ranks; returns whether it did."""
        before = self._model[-1] if self._model else None
        if before is None or not set(before.ranks).isdisjoint(block.ranks):
            return False
        if isinstance(before, Figures):
            before.add(block)
            self._changed[before] = None
            return True
        if isinstance(before, Block) and is_figure(before):
            self._stale |= self._painted == len(self._model)
            self._model[-1] = Figures([before, block], owner=self)
            return True
        return False

    def _add_display(self, ranks: tuple[int, ...], bundle: MimeBundle) -> None:
        new = Display(ranks, _ids(ranks, bundle), bundle, owner=self)
        self._model.append(new)
        self._register(new)

    def _register(self, new: Display) -> None:
        for rank in new.ranks:
            self._displays.pop((rank, new.ids[rank]), None)
            self._displays[rank, new.ids[rank]] = new
        while len(self._displays) > DISPLAYS_KEPT:
            del self._displays[next(iter(self._displays))]

    def _forget(self, ranks: Collection[int]) -> None:
        """Remove the output of ``ranks``; output that they share with other ranks stays for the others."""
        if not self.live:
            return
        self._bars.cleared(ranks)
        if any(isinstance(shown, LineColumns) for shown in self._model):
            self._undo_columns()
        kept: list[Block | Display] = []
        gone: list[Block] = []
        painted = 0
        for i, shown in enumerate(self._model):
            others = tuple(rank for rank in shown.ranks if rank not in ranks)
            if len(others) != len(shown.ranks):
                self._stale |= i < self._painted
                if isinstance(shown, Display):
                    if isinstance(shown, BarLine) and not others:
                        gone.append(Block("text", shown.ranks, shown.bundle["data"]["text/plain"]))
                    self._leave(shown, ranks)
                else:
                    shown = shown._replace(ranks=others)
            if others or shown is self._picture:
                kept.append(shown)
                painted += i < self._painted
            elif isinstance(shown, Block):
                gone.append(shown)
        self._model, self._painted = kept, painted
        if self._room:
            self._room.cleared(ranks, gone)

    def _leave(self, shown: Display, ranks: Collection[int]) -> None:
        """Remove ``ranks`` from ``shown``, so that they can no longer update it."""
        for rank in set(ranks).intersection(shown.ranks):
            if rank in shown.ids and self._displays.get((rank, shown.ids[rank])) is shown:
                del self._displays[rank, shown.ids[rank]]
        shown.leave(ranks)

    def _update(self, ranks: tuple[int, ...], bundle: MimeBundle) -> None:
        """Update the displays with the ranks' ids; show a new display for ranks whose display cannot be updated."""
        ids = _ids(ranks, bundle)
        named: dict[Display | None, list[int]] = {}
        for rank in ranks:
            named.setdefault(self._displays.get((rank, ids[rank])), []).append(rank)
        new = named.pop(None, [])
        for shown, by in named.items():
            if shown is None or not self.live or (shown.owner is not self and len(by) < len(shown.ranks)):
                new += by
                if shown:
                    self._leave(shown, by)
                continue
            target = shown if len(by) == len(shown.ranks) else self._split(shown, tuple(by))
            if target.owner is self:
                self._stale |= is_plain(bundle) != is_plain(target.bundle)  # only plain text includes its label
            target.bundle = bundle
            self._changed[target] = None
        if new:
            self._add_display(tuple(sorted(new)), bundle)

    def _split(self, shown: Display, ranks: tuple[int, ...]) -> Display:
        """Give ``ranks`` a display of their own, before or after the other ranks' display, in rank order."""
        new = Display(ranks, shown.ids, shown.bundle, owner=self)
        shown.ranks = tuple(rank for rank in shown.ranks if rank not in ranks)
        self._register(new)
        at = self._model.index(shown)
        self._model.insert(at + (ranks[0] > shown.ranks[0]), new)
        if at < self._painted:
            self._painted += 1
            self._stale = True
        return new

    def _undo_columns(self) -> None:
        """Turn lines in columns into blocks again, which are laid out again together with the next output."""
        shown = [one for one in self._model if not isinstance(one, LayoutChoice)]
        self._model = [block for one in shown for block in (one.blocks if isinstance(one, LineColumns) else [one])]
        self._stale, self._painted = True, 0

    def _lay_out(self) -> None:
        """Put new lines into columns if ranks differ in more than a few lines."""
        fresh = self._model[self._painted :]
        del self._model[self._painted :]
        for is_line, run in groupby(fresh, _is_line):
            shown = list(run)
            if not is_line:
                self._model += shown
                continue
            lines = [one for one in shown if isinstance(one, Block)]
            own = [block for block in lines if block.ranks != self._ranks]
            for block in own:
                self._own_lines[block.ranks] += block.content.count("\n") or 1
            if self._model and isinstance(self._model[-1], LineColumns):
                lines = self._add_to_columns(lines)
                self._model += lines if self._runs_away() else self._columns(lines)
            elif len({block.ranks for block in own}) > 1 and self._stand_apart():
                self._model += self._columns(lines)
            else:
                self._model += lines

    def _add_to_columns(self, lines: list[Block]) -> list[Block]:
        """Add lines to the columns at the end of the output; return those for which they have no room."""
        before = takewhile(lambda one: isinstance(one, LineColumns), reversed(self._model))
        for each in [one for one in before if isinstance(one, LineColumns)][::-1]:  # the first may have room, too
            rest = each.add(lines)
            if rest != lines:
                self._changed[each] = None
            lines = rest
        return lines

    def _stand_apart(self) -> bool:
        """Whether ranks differ in over `FEW` lines so far, but print similar numbers of lines."""
        second, most = self._most_own()
        return 1 < second <= most <= 2 * second and self._own_lines.total() > FEW

    def _runs_away(self) -> bool:
        """Whether a rank prints far more lines than all others, and is not only ahead of them."""
        second, most = self._most_own()
        return most > AHEAD * max(second, ROWS)

    def _most_own(self) -> tuple[int, int]:
        """The two highest counts in `_own_lines`, the lower one first."""
        second, most = sorted([0, 0, *self._own_lines.values()])[-2:]
        return second, most

    def _columns(self, lines: Sequence[Block]) -> list[Block | Display]:
        before = next((one for one in self._model if isinstance(one, LayoutChoice)), None)
        choice = before or LayoutChoice(len(self._ranks), self)
        shown: list[Block | Display] = [] if before else [choice]
        while lines:
            columns = LineColumns(self._ranks, self._writer.prefix, choice)
            lines = columns.add(lines)
            shown.append(columns)
        return shown

    def _paint(self) -> None:
        """Update the screen to match the model."""
        if self._stale:
            # wait: the old output stays until the new output arrives, so nothing flickers
            clear_output(wait=bool(self._model))  # type: ignore[no-untyped-call]
            self._painted, self._stale = 0, False
            self._own_lines.clear()
            self._writer.start_over()
            if self._live_area:
                self._live_area.wiped()
        if self._has_page:
            self._lay_out()
        fresh = self._model[self._painted :]
        self._update_in_place(fresh)
        self._writer.write(fresh)
        if self.live:
            self._painted = len(self._model)
        else:
            self._model.clear()
        if self._live_area:
            self._live_area.refresh(wrote=bool(fresh))

    def _update_in_place(self, fresh: Sequence[Block | Display]) -> None:
        written_anyway = set(map(id, fresh)) if self._changed else set()
        for shown in self._changed:
            if (shown.ranks or shown is self._picture) and id(shown) not in written_anyway:
                self._writer.update(shown)
            if shown.owner is not self:
                shown.bundle = {}
        self._changed.clear()


def _is_line(shown: Block | Display) -> bool:
    return isinstance(shown, Block) and shown.kind == "text" and shown.is_printed


def _ids(ranks: Iterable[int], bundle: MimeBundle) -> dict[int, str]:
    ids: Mapping[int, str] = bundle.get("ids") or {}
    return {rank: ids[rank] if rank in ids else str(bundle["display_id"]) for rank in ranks}
