"""Reads what `plugin/ci_report.py` wrote: one outcome for each test that was collected."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

PASSED: Final = "passed"
FAILED: Final = "failed"
SKIPPED: Final = "skipped"
Result = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True)
class Outcome:
    result: Result
    reason: str = ""


@dataclass
class Outcomes:
    """What one run of pytest left, whether it came to its end or not."""

    collected: list[str] = field(default_factory=list)
    of: dict[str, Outcome] = field(default_factory=dict)
    """Of the tests that ended."""
    running: dict[str, float] = field(default_factory=dict)
    """The tests that started and did not end, with the time of day at which they started."""
    uncollected: dict[str, str] = field(default_factory=dict)
    """Files that could not be collected, and why."""
    unexplained: list[str] = field(default_factory=list)
    """Workers that crashed while they ran no test."""
    crashes: list[str] = field(default_factory=list)
    """How each worker that crashed ended, and where it stood then."""
    status: int | None = None
    """pytest's exit status; None where it did not come to its end."""

    @property
    def begun(self) -> bool:
        return bool(self.collected or self.of or self.uncollected) or self.status is not None

    def named(self, result: Result) -> dict[str, str]:
        """The tests with this result, and their reasons."""
        return {test: outcome.reason for test, outcome in self.of.items() if outcome.result == result}

    @property
    def not_run(self) -> list[str]:
        """Tests that were collected, and neither ended nor are running."""
        return [test for test in self.collected if test not in self.of and test not in self.running]


def read(path: Path, until: float = math.inf) -> Outcomes:
    """`until` is a time of day: after it a test was interrupted, and what it reports counts no more."""
    outcomes, ended = Outcomes(), dict[str, Outcome]()
    for line in _lines(path):
        if line["time"] > until:
            continue
        match line["event"]:
            case "collected":
                known = set(outcomes.collected)
                outcomes.collected += [test for test in line["ids"] if test not in known]
            case "uncollected":
                outcomes.uncollected[line["id"]] = line["reason"]
            case "module skipped":  # pytest counts it as one, too
                outcomes.of[line["id"]] = Outcome(SKIPPED, line["reason"])
            case "started":
                outcomes.running.setdefault(line["id"], line["time"])
            case "report":
                _add(outcomes, ended, line)
            case "crashed":
                outcomes.unexplained.append(f"worker {line['worker']} crashed while it ran no test ({line['error']})")
                outcomes.crashes.append(f"worker {line['worker']} crashed ({line['error']})\n{line['stood']}".rstrip())
            case "ended":
                outcomes.status = line["status"]
    return outcomes


def _add(outcomes: Outcomes, so_far: dict[str, Outcome], line: dict[str, Any]) -> None:
    """A phase of a test: what failed stays failed; the last phase ends the test."""
    test, crashed = line["id"], line["when"] not in ("setup", "call", "teardown")
    before = so_far.get(test, Outcome(PASSED))
    if line["outcome"] != PASSED and before.result != FAILED:
        so_far[test] = Outcome(line["outcome"], line["reason"])
    if crashed and outcomes.unexplained:  # the line before named the worker; this one says which test it ran
        outcomes.unexplained.pop()
    if crashed or line["when"] == "teardown":
        outcomes.running.pop(test, None)
        outcomes.of[test] = so_far.get(test, before)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    for line in text.splitlines(keepends=True):
        if line.endswith("\n"):  # the last one may have been cut
            yield json.loads(line)
