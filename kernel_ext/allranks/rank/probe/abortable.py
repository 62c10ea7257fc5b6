"""Whether a rank on this machine could abort collectives in place, as far as that is known before there is a world.

The doctor runs this module on each host: ``python -m allranks.rank.probe.abortable mpi`` prints a line of JSON.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from types import ModuleType

from allranks.rank.world.shared_libraries import NotInPlace


def not_in_place(backend: str) -> NotInPlace | None:
    """Why collectives of ``mpi`` or ``jaccl`` could not be aborted here; None if they could. Changes nothing in MLX."""
    import mlx.core as mx

    try:
        {"jaccl": _jaccl, "mpi": _mpi}[backend](mx)
    except NotInPlace as error:
        return error
    return None


def _jaccl(mx: ModuleType) -> None:
    from allranks.rank.world.jaccl.jaccl_membership import usable_table

    usable_table(mx)


def _mpi(mx: ModuleType) -> None:
    from allranks.rank.world.mpi.abortable_mpi import prepared

    with tempfile.TemporaryDirectory() as folder:
        prepared(mx, Path(folder))


if __name__ == "__main__":
    found = not_in_place(sys.argv[1])
    print(json.dumps({"why": str(found or ""), "fix": found.fix if found else ""}))
