"""The ratios that are kept with the code (``figures.json``), and how new ones compare with them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Any

from ._table import Row, Table

FILE = Path(__file__).with_name("figures.json")
FEWEST = 5
"""Minimum number of rounds for a figure that is their median."""


def keep(tables: Iterable[Table], machine: Mapping[str, str], file: Path = FILE) -> list[str]:
    """Replace the kept ratios of these tables by the tables' own; returns the names of the tables."""
    kept = _read(file)
    taken = {"date": date.today().isoformat(), "machine": _kind(machine)}
    found = {table.name: {**taken, "ratios": dict(_ratios(table))} for table in tables}
    kept |= {name: figures for name, figures in found.items() if figures["ratios"]}
    file.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
    return [name for name, figures in found.items() if figures["ratios"]]


def compared(tables: Iterable[Table], machine: Mapping[str, str], file: Path = FILE) -> list[str]:
    """A line for each ratio that is worse than every round of the kept ratio, then a line on what was compared."""
    kept, worse, same, other = _read(file), list[str](), 0, set[str]()
    for table in tables:
        if (before := kept.get(table.name)) is None:
            continue
        if before["machine"] != _kind(machine):
            other.add(before["machine"])
        for row in table.rows:
            if (then := before["ratios"].get(_called(row))) is None or row.ratio is None:
                continue
            same += 1
            ratio, lowest, highest = then
            if row.ratio < lowest if row.more_is_better else row.ratio > highest:
                rounds = f"{ratio:.2f} on {before['date']}, rounds {lowest:.2f} to {highest:.2f}"
                worse.append(f"worse: {table.name}, {_called(row)}: {row.ratio:.2f} ({rounds})")
    if not same:
        return ["compared with figures.json: it has none of these ratios (--keep writes them)"]
    elsewhere = f"; it is of another machine: {', '.join(sorted(other))}" if other else ""
    found = f"{len(worse)} of {same} ratios are worse" if worse else f"none of {same} ratios is worse"
    return [*worse, f"compared with figures.json: {found}, by more than its rounds differed{elsewhere}"]


def _ratios(table: Table) -> Iterator[tuple[str, list[float]]]:
    """Ratio, lowest and highest of a round for each row that enough rounds compare with something."""
    for row in table.rows:
        if row.ratio is not None and row.spread is not None and len(row.ours) >= FEWEST:
            yield _called(row), [round(figure, 3) for figure in (row.ratio, *row.spread)]


def _called(row: Row) -> str:
    return f"{row.what} against {row.against}"


def _kind(machine: Mapping[str, str]) -> str:
    return f"{machine['cores']} cores, {machine['system'].partition(' ')[0]}"


def _read(file: Path) -> dict[str, Any]:
    return dict(json.loads(file.read_text())) if file.exists() else {}
