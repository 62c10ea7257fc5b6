"""``python -m benchmarks.changes --rounds N --seed S [-n 3] [--backend ring|mpi]``: changes that are interrupted.

Each round a notebook attaches to the world of the round before, reads its variables, heals it, sets a variable on
each rank, and begins a `heal`, `resize` or `rewire`. At a random moment of it stop is pressed, the notebook is
killed, a rank is stopped for some seconds, another rank dies, or the hosts are out of reach for some seconds.
Afterwards every rank must have its variable, or be reported to lack it: by the change, by the state of the world, or
by the next cell; and plain `heal` must finish it. One line a round, a summary, and exit code 1 if anything
was lost unnamed, or less than 95 % were finished.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import nullcontext, suppress
from typing import Any

from tests.hosts.lab import Hosts, made

from ._changing import Plan, arguments
from ._processes import nothing_left

EVENTS = ("stop", "notebook killed", "rank stopped", "rank killed")
CUT = "hosts out of reach"
VERBS = ("heal", "resize", "rewire")
LONGEST = {"heal": 3.0, "resize": 3.0, "rewire": 8.0}
"""Seconds into a change until which something happens."""
LASTS = 0.5, 12.0
"""Seconds for which a rank is stopped, or hosts are out of reach."""
STUCK_AFTER = 400.0
"""Seconds after which a notebook is given up."""
FINISHED = 0.95
NAMED = r"got the variables|empty|no variables|not loaded|lost|died|dead|could not|not responding"
"""Matches the reports on ranks that lack variables."""


class Round:
    """One notebook, and what happens to it."""

    def __init__(self, plan: Plan, dice: random.Random, hosts: Hosts | None) -> None:
        self.plan, self._hosts = plan, hosts
        self.event = dice.choice([*EVENTS, *([CUT] if hosts is not None else [])])
        self.delay = dice.uniform(0.0, LONGEST.get(plan.verb, 0.0))
        self._dice = dice
        self.told: dict[str, Any] = {}

    def __str__(self) -> str:
        argument = f" {self.told['argument']}" if self.told.get("argument") else ""
        source = f" --from {self.told['source']}" if self.told.get("source") is not None else ""
        return f"{self.plan.verb}{argument}{source}, {self.event} after {self.delay:.1f} s"

    def play(self) -> None:
        """Run the notebook to its end, one way or the other."""
        notebook = subprocess.Popen(arguments(self.plan), stdout=subprocess.PIPE, text=True)
        assert notebook.stdout is not None
        stuck = threading.Timer(STUCK_AFTER, notebook.kill)
        stuck.start()
        try:
            for line in notebook.stdout:
                self.told |= json.loads(line)
                if "begins" in self.told and "change" not in self.told:
                    threading.Thread(target=self._happen, args=(notebook,)).start()
            code = notebook.wait()
        finally:
            stuck.cancel()
        if code and not (code == -signal.SIGKILL and self.event == "notebook killed"):
            self.told["failed"] = f"the notebook ended with {code}"

    def _happen(self, notebook: subprocess.Popen[str]) -> None:
        time.sleep(self.delay)
        if "change" in self.told:
            return
        rank = self._dice.choice([rank for rank in range(self.told["size"]) if rank != self.told["killed"]])
        pid = self.told["pids"][rank]
        with suppress(ProcessLookupError):  # ended by the change
            match self.event:
                case "stop":
                    notebook.send_signal(signal.SIGINT)
                case "notebook killed":
                    notebook.kill()
                case "rank killed":
                    os.kill(pid, signal.SIGKILL)
                case "rank stopped":
                    os.kill(pid, signal.SIGSTOP)
                    time.sleep(self._dice.uniform(*LASTS))
                    os.kill(pid, signal.SIGCONT)
                case _:
                    assert self._hosts is not None
                    self._hosts.cut_off(True)
                    time.sleep(self._dice.uniform(*LASTS))
                    self._hosts.cut_off(False)

    def lost(self, seen: dict[str, Any], words: str) -> list[str]:
        """Ranks that lack their variable (new ranks: their source's), although no report names them."""
        number, source, killed = self.plan.round, self.told["source"], self.told["killed"]
        found = []
        for name, held in seen["held"].items():
            rank = int(name)
            new = rank == killed or rank >= self.told["size"]
            right = [number, source if new and source is not None else rank]
            answered = not str(held).startswith("NoAnswer")  # which names the rank, whose process may still be stopped
            if held == right or not answered or rank in seen["dead"] or (new and source is None):
                continue
            if not named(rank, words):
                found.append(f"rank {rank} holds {held}, not {right}")
        return found


def named(rank: int, words: str) -> bool:
    """Whether a sentence reports that the rank lacks variables, died, or has yet to load saved variables."""
    for clause in re.split(r"[;.:]\s", words):
        if not re.search(NAMED, clause):
            continue
        for first, last in re.findall(r"(\d+)(?:-(\d+))?", clause):
            if int(first) <= rank <= int(last or first):
                return True
    return False


def wrong_in(before: Round, now: Round) -> list[str]:
    """Unreported losses in the round `before`, as seen by its own notebook and by the next one, which healed."""
    wrong, said = list[str](), before.told.get("change", "")
    if "left" in before.told:
        wrong += before.lost(before.told["left"], " ".join([said, *before.told["left"]["words"]]))
    healed = now.told.get("healed")
    if healed is None:
        return [*wrong, f"no heal: {now.told}"]
    words = " ".join([said, *now.told["after"]["words"], *now.told["said"]])
    wrong += before.lost(now.told["after"], words) + before.lost(healed, words)
    if not isinstance(healed["cell"], list) or set(healed["cell"]) != {healed["size"]}:
        wrong.append(f"the cell after heal: {healed['cell']}")
    return wrong


def play(rounds: int, seed: int, size: int, backend: str, hosts: Hosts | None = None) -> Counter[str]:
    """Play the rounds and print them; returns how many of what."""
    count: Counter[str] = Counter()
    name, before = f"changes-{os.getpid()}", None
    for number in range(1, rounds + 2):
        dice = random.Random(f"{seed}:{number}")
        verb = dice.choice(VERBS) if number <= rounds else "end"
        names = hosts.names if hosts is not None else []
        plan = Plan(name, size, backend, number, verb, dice.randrange(12), dice.random() < 0.5, names)
        now = Round(plan, dice, hosts)
        started = time.monotonic()
        now.play()
        if before is not None:
            wrong = wrong_in(before, now)
            count["rounds"] += 1
            count["finished"] += "healed" in now.told and len(now.told["said"]) == 1
            count["lost"] += bool(wrong)
            print(f"{before.plan.round:4}  {'WRONG' if wrong else 'ok   '}  {before}", flush=True)
            if wrong:
                wrong += [f"said: {before.told.get('change', '')}", f"then: {now.told.get('said')}"]
            for each in wrong:
                print(f"             {each}", flush=True)
        if "failed" in now.told:
            count["failed"] += 1
            print(f"             {now.told['failed']} after {time.monotonic() - started:.0f} s: {now}", flush=True)
        if "begins" not in now.told:
            break
        before = now
    return count


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.changes", description=(__doc__ or "").partition("\n\n")[2]
    )
    parser.add_argument("--rounds", type=int, default=100, metavar="N", help="how many changes (default 100)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10_000), metavar="S")
    parser.add_argument("-n", type=int, default=3, help="ranks at the beginning (default 3)")
    parser.add_argument("--backend", choices=["ring", "mpi"], default="ring")
    parser.add_argument("--hosts", action="store_true", help="a host for each rank: network namespaces, as root")
    options = parser.parse_args()
    where = ", a host each" if options.hosts else ""
    print(f"{options.rounds} changes, {options.n} {options.backend} ranks{where}, seed {options.seed}", flush=True)
    with nothing_left(), made(options.n) if options.hosts else nullcontext() as hosts:
        count = play(options.rounds, options.seed, options.n, options.backend, hosts)
    done = count["rounds"]
    print(
        f"{done} changes: {count['lost']} with something lost and not named, "
        f"{count['finished']} finished by one heal, {count['failed']} notebooks failed"
    )
    return int(done < options.rounds or count["lost"] > 0 or count["finished"] < FINISHED * done)


if __name__ == "__main__":
    sys.exit(main())
