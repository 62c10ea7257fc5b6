"""Four ranks printing 20,000 lines each, to the last line shown, against %%px.

On the same engines in turn, all output captured the same way, and counted: every line must be shown whole for every
rank that printed it. allranks shows lines that ranks printed alike once, under a label that names them.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from allranks.notebook.writer import BAR

from ._notebook import Notebook, notebook
from ._table import Bar, Row, Table

RANKS = 4
LINES = 20_000
CELLS = {
    "alike on all ranks": "for i in range({lines}): print('line', i, 'of the flood')",
    "different on each": "for i in range({lines}): print('line', i, 'of the flood on rank', rank)",
}


def measure(repeat: int | None, *, quick: bool = False) -> Table:
    """Rounds of one flood by allranks and one by ipyparallel."""
    rounds, lines = (repeat or 2, 200) if quick else (repeat or 5, LINES)
    table = Table("flood", f"{RANKS} ranks printing {lines:,} lines each, to the last line shown; lower is better")
    with notebook(RANKS) as here:
        for what, template in CELLS.items():
            code = template.format(lines=lines)
            _ours(here, template.format(lines=10), 10)  # warm
            _theirs(here, template.format(lines=10), 10)
            ours: list[_Flood] = []
            theirs: list[_Flood] = []
            turns = [(_ours, ours), (_theirs, theirs)]
            for _ in range(rounds):
                for flood, samples in turns:
                    samples.append(flood(here, code, lines))
                turns.reverse()
            against, none = "%%px, same engines", Bar("at most", 0, "ours")
            table.rows += [
                Row(
                    what,
                    "s",
                    [one.seconds for one in ours],
                    [one.seconds for one in theirs],
                    against,
                    Bar("at most", 1.0),
                ),
                Row(f"{what}: lines lost", "", [one.lost for one in ours], [one.lost for one in theirs], against, none),
            ]
    table.notes.append(
        "Lines lost: those of the 80,000 that are not shown whole (median of the rounds); for allranks also those that "
        "are not in the rank's own count."
    )
    return table


class _Flood(NamedTuple):
    seconds: float
    lost: int


def _ours(here: Notebook, code: str, lines: int) -> _Flood:
    done = here.cell("distributed", "--out flood", code)
    ranks = here.shell.user_ns["flood"].values()
    not_counted = sum(abs(lines - rank.lines) + rank.cut["lines"] for rank in ranks)
    return _Flood(done.seconds, not_counted + abs(lines * RANKS - _printed(done.stdout)))


def _theirs(here: Notebook, code: str, lines: int) -> _Flood:
    done = here.cell("px", "--block", code)
    return _Flood(done.seconds, lines * RANKS - len(LINE.findall(done.stdout)))


def _printed(shown: str) -> int:
    """How many lines were printed, of which ``shown`` shows the equal ones once: ``ranks 0-1, 3 \u2502 line 7 ...``."""
    printed = ranks = 0
    for line in shown.splitlines():
        label, _, text = line.partition(BAR)
        if label.strip():  # blank where it is that of the line above
            ranks = sum(int(last or first) - int(first) + 1 for first, last in SPAN.findall(label))
        printed += ranks * len(LINE.findall(text))
    return printed


LINE = re.compile(r"line \d+ of the flood")
SPAN = re.compile(r"(\d+)(?:-(\d+))?")
