"""The report tells drivers apart: by the answers to the questions on RDMA, and by no other."""

from __future__ import annotations

import pytest

from allranks.probe.probe_questions import ENDINGS, RDMA
from tests.jaccl.lab.lab import CUT, Lab

from .conftest import Probes

ASKED = {question.name for group in (*RDMA, *ENDINGS) for question in group.questions}
FLUSH = {"error seen", "flush"}
FREED = {"freed by exit", "freed by sigterm", "freed by sigkill"}
Answers = dict[str, str]


def not_asked(*names: str) -> Answers:
    return dict.fromkeys(names, "not asked")


DRIVERS: dict[str, tuple[dict[str, str], Answers]] = {
    "as specified": ({}, {}),
    "flushes late": ({"LAB_RDMA_ERR": "late"}, {}),
    "does not flush": ({"LAB_RDMA_ERR": "silent"}, {"flush": "no"}),
    "crashes": ({"LAB_RDMA_ERR": "crash"}, dict.fromkeys(FLUSH, "no answer")),
    "contexts that differ": ({"LAB_RDMA_CONTEXTS": "differ"}, {"alike": "no"}),
    "one context for all": ({"LAB_RDMA_CONTEXTS": "shared"}, {"own table": "no"}),
    "another layout": (
        {"LAB_RDMA_LAYOUT": "other"},
        {"layout": "no", **not_asked("alike", "own table", "writable", *FLUSH)},
    ),
    "read-only contexts": ({"LAB_RDMA_CONTEXTS": "fixed"}, {"writable": "no answer", "table": "no answer"}),
    "no table in MLX": ({"LAB_TABLE": "other"}, {"table": "no"}),
    "two tables in MLX": ({"LAB_TABLE": "twice"}, {"table": "no"}),
    "no queue pairs": ({"LAB_RDMA_MAX_QP": "0"}, {"limits": "no", **not_asked(*FLUSH, *FREED)}),
    "few regions": ({"LAB_RDMA_MAX_MR": "8"}, {"limits": "no"}),
    "keeps what was killed": (
        {"LAB_RDMA_KEEPS": "killed"},
        {"freed by sigterm": "no", "freed by sigkill": "no"},
    ),
    "keeps all": ({"LAB_RDMA_KEEPS": "all"}, dict.fromkeys(FREED, "no")),
    "no devices": ({"LAB_RDMA_DEVICES": ""}, {"devices": "no", **not_asked(*(ASKED - {"library", "devices"}))}),
    "no IPv4 address": ({"LAB_RDMA_DEVICES": "rdma_en2,rdma_en3"}, {"gids": "no"}),
}
"""What the pretended driver does, and which answers differ from ``yes``."""
SLOW = {"flushes late", "contexts that differ", "two tables in MLX", "keeps all", "no IPv4 address", "few regions"}


@pytest.mark.parametrize(
    "driver", [pytest.param(each, marks=pytest.mark.slow if each in SLOW else ()) for each in DRIVERS]
)
def test_the_answers_are_those_of_the_driver(driver: str, probe: Probes) -> None:
    env, different = DRIVERS[driver]
    ends = not different or bool(FREED & different.keys())
    done = probe("--json", "--skip", "worlds" if ends else "worlds,endings", "--patience", "3", **env)
    asked = ASKED if ends else ASKED - FREED
    given = {name: answer for name, answer in done.given().items() if name in ASKED}
    assert given == {**dict.fromkeys(asked, "yes"), **different}, done.err
    # That there are no devices is as it may be, on most machines.
    as_expected = "no devices" if driver == "no devices" else set(different.values()) <= {"not asked"}
    assert done.code == (0 if as_expected else 1), done.out


def test_a_port_that_is_down_is_seen(probe: Probes, lab: Lab) -> None:
    for one, other in ((0, 1), (1, 0)):
        name = lab.device(one, other)
        (lab.folder / f"dev-{name}").write_bytes(bytes(64))
        lab.set_fault(name, CUT, 1)
    done = probe("--json", "--skip", "worlds,endings")
    given = done.given()
    assert (given["devices"], given["ports"], given["gids"], given["layout"]) == ("yes", "no", "not asked", "yes")
    assert done.code == 1


@pytest.mark.parametrize("library", ["libc.so.6", "nosuch.so"])
def test_a_library_without_verbs_ends_the_questions(library: str, probe: Probes) -> None:
    done = probe("--json", "--skip", "worlds", library=library)
    given = {name: answer for name, answer in done.given().items() if name in ASKED}
    assert given == {**not_asked(*ASKED), "library": "no"}
    assert done.code == 0, "most machines have none"


def test_a_question_that_hangs_is_ended_and_the_others_are_asked(probe: Probes) -> None:
    done = probe("--json", "--skip", "worlds,endings", "--patience", "0.5", LAB_RDMA_ERR="hang")
    given = done.given()
    assert (given["error seen"], given["flush"]) == ("no answer", "no answer")
    assert (given["layout"], given["limits"]) == ("yes", "yes")
    assert "no answer within 10 s" in done.out and done.code == 1
