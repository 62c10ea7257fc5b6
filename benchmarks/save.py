"""Four ranks that save an array each, against one process that writes the same bytes to the same disk.

Both sides end when the bytes are on the disk (`fsync`). `save` also makes a checksum of each array.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import numpy as np

from allranks import Cluster

from ._table import Bar, Row, Table

RANKS = 4
SIZE = 256 << 20
"""Bytes of each rank."""


def measure(repeat: int | None, *, quick: bool = False) -> Table:
    """All ranks' arrays, which differ, in turns with one plain file of the same size."""
    table = Table("save", "what ranks hold, on disk; lower is better")
    size = SIZE // 64 if quick else SIZE
    ours, theirs = list[float](), list[float]()
    # Not in a file system in memory, which the folder for temporary files may be.
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder, Cluster(RANKS, backend="ring") as cluster:
        cluster.run(f"x = mx.random.normal(({size // 4},), key=mx.random.key(rank)); mx.eval(x)").check()
        x = np.random.default_rng(0).random(RANKS * size // 8)
        cluster.save(Path(folder, "state"), "x")  # ranks import numpy
        _plain(Path(folder, "plain"), x)
        for _ in range(1 if quick else repeat or 5):
            theirs.append(_plain(Path(folder, "plain"), x))
            began = time.perf_counter()
            cluster.save(Path(folder, "state"), "x")
            ours.append(time.perf_counter() - began)
    what = f"{RANKS} ranks with {size / 2**20:g} MiB each"
    table.rows.append(Row(what, "s", ours, theirs, "one process, the same bytes", Bar("at most", 1.25)))
    return table


def _plain(file: Path, x: np.ndarray) -> float:
    """Seconds to replace a file, as `save` replaces an earlier state."""
    new = file.with_suffix(".new")
    began = time.perf_counter()
    with open(new, "wb") as written:
        x.tofile(written)
        written.flush()
        os.fsync(written.fileno())
    os.replace(new, file)
    return time.perf_counter() - began
