"""Backends over several hosts: which network they use, how hosts are named, and what the hosts themselves can run."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from allranks import Cluster
from allranks.errors import CannotStart
from tests.hosts.lab import SSHD, Hosts

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(300)]
SUM = "mx.distributed.all_sum(mx.ones(10))[0].item()"
MANY = "for _ in range(4): mx.eval(mx.distributed.all_sum(mx.ones(1_000_000), stream=mx.cpu))"
"""16 MB, of which each of two ranks sends at least half."""
FAR_LESS = 2_000_000


@contextmanager
def cable(hosts: Hosts, one: str, other: str) -> Iterator[dict[str, str]]:
    """A second network between two hosts, ``cable0`` at both ends; their addresses on it."""
    addresses = {one: "10.99.77.1", other: "10.99.77.2"}
    first, second = map(hosts.space, (one, other))
    make = ["ip", "link", "add", "cable0", "netns", first, "type", "veth", "peer", "name", "cable0", "netns", second]
    subprocess.run(make, check=True)
    try:
        for name, address in addresses.items():
            for command in (
                ("ip", "addr", "add", f"{address}/30", "dev", "cable0"),
                ("ip", "link", "set", "cable0", "up"),
            ):
                assert hosts.inside(name, *command).returncode == 0, command
        yield addresses
    finally:
        hosts.inside(one, "ip", "link", "del", "cable0")


def sent(hosts: Hosts, name: str, interface: str) -> int:
    """Bytes that a host has sent over an interface."""
    return int(hosts.inside(name, "cat", f"/sys/class/net/{interface}/statistics/tx_bytes").stdout)


@pytest.mark.mpi
@pytest.mark.parametrize("wanted", ["eth0", "cable0"])
def test_mpi_uses_the_network_that_the_hostfile_names(
    hosts3: Hosts, need_mpi: None, tmp_path: Path, wanted: str
) -> None:
    """Left alone, Open MPI sends half over each network that both hosts have."""
    names = hosts3.names[:2]
    with cable(hosts3, *names) as cabled:
        addresses = cabled if wanted == "cable0" else {name: hosts3.address(name) for name in names}
        (tmp_path / "hosts.json").write_text(
            json.dumps([{"ssh": name, "ips": [address]} for name, address in addresses.items()])
        )
        with Cluster(hostfile=tmp_path / "hosts.json", backend="mpi") as cluster:
            before = {interface: sent(hosts3, names[0], interface) for interface in ("eth0", "cable0")}
            cluster.run(MANY, timeout=60).check()
            grown = {interface: sent(hosts3, names[0], interface) - was for interface, was in before.items()}
    other = "eth0" if wanted == "cable0" else "cable0"
    assert grown[wanted] > 8_000_000 and grown[other] < FAR_LESS, grown


@pytest.mark.mpi
def test_mpi_takes_a_user_and_a_port(hosts3: Hosts, need_mpi: None, tmp_path: Path) -> None:
    named = ["host1", "root@host2:2222"]
    with another_sshd(hosts3, "host2", 2222, tmp_path), Cluster(hosts=named, backend="mpi") as cluster:
        ports = cluster.run("import os; os.environ['SSH_CONNECTION'].split()[3]").check()
        assert [rank.value for rank in ports.values()] == ["22", "2222"]
        assert [rank.value for rank in cluster.run(SUM).check().values()] == [2.0, 2.0]


@contextmanager
def another_sshd(hosts: Hosts, name: str, port: int, folder: Path) -> Iterator[None]:
    home, known = hosts.folder / name, hosts.folder / "known"
    at = hosts.address(name)
    settings = (home / "sshd_config").read_text().replace(f"{at}:22\n", f"{at}:{port}\n")
    (folder / "sshd_config").write_text(settings.replace(str(home / "pid"), str(folder / "pid")))
    before = known.read_text()
    known.write_text(f"{before}[{hosts.address(name)}]:{port} {(home / 'hostkey.pub').read_text()}")
    named = f"hostname {name} && exec {SSHD} -D -e -f {folder / 'sshd_config'}"
    line = ["ip", "netns", "exec", hosts.space(name), "unshare", "--uts", "sh", "-c", named]
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True) as sshd:
        assert sshd.stderr is not None
        try:
            assert any("listening on" in heard for heard in sshd.stderr)
            yield
        finally:
            sshd.terminate()
            known.write_text(before)


@pytest.mark.mpi
def test_mpi_ranks_are_numbered_as_the_hosts_are_listed(hosts3: Hosts, need_mpi: None) -> None:
    with Cluster(hosts="host2, localhost,host1", backend="mpi") as cluster:
        assert [rank.host for rank in cluster.snapshot.ranks] == ["host2", "localhost", "host1"]
        where = "import os; os.environ.get('SSH_CONNECTION', '- - -').split()[2]"
        expected = [hosts3.address("host2"), "-", hosts3.address("host1")]
        assert [rank.value for rank in cluster.run(where).check().values()] == expected


# What the hosts can run.


def python_of_a_gpu_host(folder: Path, devices: int) -> str:
    """A Python that finds, on hosts reached by ssh, so many GPUs listed and mlx's CUDA half installed."""
    tools = folder / "gpu"
    (tools / "mlx_cuda_13-0.32.4.dist-info").mkdir(parents=True)
    (tools / "mlx_cuda_13-0.32.4.dist-info" / "METADATA").write_text("Name: mlx-cuda-13\nVersion: 0.32.4\n")
    lines = "\n".join(f"GPU {i}: NVIDIA H100 80GB HBM3 (UUID: GPU-0c2f6c2a-{i})" for i in range(devices))
    (tools / "nvidia-smi").write_text(f"#!/bin/sh\ncat <<'END'\n{lines}\nEND\n")
    (tools / "nvidia-smi").chmod(0o755)
    python = folder / "python-gpu"
    python.write_text(
        textwrap.dedent(f"""\
            #!/bin/sh
            if [ -n "$SSH_CONNECTION" ]; then export PATH={tools}:$PATH PYTHONPATH={tools}:$PYTHONPATH; fi
            exec {shlex.quote(sys.executable)} "$@"
        """)
    )
    python.chmod(0o755)
    return str(python)


