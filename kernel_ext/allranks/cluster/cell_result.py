"""The result of a cell: one entry for each of its ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from itertools import chain
from typing import TYPE_CHECKING

from allranks.errors import CannotTravel, CellFailed, RemoteError
from allranks.head.cell.rank_result import RankResult
from allranks.notebook.safe_text import plain
from allranks_backends.plan import alike, rank_label

if TYPE_CHECKING:
    from allranks.timeline.timeline import Timeline


MOST_LINES = 500
"""Most lines of a rank that marimo shows."""


class CellResult(Mapping[int, RankResult]):
    """The result of a cell: maps each of its ranks to a `RankResult`, as in ``result[2].error``."""

    def __init__(self, cell: int, ranks: Mapping[int, RankResult], seconds: float, mismatch: str | None = None) -> None:
        self.cell = cell
        """Number of the cell in the cluster."""
        self.seconds = seconds
        """Duration of the cell in seconds."""
        self.mismatch = mismatch
        """How the ranks disagreed in collectives, or which collectives had no defined order: their results are invalid.

        None if neither, or if the cell's collectives were not compared.
        """
        self.timeline: Timeline | None = None
        """What each rank did, and when; None if the cell ran without a timeline."""
        self._ranks = dict(ranks)

    @property
    def ok(self) -> bool:
        """Whether every rank ran the cell to its end."""
        return all(rank.ok for rank in self._ranks.values())

    @property
    def errors(self) -> dict[int, RemoteError]:
        """Maps ranks to the errors that they raised themselves; ranks unblocked from a collective are not included."""
        return {number: rank.error for number, rank in self._ranks.items() if rank.error and not rank.unblocked}

    def check(self) -> CellResult:
        """Return this result if it is `ok`, otherwise raise CellFailed."""
        if not self.ok:
            raise CellFailed(self.failure(), self.errors)
        return self

    def failure(self) -> str:
        """Describe each failure: which ranks, what happened, and where; empty if there is none."""
        said, waited = dict[str, list[int]](), dict[str, list[int]]()
        dead = sum(bool(rank.dead) for rank in self._ranks.values())
        for number, rank in self._ranks.items():
            if rank.dead:
                said.setdefault(f"died: {rank.dead}", []).append(number)
            elif rank.unblocked:
                culprit = any(other.dead or (other.error and not other.unblocked) for other in self._ranks.values())
                where = "for it" if culprit else f"in {rank.unblocked}"
                how = "had to be unblocked" if self.mismatch else f"waited {where} and had to be unblocked"
                waited.setdefault(how, []).append(number)
            elif rank.error:
                said.setdefault(f"raised {rank.error}", []).append(number)
            elif not rank.ok:
                # If another rank is dead, heal also ends and restores the ranks that wait for it.
                fix = "heal" if dead else "status"
                said.setdefault(f"did not finish (%distributed {fix})", []).append(number)
        sentences = [f"{rank_label(ranks)} {what}" for what, ranks in (said | waited).items()]
        text = "; ".join([self.mismatch, *sentences] if self.mismatch else sentences)
        return f"{text}. To replace {'it' if dead == 1 else 'them'}: %distributed heal" if dead else text

    def __getitem__(self, rank: int) -> RankResult:
        try:
            return self._ranks[rank]
        except KeyError:
            raise KeyError(f"the cell did not run on rank {rank}, only on {rank_label(list(self._ranks))}") from None

    def __iter__(self) -> Iterator[int]:
        return iter(self._ranks)

    def __len__(self) -> int:
        return len(self._ranks)

    def __repr__(self) -> str:
        how = "ok" if self.ok else self.failure()
        return f"<CellResult of {rank_label(list(self._ranks))}: {how}, {self.seconds:.2f} s>"

    def _mime_(self) -> tuple[str, str]:
        """Return what marimo shows (other front ends show the ranks' output live): output and values, by rank."""
        said = alike({number: _lines(rank) for number, rank in self._ranks.items()})
        labels = {lines: rank_label(ranks) for lines, ranks in said.items()}
        gutter = max(map(len, labels.values()), default=0)
        text = "\n".join(chain.from_iterable(_beside(label.ljust(gutter), lines) for lines, label in labels.items()))
        block = f'<pre style="margin:4px 0;white-space:pre-wrap">{escape(text)}</pre>' if text else ""
        return "text/html", f"<div>{escape(plain(repr(self)[1:-1]))}</div>{block}"


def _lines(rank: RankResult) -> tuple[str, ...]:
    """Return the lines that a rank printed, and its value."""
    lines = [*plain(rank.stdout).splitlines(), *plain(rank.stderr).splitlines()]
    if len(lines) > MOST_LINES:
        lines[MOST_LINES:] = [f"… {len(lines) - MOST_LINES:,} more lines: .stdout and .stderr of the rank's result"]
    try:
        value = rank.value
    except CannotTravel as error:
        return (*lines, str(error))
    return tuple(lines) if value is None else (*lines, *plain(repr(value)).splitlines())


def _beside(label: str, lines: tuple[str, ...]) -> Iterator[str]:
    for number, line in enumerate(lines):
        yield f"{label if number == 0 else ' ' * len(label)} │ {line}"
