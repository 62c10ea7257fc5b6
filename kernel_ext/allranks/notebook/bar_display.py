"""Shows a finished progress bar as a line that a rank joins when it finishes its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping

from .finished_bars import RankBar, bar_line, progress_of
from .output_writer import Display


class BarLine(Display):
    """One line for the bar of all ranks that finished it."""

    def __init__(self, bars: Mapping[int, RankBar], owner: object) -> None:
        super().__init__((), {}, {}, owner)
        self._bars = dict[int, RankBar]()
        self.add(bars)

    def add(self, bars: Mapping[int, RankBar]) -> None:
        self._bars.update(bars)
        self._draw()

    def leave(self, ranks: Collection[int]) -> None:
        self._bars = {rank: bar for rank, bar in self._bars.items() if rank not in ranks}
        self._draw()

    def _draw(self) -> None:
        self.ranks = tuple(sorted(self._bars))
        self.bundle = {"data": {"text/plain": bar_line(self._bars)}} if self._bars else {}


class BarLines:
    """The lines of the bars that a cell finished. A rank finishes its bars in order; ranks may be far apart."""

    def __init__(self, owner: object) -> None:
        self._owner = owner
        self._lines = dict[tuple[str, int], BarLine]()
        """Lines by `progress_of` their bars, and by how many such bars a rank finished before."""
        self._finished = Counter[tuple[str, int]]()
        """How many bars of the same progress a rank has finished."""

    def add(
        self, bars: Mapping[int, RankBar], has_room: Callable[[Mapping[int, RankBar]], bool]
    ) -> tuple[list[BarLine], list[BarLine]]:
        """Put bars of one progress on lines. Returns the lines that changed, and new lines as far as there is room."""
        progress = progress_of(next(iter(bars.values())).text)
        changed, new = list[BarLine](), dict[int, dict[int, RankBar]]()
        for rank, bar in bars.items():
            at = self._finished[progress, rank]
            self._finished[progress, rank] += 1
            line = self._lines.get((progress, at))
            if line is not None and line.ranks:  # else its ranks have cleared their output
                line.add({rank: bar})
                changed.append(line)
            else:
                new.setdefault(at, {})[rank] = bar
        lines = {at: BarLine(of, self._owner) for at, of in new.items() if has_room(of)}
        self._lines.update({(progress, at): line for at, line in lines.items()})
        return changed, list(lines.values())

    def cleared(self, ranks: Collection[int]) -> None:
        """Forget the bars of ranks that cleared their output: rich clears and draws even a finished bar again."""
        for progress, rank in [*self._finished]:
            if rank in ranks:
                del self._finished[progress, rank]
