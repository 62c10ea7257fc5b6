"""The table of the ranks' variables: names with their types and sizes, and whether ranks agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from allranks.head.state.shared_advice import HEALS
from allranks.messages import requests
from allranks.messages.requests import Described
from allranks_backends.plan import alike, rank_label, rank_list
from allranks_backends.views import DTYPE_SHORT
from allranks_widgets import human_bytes
from allranks_widgets.table import html_table, text_table

HEADINGS = ("name", "type", "shape", "bytes per rank", "ranks")


class VariableRow(NamedTuple):
    """One variable name, over all ranks that answered."""

    name: str
    type: str
    shape: str
    nbytes: dict[int, int | None]
    agree: bool | None
    """Whether ranks agree; None if that is unknown: not evaluated, invalid, or neither array nor plain value."""
    said: str


class Variables:
    """The table of ``%distributed vars``."""

    def __init__(
        self,
        told: Mapping[int, Sequence[requests.DescribedVariable]],
        silent: Sequence[int] = (),
        dead: Sequence[int] = (),
    ) -> None:
        self.silent, self.dead = tuple(silent), tuple(dead)
        """Ranks that did not answer (`silent`), and dead ranks: their variables are not in the table."""
        by_name: dict[str, dict[int, requests.DescribedVariable]] = {}
        for rank, entries in told.items():
            for entry in entries:
                by_name.setdefault(entry.name, {})[rank] = entry
        self.rows = [_variable(name, entries, list(told)) for name, entries in sorted(by_name.items())]

    def __str__(self) -> str:
        if not self.rows:
            return f"The ranks have no variables yet.{self._left_out}"
        return text_table(HEADINGS, [_cells(row) for row in self.rows]) + self._left_out

    __repr__ = __str__

    def _repr_html_(self) -> str:
        if not self.rows:
            return f"<div>{self}</div>"
        left_out = f"<div>{self._left_out}</div>" if self._left_out else ""
        return html_table(HEADINGS, [_cells(row) for row in self.rows]) + left_out

    @property
    def _left_out(self) -> str:
        left_out = (
            (self.silent, "no answer: suspended, holding the GIL, or unreachable"),
            (self.dead, f"dead; {HEALS}"),
        )
        said = "; ".join(f"{rank_label(ranks)} ({why})" for ranks, why in left_out if ranks)
        return f"\nNot shown: {said}." if said else ""


def _variable(name: str, entries: Mapping[int, requests.DescribedVariable], asked: Sequence[int]) -> VariableRow:
    types = alike({rank: entry.type for rank, entry in entries.items()})
    shapes = alike({rank: shape_text(entry) for rank, entry in entries.items()})
    absent = [rank for rank in asked if rank not in entries]
    checksums = alike({rank: entry.checksum for rank, entry in entries.items()})
    pending = [rank for rank, entry in entries.items() if entry.pending]
    invalid = [rank for rank, entry in entries.items() if entry.invalid]
    agree: bool | None
    if invalid:
        agree, said = None, f"invalid on {rank_label(invalid)}: a collective was aborted"
    elif pending:
        agree, said = None, f"not evaluated on {rank_label(pending)}"
    elif absent:
        agree, said = False, f"only on {rank_label(list(entries))}"
    elif len(types) > 1 or len(shapes) > 1:
        agree, said = False, "differ"
    elif None in checksums:
        agree, said = None, "not compared"
    elif len(checksums) > 1:
        groups = " | ".join(rank_list(ranks) for ranks in checksums.values())
        agree, said = False, "all differ" if len(checksums) == len(entries) > 2 else f"differ: {groups}"
    else:
        agree, said = True, "identical" if len(entries) > 1 else rank_label(list(entries))
    nbytes = {rank: entry.nbytes for rank, entry in entries.items()}
    return VariableRow(name, " / ".join(types), " / ".join(filter(None, shapes)), nbytes, agree, said)


def shape_text(entry: Described) -> str:
    """``f32[2,3]``; empty if the value has no shape."""
    if entry.shape is None:
        return ""
    return f"{DTYPE_SHORT.get(entry.dtype or '', entry.dtype)}[{','.join(map(str, entry.shape))}]"


def _cells(row: VariableRow) -> tuple[str, ...]:
    known = [size for size in row.nbytes.values() if size is not None]
    sizes = dict.fromkeys(human_bytes(size) for size in sorted(known))
    span = "" if not known else next(iter(sizes)) if len(sizes) == 1 else f"{min(known):,} – {max(known):,} B"
    return row.name, row.type, row.shape, span, row.said
