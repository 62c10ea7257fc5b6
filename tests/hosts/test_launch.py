"""What each rank gets, against ``mlx.launch`` logging in to the same hosts: equal, variable by variable.

mlx.launch really runs here, and its ranks print their environment and the files it names on the hosts. JACCL's and
NCCL's ranks do no more than that, since there is no RDMA and no GPU.
"""

from __future__ import annotations

import itertools
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from allranks import Cluster
from allranks.head.world.forming import place
from allranks.hosts_from_options import hosts_of
from allranks_backends.registry import BACKENDS
from tests.backends.conftest import FIRST_PORT, MLX_LAUNCH, NOT_THE_BACKENDS, as_seen
from tests.hosts.lab import Hosts

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(300)]
PROBE = """
import json, os, sys
def content(name, value):
    return json.load(open(value)) if name in ("MLX_HOSTFILE", "MLX_IBV_DEVICES") else value
seen = {name: content(name, value) for name, value in os.environ.items()}
json.dump(seen, open(os.path.join(sys.argv[1], os.environ.get("MLX_RANK", "login")), "w"))
"""
BY_LOGIN = {"SSH_CONNECTION", "SSH_CLIENT", "SSH_TTY"}
"""What differs from login to login."""
PREFIXES = ("MLX_", "NCCL_", "JACCL_", "CUDA_")
Entries = Sequence[Mapping[str, Any]]
Seen = list[dict[str, Any]]
Launch = Callable[..., Seen]


@pytest.fixture
def launch(hosts3: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Launch:
    """What mlx.launch adds to the environment of a login, for each rank, files as their content."""
    # mktemp of mlx.launch never removes its files: they go to the test's folder, on the hosts too.
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "ssh").write_text(
        f'#!/bin/bash\nexec {hosts3.folder / "bin" / "ssh"} "${{@:1:$#-1}}" "export TMPDIR={tmp_path}; ${{@: -1}}"\n'
    )
    (tools / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    probe = [sys.executable, "-S", "-c", PROBE, str(tmp_path)]

    def bare(name: str) -> dict[str, Any]:
        """The environment of a login without mlx.launch."""
        login = ["ssh", "-tt", "-o", "LogLevel=QUIET", name, shlex.join(probe)]
        subprocess.run(login, stdin=subprocess.DEVNULL, capture_output=True, timeout=120, check=True)
        seen: dict[str, Any] = json.loads((tmp_path / "login").read_text())
        return seen

    def run(*options: str, on: Sequence[str]) -> Seen:
        logins = {name: bare(name) for name in dict.fromkeys(on)}
        command = [sys.executable, "-c", MLX_LAUNCH, *options, "--", *probe]
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=200, check=False
        )
        ranks = [tmp_path / str(rank) for rank in range(len(on))]
        assert all(rank.exists() for rank in ranks), done.stdout + done.stderr
        return [
            {
                name: value
                for name, value in json.loads(rank.read_text()).items()
                if name not in NOT_THE_BACKENDS | BY_LOGIN and logins[host].get(name) != value
            }
            for rank, host in zip(ranks, on, strict=True)
        ]

    return run


def ours(backend: str, hostfile: Path, *, connections: int = 1) -> Seen:
    """What our ranks are given for the same hostfile, ports counted up as mlx.launch does."""
    runtime, hosts = BACKENDS[backend], hosts_of(None, None, hostfile, 1)[0]
    ports = itertools.count(FIRST_PORT)
    placements = place(hosts, runtime, connections, lambda _host, count: lambda: list(itertools.islice(ports, count)))
    plan = runtime.plan(placements, connections=connections)
    return [as_seen(runtime.wiring(plan, rank)) for rank in range(plan.size)]


@pytest.fixture
def hostfile(tmp_path: Path) -> Callable[[Entries], Path]:
    def write(entries: Entries) -> Path:
        (tmp_path / "cluster.json").write_text(json.dumps(entries))
        return tmp_path / "cluster.json"

    return write


def entries(hosts: Hosts, count: int, each: int = 1) -> list[dict[str, Any]]:
    return [{"ssh": name, "ips": [hosts.address(name)]} for name in hosts.names[:count] for _ in range(each)]


