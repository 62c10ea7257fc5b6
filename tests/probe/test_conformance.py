"""The list of checks, on real ranks: it passes where all is well, and says what is not."""

from __future__ import annotations

from contextlib import closing

import msgspec
import pytest

from allranks import Cluster
from allranks.messages.events.probe_answers import ProbeCheck
from allranks.probe.ask_all import CONFORMANCE_MODULE
from allranks.probe.child import Child
from allranks.probe.conformance_cells import DTYPES, OPERATIONS, SIZES, wrong
from allranks.probe.page import page
from allranks.probe.world import ProbedWorld
from tests.jaccl.lab.lab import Lab

from .conftest import Probes

PATIENCE = 5.0
WITHIN = 280.0
FAULTS = {"abort a blocked collective", "heal a killed rank"}


def checks(world: ProbedWorld) -> list[ProbeCheck]:
    text = msgspec.json.encode(msgspec.structs.replace(world, patience=PATIENCE)).decode()
    child = Child(ProbeCheck, [CONFORMANCE_MODULE, text], WITHIN)
    with closing(child.lines()) as lines:
        found = list(lines)
    assert child.trouble == "", found
    return found


def expected(*without: str) -> set[str]:
    every = {f"{operation} {dtype}" for operation in OPERATIONS if operation not in without for dtype in DTYPES}
    return {"start", *every, *FAULTS}


@pytest.mark.parametrize("backend", ["ring", pytest.param("mpi", marks=[pytest.mark.slow, pytest.mark.mpi])])
def test_all_passes_on_two_ranks(backend: str, request: pytest.FixtureRequest) -> None:
    if backend == "mpi":
        request.getfixturevalue("need_mpi")
    found = checks(ProbedWorld(backend, backend))
    assert {each.name for each in found if each.result == "passed"} == expected("sum_scatter"), found
    assert [(each.name, each.result) for each in found if each.result != "passed"] == [("sum_scatter", "not available")]
    assert {each.name: each.same_processes for each in found if each.name in FAULTS} == dict.fromkeys(FAULTS, True)


def test_a_wrong_result_is_named(ring2: Cluster) -> None:
    swap = "_max, mx.distributed.all_max = mx.distributed.all_max, mx.distributed.all_min"
    ring2.run(swap).check()
    try:
        found = ring2.run(wrong("all_max")).check()
    finally:
        ring2.run("mx.distributed.all_max = _max").check()
    everything = [[dtype, size] for dtype in DTYPES for size in SIZES]
    assert {rank: each.value for rank, each in found.items()} == {0: everything, 1: everything}


@pytest.mark.parametrize(
    ("world", "why"),
    [
        (ProbedWorld("nccl", "nccl", why_not="there is no GPU"), "there is no GPU"),
        (ProbedWorld("jaccl", "jaccl"), "needs macOS 26.2 or later"),
    ],
)
def test_what_is_not_there_is_said_and_not_failed(world: ProbedWorld, why: str) -> None:
    (check,) = checks(world)
    assert check.result == "not available" and why in check.detail


def test_a_world_that_cannot_start_has_failed() -> None:
    (check,) = checks(ProbedWorld("ring", "ring", hosts=["no-such-host.invalid"]))
    assert (check.name, check.result) == ("start", "failed") and "no-such-host.invalid" in check.detail


def test_jaccl_in_place_is_proven_by_worlds_that_were_formed_again(probe: Probes, lab: Lab) -> None:
    done = probe("--json", "--backends", "jaccl", "--hostfile", str(lab.hostfile()), "--patience", "2")
    report = done.report
    assert done.code == 0, done.out
    assert {each.name for each in report.checks} == expected()
    assert report.verdict.in_place == "yes" and report.verdict.macos == ""
    assert "all_sum float32, int32, bfloat16" in page(report)


@pytest.mark.slow
def test_no_rank_of_jaccl_is_killed_where_the_driver_would_keep_what_it_holds(probe: Probes, lab: Lab) -> None:
    arguments = ["--backends", "jaccl,jaccl-ring", "--hostfile", str(lab.hostfile()), "--patience", "3"]
    done = probe("--json", *arguments, LAB_RDMA_KEEPS="killed")
    results = {(each.world, each.result): each.detail for each in done.report.checks if "heal" in each.name}
    assert set(results) == {("jaccl", "not available"), ("jaccl-ring", "not available")}
    assert all("keeps what a killed process held" in each for each in results.values())
    assert not [each for each in done.report.checks if each.result == "failed"] and done.code == 1


@pytest.mark.slow
def test_jaccl_that_restarts_ranks_is_not_proven(probe: Probes, lab: Lab) -> None:
    arguments = ["--backends", "jaccl-ring", "--hostfile", str(lab.hostfile()), "--patience", "3"]
    done = probe("--json", *arguments, ALLRANKS_JACCL_IN_PLACE="0")
    assert done.report.verdict.in_place == "no" and "restarted" in done.report.verdict.why
