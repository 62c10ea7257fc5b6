"""A trivial cell on up to sixteen hosts: its round trip, and what each further rank costs the notebook's process.

The hosts are network namespaces on this machine (tests/hosts/lab.py); where they cannot be made, as many local ranks
stand in. The notebook's processor time is that of a Python process of its own, which does nothing else.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from statistics import linear_regression, median

from tests.hosts.lab import Hosts, forbidden, made, missing

from ._table import Bar, Row, Table

SIZES = (2, 4, 8, 16)
CELLS, WARM = 50, 10
"""Cells of a sample, and cells before them."""
WITHIN = 300.0
"""Seconds for one sample."""
P50, SLOPE = 0.025, 0.25
"""Goals: seconds of a cell on sixteen hosts, and milliseconds of the notebook's processor for each further rank."""


def measure(repeat: int | None, *, quick: bool = False) -> Table:
    """Rounds of all sizes in turn."""
    rounds, cells, sizes = (repeat or 2, 5, SIZES[:2]) if quick else (repeat or 5, CELLS, SIZES)
    reason = missing() or forbidden()
    where = "local ranks" if reason else "hosts"
    table = Table("hosts16", f"trivial cell on up to {sizes[-1]} {where}; lower is better")
    if reason:
        table.notes.append(f"Local ranks in place of hosts: {reason}.")
    seconds: dict[int, list[float]] = {size: [] for size in sizes}
    milliseconds: dict[int, list[float]] = {size: [] for size in sizes}
    standing: AbstractContextManager[Hosts | None] = nullcontext() if reason else made(sizes[-1])
    with standing as hosts:
        for _ in range(rounds):
            for size in sizes:
                try:
                    took, used = _sample(size, cells, hosts.names[:size] if hosts is not None else [])
                except (RuntimeError, subprocess.TimeoutExpired) as error:
                    table.notes.append(f"Not measured: a cluster of {size} {where} failed: {error}.")
                    return table
                seconds[size].append(took)
                milliseconds[size].append(1000 * used)
    for size in sizes:
        goal = Bar("at most", P50, "ours") if size == SIZES[-1] and not reason else None
        table.rows.append(Row(f"`pass` on {size} {where}, p50", "s", seconds[size], bar=goal))
    for size in sizes:
        table.rows.append(Row(f"the notebook's processor time a cell, {size} {where}", "ms", milliseconds[size]))
    slopes = [slope(sizes, [milliseconds[size][number] for size in sizes]) for number in range(rounds)]
    table.rows.append(
        Row("the same, for each further rank", "ms", slopes, bar=None if reason else Bar("at most", SLOPE, "ours"))
    )
    return table


def slope(sizes: Sequence[int], milliseconds: Sequence[float]) -> float:
    """Milliseconds for each further rank: the slope of the line through the figures with the least squared errors."""
    return float(linear_regression(sizes, milliseconds).slope)


def _sample(size: int, cells: int, names: list[str]) -> tuple[float, float]:
    """Median seconds of a cell, and mean seconds of the notebook's processor, in a new process.

    Raises RuntimeError or subprocess.TimeoutExpired if there are none.
    """
    command = [sys.executable, "-m", "benchmarks.hosts16", str(size), str(cells), *names]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=WITHIN)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["it printed nothing"])[-1])
    found = json.loads(done.stdout.splitlines()[-1])
    return float(found["seconds"]), float(found["used"])


def _child(size: int, cells: int, names: list[str]) -> None:
    """In the new process."""
    from allranks import Cluster

    with Cluster(None if names else size, hosts=names or None, backend="ring") as cluster:
        for _ in range(WARM):
            cluster.run("pass").check()
        took = list[float]()
        used = time.process_time()
        for _ in range(cells):
            began = time.perf_counter()
            cluster.run("pass").check()
            took.append(time.perf_counter() - began)
        used = (time.process_time() - used) / cells
    print(json.dumps({"seconds": median(took), "used": used}), flush=True)


if __name__ == "__main__":
    _child(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
