"""Four ranks printing 20,000 lines each, to the last line shown, against %%px.

On the same engines in turn, all output captured the same way, and counted: every printed line must be shown (once for
all ranks that printed it alike, as allranks does, or once a rank) and be in the rank's own count.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from ._notebook import Done, Notebook, notebook
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
            folded = "alike" in what
            ours: list[float] = []
            theirs: list[float] = []
            lost = {"allranks": 0, "%%px": 0}
            _flood(here, template.format(lines=10), 10, folded)  # warm
            here.cell("px", "--block", template.format(lines=10))
            for _ in range(rounds):
                seconds, missing = _flood(here, code, lines, folded)
                ours.append(seconds)
                lost["allranks"] += missing
                done = here.cell("px", "--block", code)
                theirs.append(done.seconds)
                lost["%%px"] += lines * RANKS - _shown(done)
            table.rows.append(Row(what, "s", ours, theirs, "%%px, same engines", Bar("at most", 1.0)))
            table.rows.append(
                Row(f"{what}: lines lost", "", [lost["allranks"]], [lost["%%px"]], "%%px", Bar("at most", 0, "ours"))
            )
    table.notes.append(
        "Lines lost: of all rounds together, in what was shown, and for allranks also in each rank's count."
    )
    return table


def _flood(here: Notebook, code: str, lines: int, folded: bool) -> tuple[float, int]:
    """Seconds, and how many lines are not accounted for."""
    done = here.cell("distributed", "--out flood", code)
    ranks = here.shell.user_ns["flood"].values()
    not_counted = sum(abs(lines - rank.lines) + rank.cut["lines"] for rank in ranks)
    not_shown = abs(lines * (1 if folded else RANKS) - _shown(done))
    return done.seconds, not_counted + not_shown


def _shown(done: Done) -> int:
    return len(_LINE(done.stdout))


_LINE: Callable[[str], list[str]] = re.compile(r"line \d+ of the flood").findall
