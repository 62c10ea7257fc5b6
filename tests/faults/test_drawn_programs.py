"""Programs drawn by chance run right, or say what is wrong (the long form is `python -m benchmarks.programs`)."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks._programs import MISTAKES, Program, play
from tests.conftest import Worlds

PROGRAMS = 4
ROOT = Path(__file__).parents[2]
ON_MPI = ("missing", "raises", "order of evaluation", "stopped")
"""MPI ends a job whose ranks differ in size, and where they wait in different operations, nothing can be aborted."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "size", "mistakes"),
    [("ring", 2, MISTAKES), ("ring", 3, MISTAKES), pytest.param("mpi", 2, ON_MPI, marks=pytest.mark.mpi)],
)
def test_each_is_right_or_told_what_is_wrong(
    backend: str, size: int, mistakes: tuple[str, ...], worlds: Worlds, request: pytest.FixtureRequest
) -> None:
    if backend == "mpi":
        request.getfixturevalue("need_mpi")
    wrong = []
    for number in range(PROGRAMS):
        program = Program.draw(random.Random(f"test:{number}"), size, mistakes)
        cluster = worlds.get(backend, size, __name__)  # another one where the last program took it along
        if found := play(cluster, program):
            wrong.append("\n".join([f"{number}: {program}", *found]))
    assert not wrong, "\n\n".join(wrong)


def test_what_cannot_be_is_refused() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    command = [sys.executable, "-m", "benchmarks.programs", "-n", "1"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "at least 2 ranks and 1 program" in done.stderr