@pytest.mark.parametrize("connections", [1, 4])
def test_ring(launch: Launch, hosts3: Hosts, hostfile: Callable[[Entries], Path], connections: int) -> None:
    file = hostfile(entries(hosts3, 2))
    theirs = launch(
        "--hostfile", str(file), "--backend", "ring", f"--connections-per-ip={connections}", on=hosts3.names[:2]
    )
    assert len(theirs[0]["MLX_HOSTFILE"][1]) == connections
    assert ours("ring", file, connections=connections) == theirs
    if connections > 1:  # each costs a second when a world is formed
        return
    # And so it stands in the ranks of a living world, whose ports are drawn.
    with Cluster(hostfile=file, backend="ring") as cluster:
        code = f"import os; {{n: v for n, v in os.environ.items() if n.startswith({PREFIXES!r})}}"
        files = cluster.run("import json, os; json.load(open(os.environ['MLX_HOSTFILE']))").check()
        for rank, result in cluster.run(code).check().items():
            assert result.value.keys() == theirs[rank].keys()
            assert result.value["MLX_RANK"] == theirs[rank]["MLX_RANK"]
            assert without_ports(files[rank].value) == without_ports(theirs[rank]["MLX_HOSTFILE"])


def without_ports(nodes: Sequence[Sequence[str]]) -> list[list[str]]:
    return [[address.rpartition(":")[0] for address in node] for node in nodes]


@pytest.mark.parametrize("backend", ["jaccl", "jaccl-ring"])
def test_jaccl(launch: Launch, hosts3: Hosts, hostfile: Callable[[Entries], Path], backend: str) -> None:
    cables = [[None, "rdma_en2", "rdma_en3"], ["rdma_en2", None, "rdma_en4"], ["rdma_en3", "rdma_en4", None]]
    file = hostfile([entry | {"rdma": row} for entry, row in zip(entries(hosts3, 3), cables, strict=True)])
    theirs = launch("--hostfile", str(file), "--backend", backend, on=hosts3.names)
    assert theirs[2]["MLX_JACCL_COORDINATOR"] == f"{hosts3.address('host1')}:{FIRST_PORT}"
    assert ours(backend, file) == theirs


@pytest.mark.parametrize("devices", [1, 2, 8])
def test_nccl(launch: Launch, hosts3: Hosts, hostfile: Callable[[Entries], Path], devices: int) -> None:
    """``--hosts`` wants addresses here: mlx.launch looks up none for a name."""
    addresses = ",".join(hosts3.address(name) for name in hosts3.names[:2])
    options = ("--backend", "nccl", "--hosts", addresses, "-n", str(devices), "--nccl-port", str(FIRST_PORT))
    theirs = launch(*options, on=[name for name in hosts3.names[:2] for _ in range(devices)])
    assert [env["CUDA_VISIBLE_DEVICES"] for env in theirs] == [str(device) for device in range(devices)] * 2
    assert ours("nccl", hostfile(entries(hosts3, 2, devices))) == theirs


def test_nccl_with_a_hostfile_gives_each_rank_a_device_where_mlx_launch_gives_all_the_first(
    launch: Launch, hosts3: Hosts, hostfile: Callable[[Entries], Path]
) -> None:
    """Where mlx.launch is wrong (0.32.4): it counts devices by ``-n``, which a hostfile leaves at 1.

    When this fails, mlx.launch has been mended and the comparison above can be made with hostfiles too.
    """
    file = hostfile(entries(hosts3, 2, 2))
    on = [entry["ssh"] for entry in entries(hosts3, 2, 2)]
    theirs = launch("--hostfile", str(file), "--backend", "nccl", "--nccl-port", str(FIRST_PORT), on=on)
    assert [env.pop("CUDA_VISIBLE_DEVICES") for env in theirs] == ["0", "0", "0", "0"]
    mine = ours("nccl", file)
    assert [env.pop("CUDA_VISIBLE_DEVICES") for env in mine] == ["0", "1", "0", "1"]
    assert mine == theirs
