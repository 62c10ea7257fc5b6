"""Compares replicas of a variable: which of its leaves differ between ranks, and how far apart their values are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

from allranks.messages.requests import Described, Leaf
from allranks_backends.plan import alike, rank_label

from .variables_table import shape_text

MOST_COMPARED = 50
"""Maximum number of leaves whose values are fetched to report how far apart they are."""


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


def _kind(entry: Described) -> str:
    return shape_text(entry) or entry.type
