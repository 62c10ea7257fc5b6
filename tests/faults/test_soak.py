"""Twenty rounds of the soak: random faults in random states (the long form is `python -m benchmarks.soak`)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WITHIN = 600.0


def soak(*arguments: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: the rounds press its Ctrl-C."""
    command = [sys.executable, "-m", "benchmarks.soak", *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=WITHIN)


@pytest.mark.slow
@pytest.mark.timeout(WITHIN + 30)
@pytest.mark.parametrize(("rounds", "seed", "ranks", "backend"), [(12, 7, 3, "ring")])
def test_some_rounds(rounds: int, seed: int, ranks: int, backend: str) -> None:
    done = soak("--rounds", str(rounds), "--seed", str(seed), "-n", str(ranks), "--backend", backend)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == f"{rounds} rounds: 0 wrong sums, 0 lost names, 0 leftovers"
    assert len([line for line in lines if re.match(r" *\d+ +[\d.]+ s +ok ", line)]) == rounds


def test_what_cannot_be_is_refused() -> None:
    done = soak("--rounds", "0")
    assert done.returncode == 2 and "at least 2 ranks and 1 round" in done.stderr