def test_nccl_is_refused_for_the_host_that_cannot(hosts3: Hosts) -> None:
    with pytest.raises(CannotStart, match=r"Backend nccl cannot run on host1: .*: --backend ring"):
        Cluster(hosts=hosts3.names[:2], backend="nccl").up()


def test_auto_asks_the_hosts_and_not_the_notebook(hosts3: Hosts, tmp_path: Path) -> None:
    """No GPU is here: the ranks are started for NCCL, each with its device, and MLX itself then says it has none."""
    python = python_of_a_gpu_host(tmp_path, 2)
    cluster = Cluster(hosts=hosts3.names[:2], ranks_per_host=2, python=python)
    with pytest.raises(CannotStart, match=r"could not form the nccl world of 4. ranks 0-3 on host1, host2: "):
        cluster.up()
    assert cluster.chosen_because == "nccl, since every rank has a CUDA device."
    assert cluster.backend == "nccl"


def test_more_ranks_than_devices_are_a_reason_for_the_ring(hosts3: Hosts, tmp_path: Path) -> None:
    python = python_of_a_gpu_host(tmp_path, 2)
    with Cluster(hosts="host1", ranks_per_host=3, python=python) as cluster:
        expected = "ring, since nccl takes one rank per CUDA device, and 2 devices are there for 3 ranks (host1)."
        assert cluster.chosen_because == expected
    only = {"CUDA_VISIBLE_DEVICES": "1"}
    with Cluster(hosts="host1,host2", ranks_per_host=2, python=python, env=only) as cluster:
        assert "1 device is there for 2 ranks (host1)" in cluster.chosen_because
