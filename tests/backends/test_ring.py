"""The ring is wired as mlx.launch wires it, and refuses what would leave ranks waiting."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from allranks_backends.plan import Host, Link, Platform
from allranks_backends.protocol import BackendError
from allranks_backends.runtimes.ring import Ring, neighbours
from tests.waiting import WITHIN

RING = Ring()
MAC1 = Host("mac1", False, ("10.0.0.1",))
MAC2 = Host("mac2", False, ("10.0.0.2",))
LOCAL = [Host("localhost")]

JOIN = "import mlx.core as mx; world = mx.distributed.init(strict=True, backend='ring')"
SUM = """
total = mx.distributed.all_sum(mx.array([world.rank() + 1.0, 10.0]))
print(world.rank(), world.size(), total.tolist())
"""
UNSUPPORTED = """
for call in (lambda: world.split(0), lambda: mx.eval(mx.distributed.sum_scatter(mx.ones(2)))):
    try:
        call()
    except RuntimeError as error:
        print(error)
"""


@pytest.fixture
def run_ranks(mlx, tmp_path, free_ports, placements, in_folder):
    """Run code on two ranks started as plain processes, wired as one world; what each said."""

    def run(code, connections=1):
        ports = free_ports(2 * connections)
        ranks = [
            replace(placement, ports=ports[placement.rank * connections :][:connections])
            for placement in placements(LOCAL * 2)
        ]
        plan = RING.plan(ranks, connections=connections)
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", JOIN + code],
                env=dict(os.environ) | in_folder(RING.wiring(plan, rank), tmp_path / str(rank)),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(2)
        ]
        try:
            return [process.communicate(timeout=240)[0].strip() for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()

    return run


@pytest.mark.parametrize("connections", [1, 4])
def test_a_local_ring_is_wired_as_mlx_launch_does(launch_env, placements, seen, connections):
    hosts = [{"ssh": "127.0.0.1", "ips": ["127.0.0.1"]}] * 3
    theirs = launch_env("--backend", "ring", "--connections-per-ip", str(connections), hosts=hosts)
    plan = RING.plan(placements(LOCAL * 3, RING.ports(connections, 1)), connections=connections)
    assert [seen(RING.wiring(plan, rank)) for rank in range(3)] == theirs


def test_several_addresses_are_listed_as_mlx_launch_does(launch_env, placements, seen):
    # Two hosts by name, so that the plan is one for several hosts; mlx.launch only takes 127.0.0.1 for local.
    ips = [["127.0.1.1", "127.0.1.2"], ["127.0.2.1", "127.0.2.2"]]
    hosts = [{"ssh": "127.0.0.1", "ips": row} for row in ips]
    theirs = launch_env("--backend", "ring", "--connections-per-ip", "2", hosts=hosts)
    real = [["10.0.1.1", "10.0.1.2"], ["10.0.2.1", "10.0.2.2"]]
    macs = [Host(f"mac{i}", False, tuple(row)) for i, row in enumerate(real)]
    plan = RING.plan(placements(macs, RING.ports(2, 2)), connections=2)
    renamed = [[entry.replace("127.0", "10.0") for entry in row] for row in theirs[0]["MLX_HOSTFILE"]]
    assert seen(RING.wiring(plan, 0))["MLX_HOSTFILE"] == renamed


@pytest.mark.parametrize("connections", [1, 4])
def test_a_wired_world_computes(run_ranks, connections):
    assert run_ranks(SUM, connections) == ["0 2 [3.0, 20.0]", "1 2 [3.0, 20.0]"]


def test_it_really_lacks_what_its_operations_leave_out(run_ranks):
    lacks = "[ring] Group split not supported.\n[ring] sum_scatter not supported."
    assert run_ranks(UNSUPPORTED) == [lacks, lacks]


def test_one_rank_is_a_world_at_once(mlx, tmp_path, placements, in_folder):
    plan = RING.plan(placements(LOCAL))
    env = {key: value for key, value in os.environ.items() if key not in ("MLX_HOSTFILE", "MLX_RANK")}
    code = "import mlx.core as mx; print(mx.distributed.init(backend='ring').size())"
    env |= in_folder(RING.wiring(plan, 0), tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=WITHIN, check=True
    )
    assert done.stdout.strip() == "1"


def test_each_generation_has_a_file_of_its_own(placements):
    first, second = (RING.plan(placements(LOCAL * 2, 1), generation=generation) for generation in (1, 2))
    assert RING.wiring(first, 0).files.keys().isdisjoint(RING.wiring(second, 0).files)


def test_every_rank_on_one_host_uses_loopback_whatever_its_addresses(placements, seen):
    plan = RING.plan(placements([MAC1, MAC1], 1))
    assert seen(RING.wiring(plan, 1)) == {"MLX_RANK": "1", "MLX_HOSTFILE": [["127.0.0.1:32323"], ["127.0.0.1:32324"]]}


def test_links_join_neighbours_both_ways(placements):
    assert neighbours(4) == ((0, 1), (1, 2), (2, 3), (3, 0), (0, 3), (1, 0), (2, 1), (3, 2))
    plan = RING.plan(placements([MAC1, MAC1, MAC2], 1))
    assert {(link.source, link.target): link.kind for link in RING.links(plan)} == {
        (0, 1): "loopback",
        (1, 0): "loopback",
        (1, 2): "ethernet",
        (2, 1): "ethernet",
        (2, 0): "ethernet",
        (0, 2): "ethernet",
    }
    assert RING.links(RING.plan(placements([MAC1, MAC2], 1))) == (Link(0, 1, "ethernet"), Link(1, 0, "ethernet"))
    assert RING.links(RING.plan(placements(LOCAL))) == ()


@pytest.mark.parametrize(
    ("hosts", "ports", "message"),
    [
        ([], 1, "at least one rank"),
        (LOCAL * 2, 0, r"rank 0 \(localhost\) offers 0 free TCP ports and needs 1"),
        ([*LOCAL, MAC1], 1, r"rank 0 \(localhost\) is at 127\.0\.0\.1, where mac1 cannot reach it"),
        ([MAC1, replace(MAC2, addresses=())], 1, r'No address is known for rank 1 \(mac2\).*"ips"'),
        ([MAC1, replace(MAC2, addresses=("fe80::1",))], 1, "IPv6 address fe80::1"),
        ([MAC1, replace(MAC2, addresses=("10.0.0.2", "10.0.1.2"))], 2, "has 1 addresses and rank 1 .* has 2"),
    ],
)
def test_it_refuses_what_would_only_hang(placements, hosts, ports, message):
    with pytest.raises(BackendError, match=message):
        RING.plan(placements(hosts, ports))


def test_it_refuses_a_port_planned_twice(placements):
    ranks = [replace(placement, ports=(4000,)) for placement in placements(LOCAL * 2)]
    with pytest.raises(BackendError, match="Port 4000 of localhost is planned 2 times"):
        RING.plan(ranks)


def test_it_refuses_ranks_out_of_order(placements):
    with pytest.raises(BackendError, match=r"0 to 1 in order, and the placements are for \[1, 0\]"):
        RING.plan(placements(LOCAL * 2, 1)[::-1])


def test_it_refuses_no_connections(placements):
    with pytest.raises(BackendError, match="--connections is 0"):
        RING.plan(placements(LOCAL * 2, 1), connections=0)


def test_it_runs_everywhere_unless_mlx_lacks_it():
    assert RING.why_not(Platform("Linux"), 100) is None
    assert "built without the ring" in str(RING.why_not(Platform("Windows", available={"ring": False}), 2))
