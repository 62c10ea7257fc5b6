"""Round trip of a trivial cell on four ranks, against %%px.

The sides take turns cell by cell. ``%%px`` runs on the very engines of allranks (equal engines: their agent runs too),
and on a second cluster as ``ipyparallel.Cluster`` makes it. All output is captured the same way.
"""

from __future__ import annotations

from statistics import median

from ._notebook import DEFAULT, Notebook, notebook
from ._plain import plain_cluster
from ._table import Bar, Row, Table

RANKS = 4
CELLS = 30
"""Cells of each side in a round; a round's sample is their median."""
EQUAL, PLAIN = "%%px, same engines", "%%px, ipyparallel's defaults"
GOALS = {("pass", EQUAL): 0.4, ("1", EQUAL): 0.5}
"""Goal of each code against one side; 1.0 for the others."""


def measure(repeat: int | None, *, quick: bool = False) -> Table:
    """Rounds of `CELLS` cells of each side in turn."""
    rounds, cells = (repeat or 2, 5) if quick else (repeat or 7, CELLS)
    table = Table("cell", f"round trip of a trivial cell, {RANKS} ranks, p50 of {cells} cells a round; lower is better")
    with notebook(RANKS) as here:
        if quick:
            _measure(here, {EQUAL: ("px", "--block")}, rounds, cells, table)
        else:
            with plain_cluster(RANKS) as client:
                here.activate(client, DEFAULT)
                _measure(here, {EQUAL: ("px", "--block"), PLAIN: (f"px{DEFAULT}", "--block")}, rounds, cells, table)
    return table


def _measure(here: Notebook, others: dict[str, tuple[str, str]], rounds: int, cells: int, table: Table) -> None:
    magics = {"": ("distributed", ""), **others}
    for code in ("pass", "1"):
        samples: dict[str, list[float]] = {side: [] for side in magics}
        _round(here, magics, code, 5)  # warm
        for _ in range(rounds):
            for side, seconds in _round(here, magics, code, cells).items():
                samples[side].append(seconds)
        table.rows += [
            Row(f"`{code}`", "s", samples[""], samples[other], other, Bar("at most", GOALS.get((code, other), 1.0)))
            for other in others
        ]


def _round(here: Notebook, magics: dict[str, tuple[str, str]], code: str, cells: int) -> dict[str, float]:
    """Median seconds of each side over ``cells`` cells, the sides in turn and each as often first."""
    samples: dict[str, list[float]] = {side: [] for side in magics}
    order = list(magics)
    for _ in range(cells):
        for side in order:
            samples[side].append(here.cell(*magics[side], code).seconds)
        order.append(order.pop(0))
    return {side: median(seconds) for side, seconds in samples.items()}
