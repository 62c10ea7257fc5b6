"""Where JACCL is aborted in place, and when its ranks enter ``init``."""

from __future__ import annotations

import platform
import socket
import sys
import threading
from pathlib import Path

import pytest

from allranks.head.world import forming
from allranks.machine.jaccl_systems import SWITCH
from allranks.rank.world.jaccl import jaccl_membership as jaccl_member
from allranks.rank.world.rendezvous import wait_for_listeners
from allranks.rank.world.shared_libraries import NotInPlace
from allranks_backends.plan import Host, Placement
from allranks_backends.registry import get_backend
from allranks_backends.unsupported_operations import limits

from .conftest import NewWorld


@pytest.fixture
def mac(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(platform, "mac_ver", lambda: ("26.3.1", ("", "", ""), "arm64"))
    monkeypatch.delenv(SWITCH, raising=False)


def test_on_a_mac_it_is_off_until_it_is_proven_there(mac: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotInPlace, match=rf"not proven on macOS 26\.3 \({SWITCH}=1 turns it on\)"):
        jaccl_member._check_switch()
    monkeypatch.setattr(jaccl_member, "PROVEN", {"26.3": "https://an.issue"})
    jaccl_member._check_switch()


@pytest.mark.parametrize(("value", "on"), [("1", True), ("0", False), ("yes", False)])
def test_the_user_decides(mac: None, monkeypatch: pytest.MonkeyPatch, value: str, on: bool) -> None:
    monkeypatch.setenv(SWITCH, value)
    if on:
        return jaccl_member._check_switch()
    with pytest.raises(NotInPlace, match=SWITCH):
        jaccl_member._check_switch()


@pytest.mark.parametrize("name", ["jaccl", "jaccl-ring"])
def test_ranks_wait_until_rank_0_listens_where_they_can_see_that(name: str) -> None:
    rows = [tuple((None,) if k == rank else (f"en{rank}{k}",) for k in range(3)) for rank in range(3)]
    names = ("mac1", "mac1", "mac2")
    hosts = [Host(host, rdma=row, addresses=("10.0.0.1",)) for host, row in zip(names, rows, strict=True)]
    backend = get_backend(name)
    plan = backend.plan([Placement(rank, host, 0, (5000 + rank,)) for rank, host in enumerate(hosts)])
    refused = forming.refusals(limits(backend, None))
    requests = [forming._request(plan, backend, rank, 0, refused) for rank in range(3)]
    assert [each.after for each in requests] == [[], [5000], []]
    assert [each.tells_of for each in requests] == [5000, None, None], "mac2 cannot see it"
    assert [each.told_of for each in requests] == [None, None, 5000]
    assert [each.delay for each in requests] == [0.0, forming.STAGGER, forming.STAGGER]
    assert all(each.listen_within >= each.timeout for each in requests[1:])


@pytest.mark.skipif(sys.platform != "linux", reason="which ports are listened to is read from /proc")
def test_the_wait_ends_when_somebody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as taken:
        port = taken.getsockname()[1]
        waiter = threading.Thread(target=wait_for_listeners, args=([port], 60.0, 600.0), daemon=True)
        waiter.start()
        waiter.join(30)
        assert not waiter.is_alive()
    with socket.socket() as later:
        later.bind(("127.0.0.1", 0))
        waiter = threading.Thread(target=wait_for_listeners, args=([later.getsockname()[1]], 60.0, 0.0), daemon=True)
        waiter.start()
        assert waiter.is_alive(), "bound is not yet listened to"
        later.listen()
        waiter.join(30)
        assert not waiter.is_alive()


SLOW = """
import gc, time
if rank == 0:
    gc.callbacks.append(lambda phase, info: phase == "start" and info["generation"] == 2 and time.sleep(2))
"""
"""Rank 0 leaves a world some seconds later than the others."""


@pytest.mark.slow
def test_ranks_of_other_hosts_connect_when_rank_0_has_entered(
    new_world: NewWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """These are on one host, and may not look there whether it listens."""
    monkeypatch.setattr(forming, "_on_one_host", lambda *_: False)
    with new_world("jaccl", ranks=3) as world:
        monkeypatch.setattr(forming, "STAGGER", 10.0)
        world.cluster.run(SLOW).check()
        pids = world.pids()
        list(map(Path.unlink, world.lab.folder.glob("refused-*")))
        world.cluster.rewire("jaccl-ring")
        assert not list(world.lab.folder.glob("refused-*")) and world.pids() == pids
        sums = world.cluster.run("mx.distributed.all_sum(mx.ones(3)).tolist()").check()
        assert [each.value for each in sums.values()] == [[3.0] * 3] * 3
