"""The report: all answers and checks, and the verdict that follows from them."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from allranks.messages.events.probe_answers import Given, ProbeAnswer, ProbeCheck

from .probe_questions import IN_PLACE, QUESTIONS

SCHEMA = 1
"""Version of the JSON form of `Report`; adding a field does not change it."""
JACCL = ("jaccl", "jaccl-ring")


class ProbedMachine(Struct, frozen=True):
    """The probed machine, without its name."""

    system: str
    release: str
    """Version of macOS, or of the kernel."""
    model: str
    chip: str
    cores: int
    memory: int
    """Bytes."""
    python: str
    packages: dict[str, str]
    """Versions of installed packages, by name."""


class Verdict(Struct, frozen=True):
    """Whether collectives of JACCL may be aborted in place on this version of macOS."""

    in_place: Given
    why: str
    """The reason, as a sentence."""
    macos: str
    """The version of macOS; empty on other systems."""
    listed: bool
    """Whether this version of allranks aborts in place on `macos` by default, without an environment variable."""


class Report(Struct, kw_only=True):
    schema: int = SCHEMA
    machine: ProbedMachine
    date: str
    verdict: Verdict
    answers: list[ProbeAnswer] = []
    checks: list[ProbeCheck] = []
    seconds: float = 0.0
    complete: bool = True
    """False if the probe was stopped early."""

    def unexpected(self) -> list[str]:
        """One line for each answer and check that is not as expected."""
        answers = [f"{QUESTIONS[each.question].text} {each.given}" for each in self.answers if not as_expected(each)]
        checks = [f"{each.world}: {each.name}: {each.result}" for each in self.checks if each.result == "failed"]
        return answers + checks

    @property
    def ok(self) -> bool:
        """Whether the probe was completed, and all answers are as expected."""
        return self.complete and not self.unexpected()


def as_expected(answer: ProbeAnswer) -> bool:
    """Whether an answer is as expected. "Not asked" also counts as expected, unless the question failed."""
    expected = QUESTIONS[answer.question].expected
    return not answer.failed and (answer.given == "not asked" or expected in (None, answer.given))


def verdict(answers: Iterable[ProbeAnswer], checks: Iterable[ProbeCheck], macos: str, listed: bool) -> Verdict:
    """Decide whether aborting in place may be enabled.

    That requires the answer yes to every question in `IN_PLACE`, and worlds of JACCL that passed all checks and were
    re-formed without restarting the ranks that were not killed.
    """
    given = {each.question: each.given for each in answers}
    ran = [each for each in checks if each.world in JACCL and each.result != "not available"]

    def decided(in_place: Given, why: str) -> Verdict:
        return Verdict(in_place, why, macos, listed)

    if wrong := [name for name in IN_PLACE if given.get(name) == "no"]:
        return decided("no", f"{QUESTIONS[wrong[0]].text} No.")
    if missing := [name for name in IN_PLACE if given.get(name) != "yes"]:
        return decided("not asked", f"Not answered: {QUESTIONS[missing[0]].text}")
    if not ran:
        return decided("not asked", "No world of JACCL was formed.")
    if failed := [each for each in ran if each.result == "failed"]:
        return decided("no", f"It failed on {failed[0].world}: {failed[0].name}.")
    formed = [each for each in ran if each.same_processes is not None]
    if not formed:
        return decided("not asked", "No world of JACCL was re-formed.")
    if restarted := [each for each in formed if not each.same_processes]:
        return decided("no", f"{restarted[0].world}: {restarted[0].name}: the other ranks were restarted.")
    return decided("yes", "The driver is as expected, and worlds of JACCL were re-formed in the same processes.")
