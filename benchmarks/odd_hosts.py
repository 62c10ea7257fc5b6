"""Hosts that are odd in one way each: what `up` and the doctor say, whether they agree, and how long each takes.

The hosts are network namespaces on this machine. The oddities are in tests/hosts/oddities.py; the test suite tries some
of them. A line is printed for each. ``python -m benchmarks.odd_hosts [WORDS...]`` tries the oddities whose names
contain one of these words.
"""

from __future__ import annotations

import os
import shutil
import sys

from tests.hosts.lab import forbidden, made, missing
from tests.hosts.oddities import BAD, ODDITIES, QUICK, Outcome, tried

from ._table import Bar, Row, Table


def measure(repeat: int | None = None, *, quick: bool = False) -> Table:
    """Try each oddity once; `quick` tries only the oddities of the test suite."""
    table = Table("odd-hosts", "two hosts, of which one is odd: `up` and the doctor, and whether they agree")
    if reason := missing() or forbidden():
        table.notes.append(f"Not measured here: {reason}.")
        return table
    outcomes, not_tried = _tried("", suite_only=quick)
    refusals = [each for each in outcomes if each.up_said]
    table.rows.append(
        Row("do not agree", "", [float(sum(bool(each.wrong) for each in outcomes))], bar=Bar("at most", 0))
    )
    for who, seconds in (
        ("slowest refusal of up", [each.up_seconds for each in refusals]),
        ("slowest refusal of the doctor", [each.doctor_seconds for each in refusals]),
    ):
        table.rows.append(Row(who, "s", [max(seconds, default=0.0)], bar=Bar("at most", QUICK)))
    table.notes.append(f"{len(outcomes)} oddities tried; not tried: {', '.join(not_tried) or 'none'}.")
    return table


def _tried(*words: str, suite_only: bool = False) -> tuple[list[Outcome], list[str]]:
    """The outcome of each oddity, and the names of oddities that could not be tried here."""
    outcomes, not_tried = [], []
    os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    with made(2) as hosts:
        for oddity in ODDITIES:
            if not any(word in oddity.name for word in words) or (suite_only and not oddity.suite):
                continue
            if oddity.needs and shutil.which(oddity.needs) is None:
                print(f"skipped  {oddity.name}: there is no {oddity.needs}")
                not_tried.append(oddity.name)
                continue
            try:
                outcome = tried(hosts, oddity)
            except Exception as error:  # one that cannot be planted here, say
                print(f"{oddity.name}: could not be tried: {type(error).__name__}: {str(error)[:200]}", flush=True)
                hosts.restart_sshd(BAD)
                not_tried.append(oddity.name)
                continue
            outcomes.append(outcome)
            print(_line(outcome), flush=True)
    return outcomes, not_tried


def _line(outcome: Outcome) -> str:
    verdict = "agree" if not outcome.wrong else f"NOT SO ({outcome.wrong})"
    up = outcome.up_said.replace("\n", " / ") or "works"
    said = outcome.doctor_said or "no error"
    warned = [each.what for each in outcome.diagnosis.findings if each.severity == "warning"]
    more = f" [warns: {' '.join(warned)}]" if warned else ""
    slow = f"; {outcome.slow}" if outcome.slow else ""
    return (
        f"{outcome.oddity.name}: {verdict}{slow}\n"
        f"    up {outcome.up_seconds:.1f} s: {up}\n    doctor {outcome.doctor_seconds:.1f} s: {said}{more}"
    )


if __name__ == "__main__":
    outcomes, not_tried = _tried(*(sys.argv[1:] or [""]))
    print(f"{sum(bool(each.wrong) for each in outcomes)} of {len(outcomes)} do not agree; {len(not_tried)} not tried")
