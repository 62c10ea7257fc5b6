"""What the ledger and the meters cost: `all_sum` on the same two ranks with and without each, in turn.

Without the ledger the cell calls MLX's own functions; without the meters the rank's agent reports the same reading each
time. A row of the same two ranks with the meters on both sides shows how far such ratios differ by chance.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import allranks

from ._table import Bar, Row, Table

RANKS = 2
SIZES = {"1 KiB": (1 << 10, 2000), "4 MiB": (1 << 22, 40)}
"""Bytes of the array, and calls of a sample."""
ORIGINAL = "from allranks.rank.functions.replaced import original"
LOOP = f"""
import time
{ORIGINAL}

def loop_for_benchmark(all_sum, evaluate, nbytes, calls):
    x = mx.ones(nbytes // 4)
    evaluate(x)
    for _ in range(3):
        evaluate(all_sum(x))
    before = time.perf_counter()
    for _ in range(calls):
        evaluate(all_sum(x))
    return calls / (time.perf_counter() - before)
"""
OURS = "mx.distributed.all_sum, mx.eval"
MLX = "original(mx.distributed.all_sum), original(mx.eval)"
METERS = """
from allranks.rank.process.engine import RankEngine as engine_for_benchmark
meters_for_benchmark = engine_for_benchmark.instance().agent.meters
"""
CONSTANT = """
from allranks.messages.events import Memory
from allranks.rank.metrics.meters import MeterReading
reading_for_benchmark = MeterReading(Memory(), 0.0, 0.0, (), (), None, None, None)
"""
OFF = """
meters_for_benchmark.read = lambda *, seldom=False: reading_for_benchmark
meters_for_benchmark.traffic.count = lambda: None
"""
ON = "del meters_for_benchmark.read, meters_for_benchmark.traffic.count"


def measure(repeat: int | None, *, quick: bool = False) -> Table:
    """Rounds of both sides in turn, each as often first."""
    rounds = repeat or (2 if quick else 15)
    table = Table("overhead", "all_sum on 2 ring ranks in a cell, calls a second; higher is better")
    with allranks.Cluster(RANKS, backend="ring") as cluster:
        run(cluster, LOOP + METERS + CONSTANT)

        def rate(functions: str, nbytes: int, calls: int) -> float:
            result = run(cluster, f"loop_for_benchmark({functions}, {nbytes}, {calls})")
            return float(median(rank.value for rank in result.values()))

        def unmetered(nbytes: int, calls: int) -> float:
            run(cluster, OFF)
            try:
                return rate(OURS, nbytes, calls)
            finally:
                run(cluster, ON)

        for size, (nbytes, calls) in SIZES.items():
            found: dict[str, list[float]] = {name: [] for name in ("ledger", "none", "meters", "off", "once", "twice")}
            for number in range(rounds):
                pairs: tuple[list[tuple[str, Callable[[int, int], float]]], ...] = (
                    [("ledger", partial(rate, OURS)), ("none", partial(rate, MLX))],
                    [("meters", partial(rate, OURS)), ("off", unmetered)],
                    [("once", partial(rate, OURS)), ("twice", partial(rate, OURS))],
                )
                for pair in pairs:
                    for name, sample in pair if number % 2 else reversed(pair):
                        found[name].append(sample(nbytes, calls))
            of_ledger, of_meters = (Bar("at least", 0.98), Bar("at least", 0.99)) if size == "4 MiB" else (None, None)
            table.rows.append(Row(f"{size}, ledger", "calls/s", found["ledger"], found["none"], "without", of_ledger))
            table.rows.append(Row(f"{size}, meters", "calls/s", found["meters"], found["off"], "without", of_meters))
            table.rows.append(Row(f"{size}, noise", "calls/s", found["once"], found["twice"], "itself"))
    return table


def run(cluster: Any, code: str) -> Any:
    """Run a cell; returns its result. Raises AssertionError if a rank wrote to stderr: its agent may have failed."""
    result = cluster.run(code).check()
    complaints = {rank: each.stderr for rank, each in result.items() if each.stderr}
    assert not complaints, complaints
    return result
