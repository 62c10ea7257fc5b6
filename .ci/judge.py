"""Runs all tests and decides what is a failure.

1. The first pass: `make test-all`, several tests at a time.
2. What it left on the machine is red: see `leaks.py`. After a cut, or the crash of a worker, it is only said.
3. The second pass: each test that failed runs alone, several times. Once more a failure: red. None: the test is
   unsteady, which is printed and remembered, and no failure. More than MOST_FAILURES: red without a second pass.
   What did not run, because a worker or the pass came to an early end, runs alone once.
4. `make docs`.

The last line of the output has the counts: `2890 passed, 0 failed, 3 skipped`. Each test that was collected counts
once; one that could not be run has failed. The exit status is 0 only where nothing is red.
"""

from __future__ import annotations

import argparse
import math
import os
import shlex
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO

import processes
import unsteady
from leaks import Machine
from outcomes import FAILED, PASSED, SKIPPED, Outcome, Outcomes, read
from touched import changed_files, commit, is_touched

ROOT = Path(__file__).resolve().parents[1]
PLUGIN = Path(__file__).resolve().parent / "plugin"
MINUTE = 60.0

MOST_FAILURES = 8
"""More are no accident, and would take too long to repeat."""
REPEATED, REPEATED_TOUCHED = 3, 10
LEFT = "processes are left after the tests"
"""In the reason that tests/conftest.py gives, which has killed them."""
DOCS_LIMIT = 10 * MINUTE
NAMED = 30
"""Tests that are named one by one in a list; then they are counted."""
SHOWN = 20_000
"""Characters of the output of a failed repetition, from its end."""


