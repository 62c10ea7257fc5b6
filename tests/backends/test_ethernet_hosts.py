"""Linux hosts: addresses, speeds, GPUs and NVLink as their commands tell them, and the world they can form."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Interface

import pytest

from allranks_backends.machines import ethernet_hosts as servers
from allranks_backends.machines.ethernet_hosts import common_network, over_network, server_from

pytestmark = pytest.mark.usefixtures("mlx")

FOUR_GPUS = "".join(
    f"GPU {at}: NVIDIA H100 80GB HBM3 (UUID: GPU-8f6e1a5{at}-aaaa-bbbb-cccc-000000000000)\n" for at in range(4)
)
TOPO = """\
\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV18\tNV18\tSYS\tPIX\t0-47\t0\t\tN/A
GPU1\tNV18\t X \tNV18\tSYS\tNODE\t0-47\t0\t\tN/A
GPU2\tNV18\tNV18\t X \tSYS\tNODE\t0-47\t0\t\tN/A
GPU3\tSYS\tSYS\tSYS\t X \tSYS\t48-95\t1\t\tN/A
NIC0\tPIX\tNODE\tNODE\tSYS\t X \t\t\t\t

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes
  NV#  = Connection traversing a bonded set of # NVLinks

NIC Legend:

  NIC0: mlx5_0
"""


def host(name: str, last: int, *, fast: int = 100_000, gpus: str = "", topo: str = "") -> servers.Server:
    addresses = (
        "1: lo    inet 127.0.0.1/8 scope host lo\\       valid_lft forever preferred_lft forever\n"
        f"2: eno1    inet 10.0.0.{last}/24 brd 10.0.0.255 scope global eno1\\       valid_lft forever\n"
        f"3: ens5f0    inet 10.1.0.{last}/24 brd 10.1.0.255 scope global ens5f0\\       valid_lft forever\n"
        "4: docker0    inet 172.17.0.1/16 brd 172.17.255.255 scope global docker0\\       valid_lft forever\n"
    )
    answers = {
        "addresses": addresses,
        "speeds": f"eno1 1000\nens5f0 {fast}\nlo \nwlan0 -1\n",
        "gpus": gpus,
        "gpu links": topo,
        "mpirun": "/usr/bin/mpirun\n",
        "reached": f"10.0.0.99 50000 10.0.0.{last} 22\n",
        "meminfo": "263856096 kB\n",
        "cpu": "AMD EPYC 9354 32-Core Processor\n",
    }
    return server_from(name, answers)


def test_a_server_is_what_it_says() -> None:
    found = host("gpu1", 1, gpus=FOUR_GPUS, topo=TOPO)
    assert found.gpus == ("NVIDIA H100 80GB HBM3",) * 4
    assert found.gpu_links[0, 2] == "NV18" and found.gpu_links[3, 1] == "SYS" and len(found.gpu_links) == 12
    assert [(each.name, each.speed) for each in found.interfaces] == [("eno1", 1e9), ("ens5f0", 1e11)]
    assert (found.memory, found.reached, found.chip) == (
        263856096 * 1024,
        "10.0.0.1",
        "AMD EPYC 9354 32-Core Processor",
    )
    assert server_from("bare", {}).gpus == ()


def test_the_fastest_network_that_all_share_is_taken() -> None:
    both = [host("a", 1), host("b", 2)]
    assert str(common_network(both)) == "10.1.0.0/24"
    slow = [host("a", 1), host("b", 2, fast=100)]
    assert str(common_network(slow)) == "10.0.0.0/24", "the slowest interface of a network counts"


def test_a_bridge_of_containers_joins_nobody() -> None:
    bridge = servers.InterfaceAddress("podman0", IPv4Interface("10.88.0.1/16"), 4e11)
    both = [replace(each, interfaces=(bridge, *each.interfaces)) for each in (host("a", 1), host("b", 2))]
    assert str(common_network(both)) == "10.1.0.0/24"


def test_gpus_everywhere_make_an_nccl_world_with_a_rank_for_each() -> None:
    made = over_network([host("gpu1", 1, gpus=FOUR_GPUS), host("gpu2", 2, gpus=FOUR_GPUS)])
    assert made.backend == made.hostfile["backend"] == "nccl" and made.order == (0,) * 4 + (1,) * 4
    assert [each["ssh"] for each in made.hostfile["hosts"]] == ["gpu1"] * 4 + ["gpu2"] * 4
    assert made.hostfile["hosts"][4]["ips"] == ["10.1.0.2"]


def test_without_gpus_it_is_a_ring_and_mpi_is_told_of() -> None:
    made = over_network([host("a", 1), host("b", 2, gpus=FOUR_GPUS)])
    assert made.backend == "ring" and made.order == (0, 1)
    assert [each["ips"] for each in made.hostfile["hosts"]] == [["10.1.0.1"], ["10.1.0.2"]]
    assert "--backend mpi" in made.why


def test_what_is_odd_is_said() -> None:
    told = servers.notes([host("gpu1", 1, gpus=FOUR_GPUS, topo=TOPO), host("cpu1", 2, fast=2500)])
    assert any("gpu1: some GPUs are joined by NVLink only" in note and "PCIe (SYS)" in note for note in told)
    assert any("no GPU on cpu1" in note for note in told)
    assert any("cpu1's ens5f0 runs at 2.5 Gbit/s where others have 100" in note for note in told)
    apart = server_from("far", {"addresses": "2: eth0    inet 172.16.0.5/24 scope global eth0\\\n"})
    assert any("share no network" in note for note in servers.notes([host("a", 1), apart]))
    assert over_network([host("a", 1), apart]).hostfile["hosts"][0]["ips"] == ["10.0.0.1"]
