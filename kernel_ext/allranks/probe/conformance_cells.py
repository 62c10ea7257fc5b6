"""Code of the cells that ranks run for the conformance list."""

from __future__ import annotations

from collections.abc import Mapping

OPERATIONS: Mapping[str, frozenset[str]] = {
    **{name: frozenset({name}) for name in ("all_sum", "all_max", "all_min", "all_gather", "sum_scatter")},
    "send, recv": frozenset({"send", "recv"}),
}
"""Maps each operation to the operations that a backend must support for it."""
DTYPES = ("float32", "int32", "bfloat16")
SIZES = (1, 3_001, 300_000)
"""Numbers of elements that fit in one buffer of every backend, in several, and in many."""
Wrong = tuple[str, int]
"""A dtype, and the number of elements for which the result differs from numpy's."""

_CHECK = """
def _allranks_wrong(op, dtypes, counts):
    import numpy as np

    found = []
    for name in dtypes:
        for count in counts:
            base = np.arange(count * (size if op == "sum_scatter" else 1)) % 7
            mine = mx.array(base + rank).astype(getattr(mx, name))
            together = [base + each for each in range(size)]
            if op == "send, recv":
                if rank == 0:
                    mx.eval(mx.distributed.send(mine, 1))
                if rank != 1:
                    continue
                got, want = mx.distributed.recv(mine.shape, mine.dtype, 0), together[0]
            else:
                got = getattr(mx.distributed, op)(mine)
                if op == "all_gather":
                    want = np.concatenate(together)
                elif op == "sum_scatter":
                    want = np.split(np.sum(together, axis=0), size)[rank]
                else:
                    want = {"all_sum": np.sum, "all_max": np.max, "all_min": np.min}[op](together, axis=0)
            if not np.array_equal(np.array(got.astype(mx.float32)), want):
                found.append([name, count])
    return found
"""
KEPT = "_allranks_kept = mx.array([rank]); mx.eval(_allranks_kept)"
BREAK = """
if rank == size - 1:
    raise ValueError("raised by the probe")
mx.eval(mx.distributed.all_sum(mx.ones(4)))
"""
KILL = """
import os, signal
if rank == size - 1:
    os.kill(os.getpid(), signal.SIGKILL)
mx.eval(mx.distributed.all_sum(mx.ones(4)))
"""
SUM = """
_total = mx.distributed.all_sum(mx.ones(3)).tolist()
_held = globals().get("_allranks_kept")
[_total == [float(size)] * 3, None if _held is None else _held.item()]
"""


def wrong(operation: str) -> str:
    """Code that runs the operation; its value is a list of `Wrong`."""
    return f"{_CHECK}\n_allranks_wrong({operation!r}, {DTYPES!r}, {SIZES!r})"
