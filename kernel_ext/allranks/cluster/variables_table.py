"""The ranks' variables side by side: names with their sizes, and where replicas differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

from allranks.head.state.shared_advice import HEALS
from allranks.messages import requests
from allranks.messages.requests import Described, Leaf
from allranks_backends.plan import alike, rank_label, rank_list
from allranks_backends.views import DTYPE_SHORT
from allranks_widgets import human_bytes
from allranks_widgets.table import html_table, text_table

HEADINGS = ("name", "type", "shape", "bytes per rank", "ranks")
MOST_COMPARED = 50
"""Maximum number of leaves whose values are fetched to report how far apart they are."""


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
            (self.silent, "no answer: stopped, or unreachable"),
            (self.dead, f"dead; {HEALS}"),
        )
        said = "; ".join(f"{rank_label(ranks)} ({why})" for ranks, why in left_out if ranks)
        return f"\nNot shown: {said}." if said else ""


def join(parts: Sequence[Any]) -> Any:
    """Join arrays along their first axis, or lists and tuples into one list. Raises TypeError and ValueError."""
    if all(isinstance(part, (list, tuple)) for part in parts):
        return [each for part in parts for each in part]
    if any(getattr(part, "shape", None) == () for part in parts):
        raise ValueError("it has no axis to join along")
    kinds = {type(part).__module__.split(".")[0] for part in parts}
    if kinds <= {"numpy"}:
        import numpy as np

        return np.concatenate(parts)
    if kinds <= {"mlx"}:
        import mlx.core as mx

        return mx.concatenate(list(parts))
    raise TypeError(f"it is {' and '.join(sorted({type(part).__name__ for part in parts}))}, neither arrays nor lists")


class Difference(NamedTuple):
    """A leaf that is not the same on all ranks."""

    path: str
    said: str


def differing(told: Mapping[int, Sequence[Leaf]]) -> tuple[list[str], dict[str, str]]:
    """The paths whose leaves differ only in value, and, by path, a text on each leaf with a different problem.

    Such a leaf is absent on a rank, is not evaluated yet, or differs in type or shape between ranks.
    """
    paths: dict[str, dict[int, Leaf]] = {}
    for rank, entries in told.items():
        for entry in entries:
            paths.setdefault(entry.path, {})[rank] = entry
    values, said = [], dict[str, str]()
    for path, found in paths.items():
        if absent := [rank for rank in told if rank not in found]:
            said[path] = f"not on {rank_label(absent)}"
        elif any(entry.pending for entry in found.values()):
            said[path] = "not evaluated yet: run mx.eval on all ranks first"
        elif len(kinds := alike({rank: _kind(entry) for rank, entry in found.items()})) > 1:
            said[path] = "; ".join(f"{kind} on {rank_label(ranks)}" for kind, ranks in kinds.items())
        elif len({entry.checksum for entry in found.values()}) > 1:
            values.append(path)
    return values, said


def largest_difference(values: Mapping[int, object]) -> str:
    """Describe how far the values of one leaf are from the lowest rank's; if they are not numbers, list them."""
    import numpy as np

    (first, reference), *others = values.items()
    apart: dict[int, float] = {}
    for rank, value in others:
        try:
            one, other = _numbers(np, reference), _numbers(np, value)
        except (TypeError, ValueError):
            shown = "; ".join(f"{each!r:.40} on rank {rank}" for rank, each in values.items())
            return shown
        if (np.isnan(one) != np.isnan(other)).any():
            apart[rank] = float("nan")
        else:
            apart[rank] = float(np.nan_to_num(np.abs(one - other)).max(initial=0.0))
    far = {rank: gap for rank, gap in apart.items() if gap != 0.0}
    if not far:
        return "equal as numbers, but not bit for bit"
    worst = max(far, key=lambda rank: (far[rank] != far[rank], far[rank]))
    scale = float(np.abs(_numbers(np, reference)).max(initial=0.0))
    relative = f", {far[worst] / scale:.2g} of the largest value" if scale and far[worst] == far[worst] else ""
    size = "NaN on one side only" if far[worst] != far[worst] else f"up to {far[worst]:.3g}{relative}"
    return f"{rank_label(list(far))} against rank {first}: {size} (rank {worst})"


def _numbers(np: ModuleType, value: Any) -> Any:
    if str(getattr(value, "dtype", "")) == "mlx.core.bfloat16":  # numpy does not know bfloat16
        import mlx.core as mx

        value = value.astype(mx.float32)
    array = np.asarray(value)
    return array.astype("complex128" if np.iscomplexobj(array) else "float64")


def _variable(name: str, entries: Mapping[int, requests.DescribedVariable], asked: Sequence[int]) -> VariableRow:
    types = alike({rank: entry.type for rank, entry in entries.items()})
    shapes = alike({rank: _shape(entry) for rank, entry in entries.items()})
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


def _shape(entry: Described) -> str:
    if entry.shape is None:
        return ""
    return f"{DTYPE_SHORT.get(entry.dtype or '', entry.dtype)}[{','.join(map(str, entry.shape))}]"


def _kind(entry: Described) -> str:
    return _shape(entry) or entry.type


def _cells(row: VariableRow) -> tuple[str, ...]:
    known = [size for size in row.nbytes.values() if size is not None]
    sizes = dict.fromkeys(human_bytes(size) for size in sorted(known))
    span = "" if not known else next(iter(sizes)) if len(sizes) == 1 else f"{min(known):,} – {max(known):,} B"
    return row.name, row.type, row.shape, span, row.said
