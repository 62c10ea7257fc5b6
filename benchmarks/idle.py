"""What four idle ranks cost: memory, processes and processor time, against ipyparallel's defaults.

Both clusters are up at the same time, each with a ring world formed and one all_sum done, and are watched over the same
stretches of time. The notebook's own process is not counted on either side.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

import allranks

from ._plain import join_ring, plain_cluster
from ._processes import started
from ._table import Bar, Row, Table

RANKS = 4
PROCESSES = RANKS + 2
WATCHED = 20.0
"""Seconds of one round."""
SETTLE = 3.0
PLAIN = "ipyparallel's defaults"
EXACT = sys.platform == "linux"
"""Whether processor time is counted in ns, not in ticks of 10 ms."""


def measure(repeat: int | None, *, quick: bool = False) -> Table:
    """Rounds of `WATCHED` seconds."""
    rounds, seconds = (repeat or 2, 1.0) if quick else (repeat or 5, WATCHED)
    with allranks.Cluster(n=RANKS, backend="ring") as cluster:
        cluster.run("mx.distributed.all_sum(mx.ones(10))").check()
        ours = started()
        ranks = [process for process in ours if process.pid in {rank.pid for rank in cluster.snapshot.ranks}]
        with plain_cluster(RANKS) as client:
            join_ring(client)
            theirs = [process for process in started() if process not in ours]
            engines = [process for process in theirs if process.pid in client[:].apply_sync(_pid)]
            time.sleep(0 if quick else SETTLE)
            return _watch(ours, ranks, theirs, engines, rounds, seconds)


def _watch(
    ours: list[psutil.Process],
    ranks: list[psutil.Process],
    theirs: list[psutil.Process],
    engines: list[psutil.Process],
    rounds: int,
    seconds: float,
) -> Table:
    sides = (
        ranks,
        engines,
        [process for process in ours if process not in ranks],
        [process for process in theirs if process not in engines],
    )
    shares: list[list[list[float]]] = [[] for _ in sides]
    for _ in range(rounds):
        before = [[_cpu_seconds(process) for process in side] for side in sides]
        began = time.monotonic()
        time.sleep(seconds)
        passed = time.monotonic() - began
        for side, processes in enumerate(sides):
            used = [_cpu_seconds(process) - then for process, then in zip(processes, before[side])]
            shares[side].append([100 * share / passed for share in used])
    core, ticks = "% of a core", "" if EXACT else ", in ticks of 10 ms"
    busiest = [[max(shares_) for shares_ in shares[side]] for side in (0, 1)]
    rest = [[sum(shares_) for shares_ in shares[side]] for side in (2, 3)]
    return Table(
        "idle",
        f"{RANKS} idle ranks; lower is better",
        [
            Row("processes", "", [len(ours)], [len(theirs)], PLAIN, Bar("at most", PROCESSES, "ours")),
            Row("memory, PSS", "bytes", [_pss(ours)], [_pss(theirs)], PLAIN),
            Row("memory, RSS", "bytes", [_rss(ours)], [_rss(theirs)], PLAIN),
            Row("CPU of the busiest rank", core, busiest[0], busiest[1], PLAIN, Bar("at most", 0.1, "ours")),
            Row("CPU of all other processes", core, rest[0], rest[1], PLAIN),
        ],
        [
            f"CPU: user and system time over {rounds} x {seconds:g} s{ticks}. The other processes are, of allranks, "
            "the host process and the controller; of ipyparallel, its controllers and a nanny for each engine.",
            "RSS counts memory that processes share once for each of them; PSS divides it among them.",
        ],
    )


def _pid() -> int:
    """Runs in an engine."""
    import os

    return os.getpid()


def _cpu_seconds(process: psutil.Process) -> float:
    """Processor time of all threads, also of those that have ended."""
    if EXACT:
        return time.clock_gettime_ns(_cpu_clock(process.pid)) / 1e9
    times = process.cpu_times()
    return float(times.user + times.system)


def _cpu_clock(pid: int) -> int:
    """Linux's clock of a process's processor time, in ns: an idle rank uses few of the ticks that ``/proc`` counts.

    It is ``MAKE_PROCESS_CPUCLOCK(pid, CPUCLOCK_SCHED)`` in Linux's ``posix-timers_types.h``.
    """
    return (~pid << 3) | 2


def _rss(processes: Sequence[psutil.Process]) -> float:
    return float(sum(process.memory_info().rss for process in processes))


def _pss(processes: Sequence[psutil.Process]) -> float:
    """Not a number where the system does not tell (macOS)."""
    try:
        files = [Path(f"/proc/{process.pid}/smaps_rollup").read_text() for process in processes]
    except OSError:
        return float("nan")
    lines = [line for text in files for line in text.splitlines() if line.startswith("Pss:")]
    return 1024.0 * sum(int(line.split()[1]) for line in lines)
