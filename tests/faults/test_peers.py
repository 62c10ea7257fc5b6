"""Ranks that wait for one which failed are unblocked also where the notebook does nothing."""

from __future__ import annotations

import ctypes
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from allranks import Cluster
from allranks.rank.world.peer_datagrams import Peers
from tests.waiting import comes_true

WITHIN = 60.0
HELD = 12
"""Seconds, several times those within which a rank is unblocked."""
FAILS = """
import time
began = time.monotonic()
try:
    if rank == 1:
        raise ValueError("of its own")
    mx.eval(mx.distributed.all_sum(mx.ones(1000)))
finally:
    waited = time.monotonic() - began
"""
SUM = "mx.distributed.all_sum(mx.array(1)).item()"


@pytest.fixture(params=["ring", pytest.param("mpi", marks=pytest.mark.mpi)])
def four(request: pytest.FixtureRequest) -> Cluster:
    cluster: Cluster = request.getfixturevalue(f"{request.param}4")
    return cluster


@pytest.mark.slow
def test_nobody_waits_for_the_cell(four: Cluster) -> None:
    cell = four.begin(FAILS)
    assert comes_true(
        four,
        lambda now: [rank.state for rank in now.ranks] == ["unblocked", "failed", "unblocked", "unblocked"],
        WITHIN,
    )
    result = cell.finish()
    assert list(result.errors) == [1] and all(result[rank].unblocked for rank in (0, 2, 3))
    assert [each.value for each in four.run(SUM).check().values()] == [4] * 4


@pytest.mark.slow
def test_the_notebooks_interpreter_is_held(four: Cluster) -> None:
    cell = four.begin(FAILS)
    assert comes_true(
        four, lambda now: all(rank.state in ("waiting", "failed", "unblocked") for rank in now.ranks), WITHIN
    )
    ctypes.PyDLL(None).sleep(HELD)  # unlike CDLL, with the GIL
    result = cell.finish(WITHIN)
    assert list(result.errors) == [1] and all(result[rank].unblocked for rank in (0, 2, 3))
    assert max(four.pull("waited")) < HELD - 2
    assert [each.value for each in four.run(SUM).check().values()] == [4] * 4


def peers(token: str) -> tuple[Peers, tuple[str, int]]:
    lifeline: Any = SimpleNamespace(watch=lambda *_: None)
    made = Peers(token, lifeline)
    where = made.listen("127.0.0.1")
    assert where is not None
    return made, where


def test_a_stranger_is_not_believed() -> None:
    (rank, where), (friend, _), (stranger, _) = peers("secret"), peers("secret"), peers("guessed")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as junk:
        for data in (b"", b"7", b"x" * 500, b"\xff" * 64 + b" 7", b"0" * 64 + b" 7"):
            junk.sendto(data, where)
    for each in (stranger, friend):
        each.meet([where])
        each.tell("failed", 7)
    assert rank.heard() == [("failed", 7)]
    assert rank.heard() == []