@dataclass
class Judge:
    options: argparse.Namespace
    folder: Path
    """For reports and outputs."""
    machine: Machine
    reds: list[str] = field(default_factory=list)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    """What counts in the end."""
    cut: bool = False
    """The first pass was ended at its limit."""

    @property
    def root(self) -> Path:
        root: Path = self.options.root
        return root

    @property
    def left(self) -> float:
        """Seconds until the whole must end."""
        return float(self.options.began + self.options.whole_limit - time.time())

    def red(self, reason: str) -> None:
        self.reds.append(reason)
        say(f"ci: red: {reason}")

    # The passes

    def judge(self) -> None:
        for line in unsteady.remembered(self.options.log):
            say(f"ci: unsteady before: {line}")
        if not self._table_is_short():
            return
        first = self._first_pass()
        self._count(first)
        for crash in first.crashes:
            say(f"ci: {crash}")
        if self.cut or first.crashes:
            self._clear_after("the cut" if self.cut else "the crash")  # no leak: nothing could clear up
        else:
            self._settle("the first pass")
        failed = first.named(FAILED) | self._hung(first)
        if self._is_worth_a_second_pass(first, failed):
            self._second_pass(first, failed)
        if not any(outcome.result in (PASSED, FAILED) for outcome in self.outcomes.values()):
            self.red("no test was executed")
        self._docs()

    def _table_is_short(self) -> bool:
        try:
            open_ones = [entry for entry in unsteady.entries(self.options.table) if entry.is_open]
        except ValueError as error:
            self.red(str(error))
            return False
        if len(open_ones) <= unsteady.MOST_OPEN:
            return True
        self.red(
            f"{len(open_ones)} unsteady tests are open in {self.options.table.name}, and {unsteady.MOST_OPEN} may be: "
            "make some of them steady"
        )
        return False

    def _first_pass(self) -> Outcomes:
        report = self.folder / "first.jsonl"
        arguments = ["-p", "ci_report", f"--ci-report={report}", "--color=no", "--durations=15"]
        limit = min(self.options.first_limit, self.left)
        self.machine.remember()
        ends = time.time() + limit
        status = self._run(with_arguments(self.options.first, arguments), limit)
        self.cut = status is None
        outcomes = read(report, until=ends if self.cut else math.inf)
        if outcomes.status is None:
            say("")  # pytest's last line has no end
        if self.cut:
            self._say_what_was_cut(outcomes, limit)
        for file, reason in outcomes.uncollected.items():
            self.red(f"{file} was not collected ({reason})")
        if not self.cut:
            for reason in outcomes.unexplained:
                self.red(reason)
            if reason := why_the_pass_is_red(outcomes, status or 0):
                self.red(reason)
        return outcomes

    def _say_what_was_cut(self, outcomes: Outcomes, limit: float) -> None:
        say(f"ci: the first pass was ended after {duration(limit)}; running: {listed(outcomes.running) or 'no test'}")
        say(f"ci: not run: {listed(outcomes.not_run) or 'none'}")
        if not outcomes.begun:
            self.red("the first pass was ended before any test was collected")
        elif not outcomes.running and not outcomes.not_run:
            self.red(f"pytest did not end within {duration(limit)}, though no test was running")

    def _count(self, first: Outcomes) -> None:
        """A test has failed until it is known to have passed."""
        self.outcomes = {test: Outcome(FAILED, "it was not run") for test in first.collected} | first.of
        self.outcomes |= {file: Outcome(FAILED, reason) for file, reason in first.uncollected.items()}

    def _hung(self, first: Outcomes) -> dict[str, str]:
        """The test that ran longest when the first pass was ended. The others that ran then are run again, alone."""
        if not self.cut or not first.running:
            return {}
        test, since = min(first.running.items(), key=lambda entry: entry[1])
        return {test: f"still running after {duration(time.time() - since)}, when the first pass was ended"}

    def _is_worth_a_second_pass(self, first: Outcomes, failed: dict[str, str]) -> bool:
        if len(failed) > MOST_FAILURES:
            for test, reason in failed.items():
                say(f"FAILED {test} - {reason}")
            self.red(f"{len(failed)} tests failed in the first pass: more than {MOST_FAILURES} are not repeated")
        elif first.uncollected or not first.begun:
            pass  # red already
        else:
            return True
        if not_run := [*first.running, *first.not_run]:
            self.red(f"not run: {listed(not_run)}")
        return False

    def _second_pass(self, first: Outcomes, failed: dict[str, str]) -> None:
        docs = DOCS_LIMIT if self.options.docs else 0.0
        deadline = time.monotonic() + min(self.options.second_limit, self.left - docs)
        changed = changed_files(self.root)
        for test, reason in failed.items():
            if LEFT in reason:  # conftest.py fails the last test of a worker: alone it would pass
                self._fail(test, f"ended a worker after which {reason}")
                continue
            times = REPEATED_TOUCHED if is_touched(test, changed) else REPEATED
            self._repeat(test, reason, times, deadline)
        waiting = [test for test in [*first.running, *first.not_run] if test not in failed]
        while waiting and time.monotonic() < deadline:
            self._run_what_did_not_run(waiting.pop(0), deadline)
        if waiting:
            self.red(f"not run, for no time was left: {listed(waiting)}")

    def _repeat(self, test: str, reason: str, times: int, deadline: float) -> None:
        say(f"ci: repeating {test} alone, {times} times; it failed with: {reason}")
        for number in range(1, times + 1):
            if time.monotonic() >= deadline:
                how = f"no time was left in the second pass for repetition {number} of {times}"
                self._fail(test, f"failed with: {reason}; {how}")
                return
            outcome, output = self._alone(test, deadline)
            if outcome is None:
                how = f"repetition {number} of {times} did not end within the limit of the second pass"
                self._fail(test, f"failed with: {reason}; {how}")
                return
            if outcome.result != PASSED:
                show(output)
                self._fail(test, f"failed alone too, in repetition {number} of {times} ({outcome.reason})")
                return
            if self._settle(f"repetition {number} of {test}"):
                self._fail(test, f"passed, but left something behind in repetition {number}")
                return
        self._is_unsteady(test, reason)

    def _run_what_did_not_run(self, test: str, deadline: float) -> None:
        outcome, output = self._alone(test, deadline)
        if outcome is None:
            self._fail(test, "ran alone and did not end before the time was up")
            return
        if outcome.result == FAILED:
            show(output)
            self._fail(test, f"failed alone ({outcome.reason})")
            return
        say(f"ci: ran alone: {test} ({outcome.result})")
        self.outcomes[test] = outcome
        self._settle(test)

    def _fail(self, test: str, reason: str) -> None:
        self.outcomes[test] = Outcome(FAILED, reason)
        say(f"FAILED {test} - {reason}")
        self.red(f"{test} {reason}")

    def _is_unsteady(self, test: str, reason: str) -> None:
        self.outcomes[test] = Outcome(PASSED)
        name = commit(self.root)
        say(f"ci: unsteady: {test} ({reason})")
        unsteady.remember(self.options.log, test, reason, name)
        known = {entry.test: entry for entry in unsteady.entries(self.options.table)}
        if test not in known:
            say(f"ci: add to tests/unsteady.md: {unsteady.row(test, reason, name)}")
        elif not known[test].is_open:
            say(f"ci: tests/unsteady.md has it as closed: open it again ({name})")

    # One run

    def _alone(self, test: str, deadline: float) -> tuple[Outcome | None, Path]:
        """Outcome in a fresh process, with nothing else running, and its output. None where the deadline came first."""
        report, output = self.folder / "alone.jsonl", self.folder / "alone.txt"
        report.unlink(missing_ok=True)
        limit = max(0.0, deadline - time.monotonic())
        command = [sys.executable, "-m", "pytest", test, "-p", "no:cacheprovider", "-n", "0", "--color=no"]
        with open(output, "wb") as file:
            status = self._run([*command, "-p", "ci_report", f"--ci-report={report}"], limit, file)
        if status is None:
            show(output)
            self._clear_after("the cut")
            return None, output
        outcomes = read(report)
        outcome = outcomes.of.get(test)
        if outcome is None:
            how = f"its process ended with status {status} while it ran" if outcomes.running else "it could not be run"
            return Outcome(FAILED, f"{how}, alone"), output
        if status != 0 and outcome.result != FAILED:
            return Outcome(FAILED, f"it {outcome.result}, and pytest ended with status {status}"), output
        return outcome, output

    def _run(self, command: Sequence[str], limit: float, output: IO[bytes] | None = None) -> int | None:
        others = os.environ.get("PYTHONPATH")
        path = os.pathsep.join([str(PLUGIN), others] if others else [str(PLUGIN)])
        environment = {**os.environ, "CI": "true", "PYTHONPATH": path}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # each pytest would compile its plugins: 3 s of 6
        return processes.run(command, self.root, environment, limit, self.options.grace, output)

    def _settle(self, after: str) -> bool:
        """Whether something stays after a quiet minute: that is red."""
        left = self._leaks()
        for leak in left:
            self.red(f"left after {after}: {leak}")
        return bool(left)

    def _clear_after(self, what: str) -> None:
        for leak in self._leaks():
            say(f"ci: left after {what}: {leak}")

    def _leaks(self) -> list[str]:
        return self.machine.settle(max(0.0, min(self.options.quiet, self.left)))

    def _docs(self) -> None:
        if not self.options.docs:
            return
        limit = min(DOCS_LIMIT, self.left)
        status = self._run(shlex.split(self.options.docs), limit)
        if status != 0:
            how = f"took longer than {duration(limit)}" if status is None else f"ended with status {status}"
            self.red(f"`{self.options.docs}` {how}")


