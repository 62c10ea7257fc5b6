"""Compares two runs of an experiment, and draws the results of all runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from allranks.errors import UsageError

from .grid import Run
from .runs_on_disk import Entry, missing, plain_columns, table_of

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes

NEVER_ALIKE = ("at", "folder", "run")


def find_run(entries: Sequence[Entry], wanted: object) -> Entry:
    """Return the run that `wanted` means: by its label, its row in the table, or a mapping with some of its parameters.

    Raises UsageError if there is no such run, or several.
    """
    if isinstance(wanted, int) and -len(entries) <= wanted < len(entries):
        return entries[wanted]
    if isinstance(wanted, Mapping):
        found = [entry for entry in entries if _has(entry, wanted)]
    else:
        found = [entry for entry in entries if entry["run"] == wanted]
    if len(found) == 1:
        return found[0]
    there = "; ".join(entry["run"] for entry in (found or entries)) or "none yet"
    raise UsageError(f"{wanted!r} matches {len(found) or 'no'} run{'s' if len(found) > 1 else ''}: {there}.")


def _has(entry: Entry, wanted: Mapping[str, object]) -> bool:
    known = {**entry["parameters"], "repeat": entry["repeat"]}
    return all(name in known and known[name] == value for name, value in wanted.items())


def ratios(entries: Sequence[Entry], a: object, b: object) -> pandas.DataFrame:
    """Return the columns in which two runs differ, with ``b / a`` for numbers."""
    import pandas

    first, second = find_run(entries, a), find_run(entries, b)
    table = table_of([first, second])
    rows = []
    for name in table.columns:
        left, right = (None if missing(value) else value for value in table[name])
        if left == right or name in NEVER_ALIKE:
            continue
        rows.append({"figure": name, "a": left, "b": right, "b / a": _ratio(left, right)})
    frame = pandas.DataFrame(rows, columns=["figure", "a", "b", "b / a"]).set_index("figure")
    return frame.rename(columns={"a": first["run"], "b": second["run"]} if first["run"] != second["run"] else {})


def _ratio(left: Any, right: Any) -> float:
    numbers = all(isinstance(each, (int, float)) and not isinstance(each, bool) for each in (left, right))
    return float(right / left) if numbers and left else math.nan


def draw(
    table: pandas.DataFrame,
    runs: Sequence[Run],
    x: str,
    y: str,
    by: str | None,
    ideal: str | None,
    ax: Axes | None,
    title: str,
) -> Axes:
    """See `Experiment.plot`."""
    if ideal not in ("up", "down", None):
        raise UsageError(f"invalid ideal {ideal!r}: use up, down or None.")
    if absent := [name for name in (x, y, *([by] if by else [])) if name not in table]:
        raise UsageError(f"no column {absent[0]!r}. Columns: {', '.join(table.columns)}.")
    from pandas.api.types import is_numeric_dtype

    plain = plain_columns(table)  # lists, such as hosts, as text
    there = plain[(plain["status"] == "ok") & plain[x].notna() & plain[y].notna()]
    if there.empty:
        raise UsageError(f"no successful run has {x} and {y}.")
    if not is_numeric_dtype(there[y]):
        raise UsageError(f"{y} is not numeric and cannot be plotted over {x}.")
    numbers = is_numeric_dtype(there[x])  # text keeps the grid's order
    in_proportion = ideal is not None and numbers and there[x].min() > 0
    ax = ax or _axes()
    handles: list[object] = []
    for label, lines in _lines(there, runs, x, by):
        means = lines.groupby(x, sort=numbers)[y].agg(["mean", "min", "max"]).astype(float)
        spread = [means["mean"] - means["min"], means["max"] - means["mean"]]
        drawn = ax.errorbar(means.index, means["mean"], yerr=spread, marker="o", capsize=3, label=label or y)
        handles.append(drawn)
        if in_proportion and len(means) > 1:
            steps = [value / means.index[0] for value in means.index]
            best = [means["mean"].iloc[0] * (step if ideal == "up" else 1 / step) for step in steps]
            colour, name = drawn.lines[0].get_color(), f"{label} ideal".strip()
            handles += ax.plot(means.index, best, "--", linewidth=1, color=colour, alpha=0.6, label=name)
    ax.set_xticks(sorted(there[x].unique()) if numbers else there[x].unique())
    ax.set(xlabel=x, ylabel=y, title=title)
    ax.set_ylim(bottom=0)
    ax.grid(alpha=0.3)
    ax.legend(handles=handles)
    return ax


def _axes() -> Axes:
    import matplotlib.pyplot as pyplot

    axes: Axes = pyplot.subplots(figsize=(6, 4))[1]
    return axes


def _lines(table: pandas.DataFrame, runs: Sequence[Run], x: str, by: str | None) -> list[tuple[str, pandas.DataFrame]]:
    """Return each line's name and rows; without `by`, lines differ in the parameters that vary."""
    names = dict.fromkeys(name for run in runs for name in run.parameters if name in table)
    apart = [by] if by else [name for name in names if name != x and table[name].nunique(dropna=False) > 1]
    if not apart:
        return [("", table)]
    groups = table.groupby(apart, dropna=False, sort=False)
    return [(" ".join(f"{name}={value}" for name, value in zip(apart, key)), rows) for key, rows in groups]
