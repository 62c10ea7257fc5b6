"""Four ranks printing 20,000 lines each, to the last line shown, against %%px.

In turn, on the same engines and on a second cluster as ``ipyparallel.Cluster`` makes it, all output captured the same
way, and counted: every line must be shown in full for every rank that printed it. If several ranks print the same
line, allranks shows it once, under a label that names them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from allranks.notebook.output_writer import BAR

from ._notebook import DEFAULT, Notebook, notebook
from ._plain import plain_cluster
from ._table import Bar, Row, Table

RANKS = 4
SAME, PLAIN = "%%px, same engines", "%%px, ipyparallel's defaults"
LINES = 20_000
CELLS = {
    "alike on all ranks": "for i in range({lines}): print('line', i, 'of the flood')",
    "different on each": "for i in range({lines}): print('line', i, 'of the flood on rank', rank)",
}


def measure(repeat: int | None, *, quick: bool = False) -> Table:
    """Rounds of one flood by allranks and one by ipyparallel."""
    rounds, lines = (repeat or 2, 200) if quick else (repeat or 5, LINES)
    table = Table("flood", f"{RANKS} ranks printing {lines:,} lines each, to the last line shown; lower is better")
    with notebook(RANKS) as here, plain_cluster(RANKS) as client:
        here.activate(client, DEFAULT)
        client[:].scatter("rank", range(RANKS), flatten=True, block=True)
        for what, template in CELLS.items():
            _measure(here, what, template, rounds, lines, table)
    table.notes.append(
        "Lines lost: those of the 80,000 that are not shown whole (median of the rounds); for allranks also those that "
        "are not in the rank's own count."
    )
    return table


def _measure(here: Notebook, what: str, template: str, rounds: int, lines: int, table: Table) -> None:
    floods: dict[str, Callable[[Notebook, str, int], _Flood]] = {
        "": _ours,
        SAME: partial(_theirs, "px"),
        PLAIN: partial(_theirs, f"px{DEFAULT}"),
    }
    for flood in floods.values():
        flood(here, template.format(lines=10), 10)  # warm
    samples: dict[str, list[_Flood]] = {side: [] for side in floods}
    order = list(floods)
    for _ in range(rounds):
        for side in order:
            samples[side].append(floods[side](here, template.format(lines=lines), lines))
        order.append(order.pop(0))
    seconds = {side: [one.seconds for one in of] for side, of in samples.items()}
    lost = {side: [one.lost for one in of] for side, of in samples.items()}
    for against in (SAME, PLAIN):
        table.rows += [
            Row(what, "s", seconds[""], seconds[against], against, Bar("at most", 0.5 if against == SAME else 1.0)),
            Row(f"{what}: lines lost", "", lost[""], lost[against], against, Bar("at most", 0, "ours")),
        ]


class _Flood(NamedTuple):
    seconds: float
    lost: int


def _ours(here: Notebook, code: str, lines: int) -> _Flood:
    done = here.cell("distributed", "--out flood", code)
    ranks = here.shell.user_ns["flood"].values()
    not_counted = sum(abs(lines - rank.lines) + rank.cut["lines"] for rank in ranks)
    return _Flood(done.seconds, not_counted + abs(lines * RANKS - _printed(done.stdout)))


def _theirs(magic: str, here: Notebook, code: str, lines: int) -> _Flood:
    done = here.cell(magic, "--block", code)
    return _Flood(done.seconds, lines * RANKS - len(LINE.findall(done.stdout)))


def _printed(shown: str) -> int:
    """How many lines were printed, of which ``shown`` shows the equal ones once: ``ranks 0-1, 3 \u2502 line 7 ...``."""
    printed = ranks = 0
    for line in shown.splitlines():
        label, _, text = line.partition(BAR)
        if label.strip():  # blank if the line above has the same label
            ranks = sum(int(last or first) - int(first) + 1 for first, last in SPAN.findall(label))
        printed += ranks * len(LINE.findall(text))
    return printed


LINE = re.compile(r"line \d+ of the flood")
SPAN = re.compile(r"(\d+)(?:-(\d+))?")
