"""busbw as bench finds it, against the same loop in the same two ranks started directly from a shell.

The loop is `allranks.rank.metrics.time_operation.measure` on both sides. Both worlds live side by side and take turns
sample by sample, as in `allreduce`; a sample is the median of its calls, and a call takes the mean of its ranks' times.
"""

from __future__ import annotations

import inspect
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median

import allranks
from allranks.bench.bus_bandwidth import factor
from allranks_backends.machines.platform import this_platform
from allranks_backends.registry import get_backend

from ._serving import address, serving
from ._table import Bar, Row, Table
from .allreduce import RANKS, direct_starts

SIZES = {"64 KiB": 1 << 16, "4 MiB": 4 << 20}
SECONDS = 0.3
"""Seconds of timed calls in a sample."""
SAMPLES = 6
"""Samples of each side and size before both worlds are restarted."""
FAR = 0.05
"""Largest relative difference allowed between bench and the ranks started directly."""

Measured = Callable[[int], float]
"""Bytes to busbw in GB/s."""


def measure(repeat: int | None, *, quick: bool = False) -> Table:
    """Rounds of fresh processes on both sides; ring, then MPI."""
    table = Table("busbw", f"busbw of all_sum on {RANKS} ranks, in GB/s: bench against ranks started directly")
    rounds, samples, seconds = (repeat or 2, 1, 0.02) if quick else (repeat or 5, SAMPLES, SECONDS)
    platform = this_platform()
    for backend in ("ring",) if quick else ("ring", "mpi"):
        if reason := get_backend(backend).why_not(platform, RANKS):
            table.notes.append(f"{backend} was not measured: {reason}.")
            continue
        found: dict[tuple[str, str], list[float]] = {(size, side): [] for size in SIZES for side in ("bench", "direct")}
        for _ in range(rounds):
            with by_bench(backend, seconds) as ours, started_directly(backend, seconds) as theirs:
                for size, nbytes in SIZES.items():
                    for side, figure in _in_turn({"bench": ours, "direct": theirs}, nbytes, samples).items():
                        found[size, side].append(figure)
        for size in SIZES:
            ours_, theirs_ = found[size, "bench"], found[size, "direct"]
            # Within 5 % is meant both ways: a figure that is too high is as untrue as one that is too low.
            for bar in (Bar("at least", 1 - FAR), Bar("at most", 1 + FAR)):
                table.rows.append(Row(f"{backend}, {size}", "GB/s", ours_, theirs_, "started directly", bar))
    return table


def _in_turn(sides: dict[str, Measured], nbytes: int, samples: int) -> dict[str, float]:
    """Median of the samples of each side, the sides in turn and each as often first."""
    taken: dict[str, list[float]] = {side: [] for side in sides}
    order = list(sides)
    for _ in range(samples):
        for side in order:
            taken[side].append(sides[side](nbytes))
        order.reverse()
    return {side: median(figures) for side, figures in taken.items()}


@contextmanager
def by_bench(backend: str, seconds: float) -> Iterator[Measured]:
    """What `Cluster.bench` says."""
    with allranks.Cluster(n=RANKS, backend=backend) as cluster:
        yield lambda nbytes: cluster.bench(smallest=nbytes, largest=nbytes, seconds=seconds).rows[0].busbw / 1e9


@contextmanager
def started_directly(backend: str, seconds: float) -> Iterator[Measured]:
    """Plain processes that run `serve`, wired as in `allreduce`."""
    with tempfile.TemporaryDirectory(prefix="direct-") as folder:
        code = f"import sys\n{inspect.getsource(serve)}\nserve(*sys.argv[1:])"
        command = [sys.executable, "-c", code, address(folder), backend, str(seconds)]
        with serving(folder, direct_starts(backend, folder, command)) as ask:
            yield lambda nbytes: nbytes / ask(nbytes, 0) * factor("all_sum", RANKS) / 1e9


def serve(where, backend, seconds):
    """Runs in a rank started directly: answer each size with the median time of a call, each the mean of its ranks."""
    from multiprocessing.connection import Client

    import mlx.core as mx
    import numpy as np

    from allranks.rank.metrics.time_operation import measure

    world = mx.distributed.init(strict=True, backend=backend)
    with Client(where) as connection:
        connection.send(world.rank())
        while (order := connection.recv()) is not None:
            nbytes, _ = order
            halves = [measure("all_sum", nbytes, float(seconds) / 2) for _ in range(2)]  # as bench does
            times = np.concatenate(halves)
            # As nanoseconds: MLX has no float64 on every device, and float32 holds these exactly enough.
            summed = mx.distributed.all_sum(mx.array((times * 1e9).astype(np.float32)))
            connection.send(float(np.median(np.asarray(summed))) / world.size() / 1e9)
