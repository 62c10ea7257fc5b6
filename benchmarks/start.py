"""Four ranks, from nothing to the first all_sum on all of them.

Each sample is a Python process of its own, timed from its creation, so that its imports count and nothing is warm but
the files in memory. Ending the ranks is not timed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

from ._table import Bar, Row, Table

RANKS = 4
WITHIN = 120.0
MPI_ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":OVERSUBSCRIBE",
}
"""What Open MPI's mpirun asks of root, and for more ranks than cores; ipyparallel leaves it to the user."""


def measure(repeat: int | None, *, quick: bool = False) -> Table:
    """Rounds of allranks and ipyparallel in turn, ring and MPI."""
    rounds = repeat or (2 if quick else 5)
    if not quick:  # the first run writes ipyparallel's profile and reads the packages from disk
        for side in ("allranks", "ipyparallel"):
            _sample(side, "ring")
    table = Table("start", f"{RANKS} ranks from nothing to the first all_sum, imports included; lower is better")
    ours, theirs = _rounds("ring", rounds)
    table.rows.append(Row("ring", "s", ours, theirs, "ipyparallel's defaults", Bar("at most", 0.14)))
    ours, theirs, without = _mpi_rounds(2 if quick else rounds)
    table.rows.append(Row("MPI", "s", ours, theirs, "ipyparallel's MPI engines", Bar("at most", 0.25)))
    table.notes.append("The engines of the ring are wired as ours are, and by one call.")
    table.notes.append(
        without
        or "ipyparallel's MPI engines initialize MPI themselves, which mlx refuses: their first all_sum is mpi4py's."
    )
    return table


def _rounds(backend: str, rounds: int) -> tuple[list[float], list[float]]:
    ours, theirs = [], []
    for _ in range(rounds):
        ours.append(_sample("allranks", backend))
        theirs.append(_sample("ipyparallel", backend))
    return ours, theirs


def _mpi_rounds(rounds: int) -> tuple[list[float], list[float], str]:
    """As `_rounds`; where one side cannot run, without it and with a sentence that says so."""
    try:
        _sample("allranks", "mpi")
    except SampleFailed as error:
        return [float("nan")], [], f"MPI cannot run here: {error}"
    try:
        ours, theirs = _rounds("mpi", rounds)
    except SampleFailed as error:
        return (
            [_sample("allranks", "mpi") for _ in range(rounds)],
            [],
            f"ipyparallel's MPI engines did not start: {error}",
        )
    return ours, theirs, ""


class SampleFailed(RuntimeError):
    """A start did not reach its all_sum; the message is its last line of output."""


def _sample(side: str, backend: str) -> float:
    """Seconds from the creation of a new process to the sum."""
    # CLOCK_MONOTONIC is one clock for all processes of a machine, on Linux and on macOS.
    command = [sys.executable, "-m", "benchmarks.start", side, backend, repr(time.monotonic())]
    env = {**os.environ, **MPI_ENVIRONMENT} if (side, backend) == ("ipyparallel", "mpi") else None
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=WITHIN, env=env)
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise SampleFailed(f"{side} on {backend}: {said[-1]}")
    return float(json.loads(done.stdout.splitlines()[-1])["seconds"])


# In the new process.


def _child(side: str, backend: str, created: float) -> None:
    start = {"allranks": _allranks, "ipyparallel": _ipyparallel}[side]
    start(backend, created)


def _allranks(backend: str, created: float) -> None:
    import allranks

    with allranks.Cluster(n=RANKS, backend=backend) as cluster:
        result = cluster.run("mx.distributed.all_sum(mx.ones(10))[0].item()")
        _report(created, [result[rank].value for rank in range(RANKS)])


def _ipyparallel(backend: str, created: float) -> None:
    from ._plain import join_ring, plain_cluster

    if backend == "ring":
        with plain_cluster(RANKS) as client:
            _report(created, join_ring(client))
    else:
        with plain_cluster(RANKS, engines="mpi") as client:
            _report(created, client[:].apply_sync(_first_mpi_sum))


def _first_mpi_sum() -> float:
    """Runs in an engine."""
    from mpi4py import MPI

    return float(MPI.COMM_WORLD.allreduce(1.0))


def _report(created: float, sums: list[float]) -> None:
    seconds = time.monotonic() - created
    if sums != [RANKS] * RANKS:
        raise SystemExit(f"the ranks summed to {sums}")
    print(json.dumps({"seconds": seconds}), flush=True)


if __name__ == "__main__":
    _child(sys.argv[1], sys.argv[2], float(sys.argv[3]))
