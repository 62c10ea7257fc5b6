"""NCCL is wired as mlx.launch wires it: one rank a CUDA device."""

from __future__ import annotations

from dataclasses import replace

import pytest

from allranks_backends.plan import Host, Platform
from allranks_backends.protocol import BackendError
from allranks_backends.runtimes.nccl import NCCL, SHARE, shared, visible_devices

BACKEND = NCCL()
BOX = Host("box", True, ("10.0.0.1",))
OTHER = Host("other", False, ("10.0.0.2",))
CUDA = Platform("Linux", "6.1", {"ring": True, "nccl": True}, cuda_devices=2)


@pytest.mark.parametrize("devices", [1, 2, 8])
def test_it_is_wired_as_mlx_launch_does(launch_env, placements, seen, devices):
    options = ("--backend", "nccl", "--hosts", "127.0.0.1", "-n", str(devices), "--nccl-port", "32323")
    theirs = launch_env(*options, size=devices)
    plan = BACKEND.plan(placements([Host("localhost")] * devices, 1))
    assert [seen(BACKEND.wiring(plan, rank)) for rank in range(devices)] == theirs


def test_devices_are_counted_on_each_host(placements):
    plan = BACKEND.plan(placements([BOX, BOX, OTHER, OTHER], 1))
    assert [BACKEND.wiring(plan, rank).env["CUDA_VISIBLE_DEVICES"] for rank in range(4)] == ["0", "1", "0", "1"]
    assert {BACKEND.wiring(plan, rank).env["NCCL_HOST_IP"] for rank in range(4)} == {"10.0.0.1"}


def test_only_the_devices_the_host_may_use_are_taken(placements):
    ours = replace(BOX, cuda=visible_devices({"CUDA_VISIBLE_DEVICES": "2, GPU-7f"}))
    plan = BACKEND.plan(placements([ours, ours], 1))
    assert [BACKEND.wiring(plan, rank).env["CUDA_VISIBLE_DEVICES"] for rank in range(2)] == ["2", "GPU-7f"]
    with pytest.raises(BackendError, match=r"box shows 2 CUDA devices .*rank 2 would be its number 3"):
        BACKEND.plan(placements([ours] * 3, 1))
    assert visible_devices({}) == ()


def test_memory_for_connections_is_taken_while_the_world_is_formed(placements):
    plan = BACKEND.plan(placements([BOX, OTHER], 1))
    assert [BACKEND.wiring(plan, rank).defaults for rank in range(2)] == [{"NCCL_RUNTIME_CONNECT": "0"}] * 2


def test_two_ranks_on_one_device_are_refused(placements):
    first, second = placements([BOX, BOX], 1)
    with pytest.raises(BackendError, match="2 ranks would share CUDA device 0 of box"):
        BACKEND.plan([first, replace(second, local_rank=0)])


def test_ranks_share_devices_where_nccl_is_told_to(placements):
    assert shared(["0"], {SHARE: "1"}, 2) == ("0", "0")
    assert shared(["2", "3"], {SHARE: "1"}, 3) == ("2", "3", "2")
    assert shared(["2", "3"], {SHARE: "1"}, 1) == ("2", "3")
    assert shared(["0", "0"], {SHARE: "1"}, 2) == ("0", "0"), "as the user dealt them"
    assert shared([], {SHARE: "1"}, 2) == ()
    box = replace(BOX, cuda=("0", "0"))
    plan = BACKEND.plan(placements([box, box], 1))
    assert [BACKEND.wiring(plan, rank).env["CUDA_VISIBLE_DEVICES"] for rank in range(2)] == ["0", "0"]


def test_ranks_share_no_device_unless_nccl_is_told_to(placements):
    for environ in ({}, {SHARE: "0"}, {SHARE: ""}):
        assert shared(["0", "0"], environ, 2) == ("0",)
    with pytest.raises(BackendError, match="one rank per device"):
        BACKEND.plan(placements([replace(BOX, cuda=("0",))] * 2, 1))


def test_rank_0_must_be_reachable(placements):
    with pytest.raises(BackendError, match="where other cannot reach it"):
        BACKEND.plan(placements([replace(BOX, addresses=("127.0.0.1",)), OTHER], 1))
    with pytest.raises(BackendError, match="offers 0 free TCP ports"):
        BACKEND.plan(placements([BOX, OTHER]))


def test_connections_are_refused(placements):
    with pytest.raises(BackendError, match="nccl has no --connections"):
        BACKEND.plan(placements([BOX], 1), connections=2)


def test_links_join_every_pair(placements):
    links = BACKEND.links(BACKEND.plan(placements([BOX, BOX, OTHER], 1)))
    assert {(link.source, link.target) for link in links} == {(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)}
    assert {link.kind for link in links if {link.source, link.target} == {0, 1}} == {"gpu"}


@pytest.mark.parametrize(
    ("platform", "size", "here", "why"),
    [
        (CUDA, 2, None, None),
        (CUDA, 4, 2, None),
        (CUDA, 4, None, "2 devices are there for 4 ranks"),
        (replace(CUDA, cuda_devices=0), 1, None, "no CUDA device is visible"),
        (Platform("Linux", "6.1", {"nccl": False}, mlx="0.32.4"), 1, None, "installed without it"),
        (Platform("Darwin", "26.2", {"nccl": False}), 1, None, "and this is macOS"),
    ],
)
def test_where_it_can_run(platform, size, here, why):
    said = BACKEND.why_not(platform, size, here)
    assert said is None if why is None else why in str(said)
