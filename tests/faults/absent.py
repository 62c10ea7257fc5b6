"""A rank that raises, or ends, when the others are blocked in a collective: not before, however busy the machine is.

A rank that enters a collective only seconds after another one has failed is refused, and not unblocked.
"""

from __future__ import annotations

import tempfile
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from allranks import Cluster
from allranks.cluster.cell_result import CellResult
from allranks.head.cell import stall, unblock_ranks
from allranks_backends.views import Snapshot
from tests.waiting import WITHIN, comes_true

AT_ONCE = 0.1
"""Seconds after the failure until the others are unblocked: they are blocked already, so none of them can be late."""
RAISES = "raise ValueError('boom')"
DIES = "os._exit(1)"


def blocked(
    cluster: Cluster,
    code: str,
    does: str = RAISES,
    *,
    rank: int = 1,
    first: str = "",
    only: Sequence[int] = (),
    **options: Any,
) -> CellResult:
    """A cell in which one rank `does` this when the others, or `only` some of them, are blocked in `code`.

    All ranks run what comes `first`.
    """
    others = only or [each for each in range(cluster.size) if each != rank]
    first = f"{first}\n" if first else ""
    before = first.count("\n")
    with tempfile.TemporaryDirectory() as folder:
        go = Path(folder, "go")
        cell = cluster.begin(
            f"{first}if rank == {rank}:\n    import os, time\n    while not os.path.exists({str(go)!r}):"
            f" time.sleep(0.01)\n"
            f"{textwrap.indent(does, '    ')}\n{code}",
            **options,
        )

        def there(now: Snapshot) -> bool:
            behind = all(
                now.ranks[each].state == "waiting" and (not first or (now.ranks[each].line or 0) > before)
                for each in others
            )
            return behind and (now.ranks[rank].line or 0) == before + 3

        assert comes_true(cluster, there, WITHIN), cluster.status()
        with pytest.MonkeyPatch.context() as limits:
            for module in (stall, unblock_ranks):
                limits.setattr(module, "AFTER_FAILURE", AT_ONCE)
            go.touch()
            return cell.finish(WITHIN)
