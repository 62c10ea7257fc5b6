"""all_sum inside a cell on two ranks, against the same two ranks started from a shell, and against mlx.launch.

The same loop (`_loop.rate`) runs on every side, in the same environment. Our cluster and the ranks started directly
live side by side and take turns sample by sample; the side whose turn it is not sleeps (waits on a socket), and so does
this process. ``mlx.launch`` spins on a core of its own while its ranks live, so it runs alone, after the others have
ended. All are restarted several times, since one process can be faster than another for as long as it lives.
"""

from __future__ import annotations

import inspect
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import allranks
from allranks.machine.tcp_ports import free_ports
from allranks_backends.machines.platform import this_platform
from allranks_backends.plan import Host, Placement, WorldPlan
from allranks_backends.registry import get_backend

from . import _loop
from ._serving import RanksFailed, Rates, address, serving
from ._table import Bar, Row, Table

RANKS = 2
SIZES = {"1 KiB": (1 << 10, 2000), "4 MiB": (4 << 20, 40)}
"""Bytes, and calls in a sample."""
GOALS = {"1 KiB": 0.97, "4 MiB": 0.99}
"""Of the ratio to ranks started directly, by size."""
SAMPLES = 8
"""Samples of each side and size before all are restarted; the round's sample is their median."""
LONGEST = 1.0
"""Seconds a sample may take: where the cores are too few, mlx.launch makes hundreds of times fewer calls."""
DIRECTLY, LAUNCHED = "started directly", "by mlx.launch"
SIDES = ("cell", DIRECTLY, LAUNCHED)

Found = dict[str, float]
"""Calls a second, by size."""


def measure(repeat: int | None, *, quick: bool = False) -> Table:
    """Rounds of fresh processes of every side; ring, then MPI."""
    table = Table("allreduce", f"all_sum on {RANKS} ranks, each call evaluated, calls a second; higher is better")
    rounds, samples = (repeat or 2, 2) if quick else (repeat or 7, SAMPLES)
    platform = this_platform()
    for backend in ("ring",) if quick else ("ring", "mpi"):
        if reason := get_backend(backend).why_not(platform, RANKS):
            table.notes.append(f"{backend} was not measured: {reason}.")
            continue
        _measure(backend, rounds, samples, 20 if quick else 1, table)
    table.notes.append(
        "For the ring mlx.launch keeps about one core busy itself while its ranks run: with no more cores than ranks, "
        "that core is taken from them. For MPI it only calls mpirun, which then ties each of two ranks to a core; ours "
        "and those started directly are free to move."
    )
    return table


def _measure(backend: str, rounds: int, samples: int, divide: int, table: Table) -> None:
    rates: dict[tuple[str, str], list[float]] = {(size, side): [] for size in SIZES for side in SIDES}
    sides: dict[str, Found] = {}
    for _ in range(rounds):
        with in_a_cell(backend) as ours, started_directly(backend) as theirs:
            sides = _in_turn({"cell": ours, DIRECTLY: theirs}, samples, divide)
        try:
            with by_mlx_launch(backend) as launched:
                sides |= _in_turn({LAUNCHED: launched}, samples, divide)
        except RanksFailed as error:
            table.notes.append(f"{backend} under mlx.launch: {error}.")
        for side, found in sides.items():
            for size, per_second in found.items():
                rates[size, side].append(per_second)
    for size in SIZES:
        for against, bar in ((DIRECTLY, Bar("at least", GOALS[size])), (LAUNCHED, None)):
            table.rows.append(
                Row(f"{backend}, {size}", "calls/s", rates[size, "cell"], rates[size, against], against, bar)
            )


def _in_turn(sides: dict[str, Rates], samples: int, divide: int) -> dict[str, Found]:
    """Median rate of each side and size over ``samples``, the sides in turn and each as often first."""
    found: dict[str, Found] = {side: {} for side in sides}
    for size, (nbytes, most) in SIZES.items():
        taken: dict[str, list[float]] = {side: [] for side in sides}
        calls = {side: _calls(rates, nbytes, max(most // divide, 2)) for side, rates in sides.items()}
        order = list(sides)
        for _ in range(samples):
            for side in order:
                taken[side].append(sides[side](nbytes, calls[side]))
            order.reverse()
        for side, rates_ in taken.items():
            found[side][size] = median(rates_)
    return found


def _calls(rates: Rates, nbytes: int, most: int) -> int:
    """Calls of a sample: ``most``, or as many as fit into `LONGEST`; warms the side up to find out."""
    return min(most, max(2, int(rates(nbytes, max(most // 20, 2)) * LONGEST)))


@contextmanager
def in_a_cell(backend: str) -> Iterator[Rates]:
    """The loop in cells of allranks: agent running, lifeline connected."""
    with allranks.Cluster(n=RANKS, backend=backend) as cluster:
        cluster.run(f"import time\n\n{inspect.getsource(_loop.rate)}").check()

        def rates(nbytes: int, calls: int) -> float:
            result = cluster.run(f"rate({nbytes}, {calls})").check()
            return float(median(rank.value for rank in result.values()))

        yield rates


@contextmanager
def started_directly(backend: str) -> Iterator[Rates]:
    """Ranks started as plain processes, for MPI by the mpirun command line that allranks uses."""
    with (
        tempfile.TemporaryDirectory(prefix="direct-") as folder,
        serving(folder, direct_starts(backend, folder, _command(folder, backend))) as rates,
    ):
        yield rates


def direct_starts(backend: str, folder: str, command: list[str]) -> list[tuple[list[str], dict[str, str]]]:
    """Command line and environment of each process to start so that `command` runs in `RANKS` ranks of a world."""
    runtime: Any = get_backend(backend)
    plan = _plan(backend)
    if backend == "mpi":
        mpirun, as_root, cores = this_platform().mpirun, os.geteuid() == 0, os.cpu_count() or 1
        line = runtime.command(plan, mpirun=mpirun, python_args=command, as_root=as_root, cores=cores)
        return [(line, runtime.launcher_env(as_root=as_root))]
    starts = []
    for wiring in (runtime.wiring(plan, rank) for rank in range(RANKS)):
        for name, content in wiring.files.items():
            Path(folder, name).write_text(content)
        starts.append((command, {key: value.replace("{dir}", folder) for key, value in wiring.env.items()}))
    return starts


@contextmanager
def by_mlx_launch(backend: str) -> Iterator[Rates]:
    """The same script under ``mlx.launch``."""
    with tempfile.TemporaryDirectory(prefix="launch-") as folder:
        options = ["-n", str(RANKS), "--backend", backend]
        runtime: Any = get_backend(backend)
        if backend == "ring":
            options += ["--starting-port", str(_plan(backend).placements[0].ports[0])]
        env = runtime.launcher_env(as_root=os.geteuid() == 0) if backend == "mpi" else {}
        program = str(Path(sys.executable).with_name("mlx.launch"))
        with serving(folder, [([program, *options, "--", *_command(folder, backend)], env)]) as rates:
            yield rates


def _plan(backend: str) -> WorldPlan:
    placements = [Placement(rank, Host("localhost"), rank, (port,)) for rank, port in enumerate(free_ports(RANKS))]
    return get_backend(backend).plan(placements)


def _command(folder: str, backend: str) -> list[str]:
    return [sys.executable, _loop.__file__, address(folder), backend]
