"""``python -m benchmarks.programs --programs N --seed S [-n 2] [--backend ring|mpi]``: programs drawn by chance.

More than a third are right, and must run without a word of alarm; the others have one mistake, which must be named, and
must leave nothing that looks like a number. One line a program, a summary, and exit code 1 if anything was wrong.
"""

from __future__ import annotations

import faulthandler
import random
import sys
import time
from collections import Counter

from allranks import Cluster
from allranks.errors import AllranksError

from ._drawn import options_of
from ._processes import nothing_left
from ._programs import MISTAKES, Program, play

STUCK_AFTER = 150.0
"""Seconds after which a program is given up, with all stacks."""


def play_all(first: int, count: int, seed: int, size: int, backend: str) -> Counter[str]:
    """Play the programs and print them; count the programs that went wrong by their mistake."""
    wrong: Counter[str] = Counter()
    cluster = Cluster(size, backend=backend, name="programs").up()
    try:
        for number in range(first, first + count):
            faulthandler.dump_traceback_later(STUCK_AFTER, exit=True)
            program = Program.draw(random.Random(f"{seed}:{number}"), size)
            began = time.monotonic()
            found = play(cluster, program)
            seconds = time.monotonic() - began
            print(f"{number:4} {seconds:5.1f} s  {'ok   ' if not found else 'WRONG'}  {program}", flush=True)
            if found:
                wrong[program.mistake or "right"] += 1
                print("\n".join(f"      {line}" for words in found for line in words.splitlines()), flush=True)
            if not _goes_on(cluster):
                cluster.down()
                cluster = Cluster(size, backend=backend, name="programs").up()
        faulthandler.cancel_dump_traceback_later()
    finally:
        cluster.down()
    return wrong


def _goes_on(cluster: Cluster) -> bool:
    """Whether the cluster takes cells: MPI ends a job whose ranks differ, or leaves ranks where they are."""
    try:
        return cluster.run("rank", timeout=10).ok
    except AllranksError:
        return False


def main(arguments: list[str] | None = None) -> int:
    options = options_of(arguments, __doc__, "program", 200, 2, f"Mistakes: {', '.join(MISTAKES)}.")
    print(f"{options.programs} programs on {options.n} {options.backend} ranks, seed {options.seed}", flush=True)
    with nothing_left():
        wrong = play_all(options.first, options.programs, options.seed, options.n, options.backend)
    by_mistake = "".join(f", {count} of them {mistake}" for mistake, count in wrong.items())
    print(f"{options.programs} programs: {wrong.total()} wrong{by_mistake}", flush=True)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
