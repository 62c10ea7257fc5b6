"""``python -m benchmarks.away [--notebooks N] [--seconds LEAST MOST] [--seed S]``: notebooks that are away for minutes.

Each has a world of two hosts and a cell that prints numbered lines. All are away at once, in turn in three ways: the
notebook's process is stopped; all processes of the notebook's machine are, ssh and the controller too, as when a laptop
sleeps; nothing passes between it and the hosts. When they are back, every line must be shown once and in order, the
cell must end, and the next collective must be right. One line a notebook, and exit code 1 if anything was wrong. The
hosts are network namespaces: root on Linux.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from allranks import Cluster
from allranks.errors import AllranksError
from allranks.notebook.feed_dashboards import Nowhere
from allranks.notebook.fold import Block
from tests.hosts.lab import Hosts, made

from ._processes import carrying, nothing_left

MARK = "ALLRANKS_AWAY"
"""Environment variable of all that a notebook starts."""
KINDS = ("stopped", "asleep", "cut off")
BEGINS_WITHIN = 120.0
"""Seconds in which the first lines are shown, on a busy machine."""
ENDS_WITHIN = 90.0
"""Seconds in which a cell ends after it may, on a busy machine."""
PRINTS = """
import pathlib, time
n = 0
while not pathlib.Path({end!r}).exists():
    print(f"{{rank}}:{{n}}")
    n += 1
    time.sleep(0.1)
n
"""


class Lines(Nowhere):
    """The lines of each rank, as they are shown."""

    def __init__(self, begun: Path) -> None:
        self.text, self._begun = {0: "", 1: ""}, begun

    def blocks(self, blocks: list[Block]) -> None:
        for block in blocks:
            if block.kind == "text" and block.stream == "stdout" and not block.own:
                for rank in block.ranks:
                    self.text[rank] += block.content
        self._begun.touch()


def notebook(hosts: list[str], folder: Path) -> dict[str, str]:
    """Run the cell until the file ``end`` is there; returns each mistake, by rank or subject."""
    wrong: dict[str, str] = {}
    with Cluster(hosts=hosts, backend="ring", name=folder.name) as cluster:
        shown = Lines(folder / "begun")
        code = PRINTS.format(end=str(folder / "end"))
        cell = cluster.begin(code, screen=shown, max_output=10**9)
        try:
            printed = [each.value for each in cell.finish().check().values()]
        except AllranksError as error:
            return {"the cell": f"{type(error).__name__}: {error}; {cluster.snapshot.doing([0, 1])}"}
        for rank, count in enumerate(printed):
            if shown.text[rank].split() != [f"{rank}:{number}" for number in range(count)]:
                wrong[f"rank {rank}"] = f"printed {count} lines, and {len(shown.text[rank].split())} are shown"
        total = cluster.run("mx.distributed.all_sum(mx.array(1)).item()", timeout=ENDS_WITHIN)
        if [each.value for each in total.values()] != [2, 2]:
            wrong["all_sum"] = repr(total)
    return wrong


class Away:
    """One notebook, a process of its own."""

    def __init__(self, number: int, hosts: Hosts, dice: random.Random, seconds: tuple[float, float]) -> None:
        self.kind, self.seconds = KINDS[number % len(KINDS)], dice.uniform(*seconds)
        self._hosts = hosts
        self._names = hosts.names[2:] if self.kind == "cut off" else hosts.names[:2]
        self._folder = Path(tempfile.mkdtemp(prefix=f"away-{number}-"))
        command = [sys.executable, "-m", "benchmarks.away", "--one", str(self._folder), *self._names]
        environment = os.environ | {"PATH": hosts.path, MARK: str(self._folder)}
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        self._waits = dice.uniform(0.0, 10.0)
        deadline = time.monotonic() + BEGINS_WITHIN
        while not (self._folder / "begun").exists() and self._process.poll() is None:
            if time.monotonic() > deadline:
                self._process.kill()
            time.sleep(0.1)

    def play(self) -> str:
        """Cut the notebook off or stop it, and let it go on; returns the mistake found, or an empty text."""
        if (self._folder / "begun").exists():
            with self._cut_off() if self.kind == "cut off" else self._stopped():
                time.sleep(self.seconds)
            time.sleep(self._waits)
        elif self._process.wait():
            return f"the notebook did not begin: it ended with {self._process.returncode}"
        (self._folder / "end").touch()
        try:
            said, _ = self._process.communicate(timeout=4 * ENDS_WITHIN)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return "the notebook did not end"
        if not said:
            return f"the notebook ended with {self._process.returncode}"
        wrong = json.loads(said.splitlines()[-1])
        return "; ".join(f"{what}: {words}" for what, words in wrong.items())

    @contextmanager
    def _cut_off(self) -> Iterator[None]:
        self._hosts.cut_off(True, *self._names)
        try:
            yield
        finally:
            self._hosts.cut_off(False, *self._names)

    @contextmanager
    def _stopped(self) -> Iterator[None]:
        pids = self._of_this_machine() if self.kind == "asleep" else [self._process.pid]
        try:
            _signal(pids, signal.SIGSTOP)
            yield
        finally:
            _signal(pids[::-1], signal.SIGCONT)

    def _of_this_machine(self) -> list[int]:
        """The processes that the notebook started, its daemons among them, and that are not on a host."""
        here, found = os.readlink("/proc/self/ns/net"), []
        for each in carrying(str(self._folder), MARK):
            with suppress(OSError):
                if os.readlink(f"/proc/{each.pid}/ns/net") == here:
                    found.append(each.pid)
        return found


def _signal(pids: Sequence[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.away", description=(__doc__ or "").partition("\n\n")[2])
    parser.add_argument("--notebooks", type=int, default=3, metavar="N", help="how many at once (default 3)")
    parser.add_argument("--seconds", type=float, nargs=2, default=(100.0, 300.0), metavar=("LEAST", "MOST"))
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10_000), metavar="S")
    parser.add_argument("--one", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(notebook(options.one[1:], Path(options.one[0]))), flush=True)
        return 0
    dice, seconds = random.Random(options.seed), tuple(options.seconds)
    print(f"{options.notebooks} notebooks, seed {options.seed}", flush=True)
    failed, started = 0, list[Away]()
    with nothing_left(), made(4) as hosts, ThreadPoolExecutor(options.notebooks) as threads:
        for number in range(options.notebooks):
            started.append(Away(number, hosts, dice, seconds))
        for each, wrong in zip(started, threads.map(Away.play, started), strict=True):
            failed += bool(wrong)
            print(f"{'WRONG' if wrong else 'ok   '}  {each.kind} for {each.seconds:.0f} s  {wrong}", flush=True)
    print(f"{options.notebooks} notebooks: {failed} with something wrong")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