def why_the_pass_is_red(outcomes: Outcomes, status: int) -> str:
    """Why a first pass that was not cut is red, apart from the tests that failed."""
    if not outcomes.begun:
        return f"the first pass ended with status {status} before pytest had begun (the lint?)"
    if outcomes.status is None:
        return f"pytest died in the first pass (status {status})"
    if outcomes.status == 5:
        return "pytest collected no test"
    if outcomes.uncollected:
        return ""  # named each
    if outcomes.status not in (0, 1):
        return f"pytest ended the first pass with status {outcomes.status}"
    if (outcomes.status or status) and not outcomes.named(FAILED) and not outcomes.unexplained:
        return f"the first pass ended with status {outcomes.status or status}, though no test failed"
    return ""


def with_arguments(command: str, arguments: list[str]) -> list[str]:
    """The words of a command. A word `{args}` becomes these words; within a word it becomes one text, quoted."""
    words: list[str] = []
    for word in shlex.split(command):
        words += arguments if word == "{args}" else [word.replace("{args}", shlex.join(arguments))]
    return words


def listed(tests: Sequence[str] | dict[str, float]) -> str:
    """Some by name, the rest by number."""
    names = list(tests)
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def show(output: Path) -> None:
    text = output.read_text(errors="replace") if output.exists() else ""
    say(f"[...]\n{text[-SHOWN:]}" if len(text) > SHOWN else text)


def say(text: str) -> None:
    print(text, flush=True)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Run all tests and say no only for a reason.")
    add = parser.add_argument
    add("--root", type=Path, default=ROOT, help="the project's folder (default: this file's clone)")
    add("--first", default='make test-all ARGS="{args}"', help="the first pass; {args} become options for pytest")
    add("--docs", default="make docs", help="what is run at the end; an empty one is not")
    add("--table", type=Path, help="known unsteady tests (default: tests/unsteady.md)")
    add("--log", type=Path, default=unsteady.LOG, help="unsteady tests of this run and earlier ones")
    add("--first-limit", type=float, default=60 * MINUTE, metavar="SECONDS")
    add("--second-limit", type=float, default=25 * MINUTE, metavar="SECONDS")
    add("--whole-limit", type=float, default=85 * MINUTE, metavar="SECONDS")
    add("--quiet", type=float, default=MINUTE, metavar="SECONDS", help="for what a pass started to be gone")
    add("--grace", type=float, default=MINUTE / 2, metavar="SECONDS", help="for a pass that is ended to clear up")
    add("--began", type=float, default=time.time(), help="when the whole began, in seconds since 1970")
    options = parser.parse_args()
    options.root = options.root.resolve()
    options.table = options.table or options.root / "tests" / "unsteady.md"
    return options


def terminated(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def main() -> int:
    options = parsed()
    signal.signal(signal.SIGTERM, terminated)
    signal.signal(signal.SIGINT, terminated)
    processes.adopt_orphans()
    with tempfile.TemporaryDirectory(prefix="allranks-ci-") as folder:
        judge = Judge(options, Path(folder), Machine())
        try:
            judge.judge()
        except Exception:
            judge.red(f"the judge failed\n{traceback.format_exc()}")
        finally:
            processes.end_all()
    results = [outcome.result for outcome in judge.outcomes.values()]
    say(f"ci: {'failed' if judge.reds else 'passed'} in {duration(time.time() - options.began)}")
    say(", ".join(f"{results.count(result)} {result}" for result in (PASSED, FAILED, SKIPPED)))
    return 1 if judge.reds else 0


if __name__ == "__main__":
    sys.exit(main())
