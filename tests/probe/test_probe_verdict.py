"""What follows from answers: whether JACCL in place may be switched on, the exit code, and what a reader sees."""

from __future__ import annotations

import errno

import msgspec
import pytest

from allranks.machine.jaccl_systems import PROVEN
from allranks.messages.events.probe_answers import ProbeAnswer, ProbeCheck
from allranks.probe import gpu_worlds
from allranks.probe.machine import ask_awake, asleep, described, judged
from allranks.probe.page import page
from allranks.probe.probe_questions import IN_PLACE, QUESTIONS
from allranks.probe.probe_verdict import Report, as_expected, verdict

GOOD = [ProbeAnswer(name, "yes") for name in QUESTIONS]
HEALED = ProbeCheck("jaccl", "heal a killed rank", "passed", "in the same processes", 1.5, True)
RESTARTED = ProbeCheck("jaccl", "heal a killed rank", "passed", "restarted", 1.5, False)
BAD = ProbeCheck("jaccl", "all_sum float32", "failed", "wrong with 1 elements")
ABSENT = ProbeCheck("jaccl", "start", "not available", "no hostfile")
OF_A_RING = ProbeCheck("ring", "heal a killed rank", "passed", "in the same processes", 1.5, True)


def with_answer(name: str, given: str) -> list[ProbeAnswer]:
    return [msgspec.structs.replace(each, given=given) if each.question == name else each for each in GOOD]


def report(answers: list[ProbeAnswer], checks: list[ProbeCheck], macos: str = "26.3", listed: bool = False) -> Report:
    decided = verdict(answers, checks, macos, listed)
    return Report(machine=described(), date="2026-01-01", verdict=decided, answers=answers, checks=checks)


@pytest.mark.parametrize(
    ("checks", "may", "why"),
    [
        ([HEALED], "yes", "in the same processes"),
        ([HEALED, BAD], "no", "failed on jaccl: all_sum float32"),
        ([RESTARTED], "no", "restarted"),
        ([HEALED, msgspec.structs.replace(RESTARTED, world="jaccl-ring")], "no", "jaccl-ring"),
        ([ABSENT, OF_A_RING], "not asked", "No world of JACCL was formed"),
        ([msgspec.structs.replace(BAD, result="passed")], "not asked", "re-formed"),
    ],
)
def test_a_world_must_have_been_formed_again_in_its_processes(checks: list[ProbeCheck], may: str, why: str) -> None:
    found = verdict(GOOD, checks, "26.3", False)
    assert found.in_place == may and why in found.why


@pytest.mark.parametrize("name", IN_PLACE)
@pytest.mark.parametrize(("given", "may"), [("no", "no"), ("not asked", "not asked")])
def test_each_fact_that_it_relies_on_must_be_seen(name: str, given: str, may: str) -> None:
    found = verdict(with_answer(name, given), [HEALED], "26.3", False)
    assert found.in_place == may and QUESTIONS[name].text in found.why


def test_a_driver_that_does_not_flush_may_be_listed_and_is_not_as_expected() -> None:
    found = report(with_answer("flush", "no"), [HEALED])
    assert found.verdict.in_place == "yes" and not found.ok


def test_the_page_says_how_to_list_a_version_and_that_it_is() -> None:
    assert '"26.3": "<address of the issue with this report>",' in page(report(GOOD, [HEALED]))
    assert "In this version of allranks it is." in page(report(GOOD, [HEALED], listed=True))
    off = page(report(GOOD, [ABSENT]))
    assert "`ALLRANKS_JACCL_IN_PLACE=1`" in off and "PROVEN" not in off


def test_each_version_that_is_listed_has_its_report() -> None:
    for version, source in PROVEN.items():
        assert len(version.split(".")) == 2 and source.startswith("https://")


def test_what_could_not_be_asked_is_expected_and_what_hung_is_not() -> None:
    assert as_expected(ProbeAnswer("flush", "not asked"))
    assert not as_expected(ProbeAnswer("flush", "not asked", failed=True))
    assert as_expected(ProbeAnswer("gpus", "no")) and not as_expected(ProbeAnswer("flush", "no"))
    assert report(GOOD, [ABSENT]).ok and not report(GOOD, [BAD]).ok
    stopped = report(GOOD, [])
    stopped.complete = False
    assert not stopped.ok


def test_what_is_unexpected_comes_first_on_the_page() -> None:
    text = page(report([*with_answer("flush", "no")], [BAD]))
    assert text.index(f"- **!** {QUESTIONS['flush'].text} no") < text.index("| system |")
    assert f"**2 of {len(GOOD) + 1} answers are not as expected; 0 could not be asked." in text


def test_a_table_survives_what_libraries_write() -> None:
    text = page(report([ProbeAnswer("flush", "no", "a|b\nc")], []))
    assert r"| **!** no | a\|b c |" in text


def test_a_report_can_be_read_again() -> None:
    written = report(GOOD, [HEALED])
    assert msgspec.json.decode(msgspec.json.encode(written), type=Report) == written


def test_a_machine_that_slept_says_so() -> None:
    now = asleep()
    assert ask_awake(now).given == "yes"
    assert now is not None and ask_awake(now - 60).given == "no"
    assert ask_awake(None).given == "not asked"


@pytest.mark.parametrize(
    ("code", "pings", "given"),
    [
        (0, False, "yes"),
        (errno.ECONNREFUSED, False, "yes"),
        (errno.EHOSTUNREACH, True, "no"),
        (errno.EHOSTUNREACH, False, "not asked"),
        (errno.ETIMEDOUT, True, "not asked"),
    ],
)
def test_local_network_privacy_is_known_by_ping(code: int, pings: bool, given: str) -> None:
    answer = judged("the router", code, lambda: pings)
    assert answer.given == given and ("Local Network" in answer.detail) == (given == "no")


@pytest.mark.parametrize(
    ("cards", "nccl", "formed", "not_formed"),
    [
        (0, "", [], ["nccl"]),
        (1, "", [], ["nccl"]),
        (1, "2.29.7", ["nccl, 1 GPU"], ["nccl, 2 ranks on 1 GPU"]),
        (1, "2.30.1", ["nccl, 1 GPU", "nccl, 2 ranks on 1 GPU"], []),
        (8, "2.32.3", ["nccl, 2 GPUs", "nccl, 8 GPUs", "nccl, 2 ranks on 1 GPU"], []),
    ],
)
def test_worlds_of_gpus(cards: int, nccl: str, formed: list[str], not_formed: list[str]) -> None:
    worlds = gpu_worlds.worlds(cards, nccl)
    assert [each.name for each in worlds if not each.why_not] == formed
    assert [each.name for each in worlds if each.why_not] == not_formed
