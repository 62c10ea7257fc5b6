"""A host tells what it can run without touching CUDA, since ranks are forked from the process that tells it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from allranks.machine import describe_host
from allranks_backends.machines.platform import this_platform
from allranks_backends.plan import Platform

# As `nvidia-smi -L` prints it; the second card is cut into slices (MIG).
LISTED = """\
GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-5a1cf3d2-8d1f-6d3f-0c3c-2f7fd2f5d3a1)
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-9b6f1f7e-2c55-4f0e-9a3e-6f1f0f3f8b52)
  MIG 3g.40gb     Device  0: (UUID: MIG-b2a1b9c8-7d6e-5f4a-9b8c-1d2e3f4a5b6c)
"""


@pytest.fixture
def two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\ncat <<'END'\n{LISTED}END\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.parametrize(
    ("visible", "count"),
    [(None, 2), ("", 0), ("-1", 0), ("1", 1), ("1,0", 2), ("0,-1,1", 1), ("GPU-9b6f1f7e", 1), ("0,1,2,3", 2)],
)
def test_devices_are_counted_as_cuda_would_show_them(
    two_gpus: None, monkeypatch: pytest.MonkeyPatch, visible: str | None, count: int
) -> None:
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert describe_host.cuda_devices() == count


def test_a_driver_that_fails_is_no_device(two_gpus: None, tmp_path: Path) -> None:
    (tmp_path / "nvidia-smi").write_text('#!/bin/sh\necho "couldn\'t communicate with the NVIDIA driver"\nexit 9\n')
    assert describe_host.cuda_devices() == 0


def test_it_agrees_with_what_mlx_says_of_the_same_machine() -> None:
    """Asked in a process of its own, which must not import mlx."""
    code = "from allranks.machine.describe_host import machine; print(machine()); "
    code += "import sys; assert 'mlx' not in sys.modules"
    env = dict(os.environ) | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=True)
    told, mlx = Platform(**eval(done.stdout)), this_platform()
    assert (told.system, told.release, told.mlx, told.mpirun) == (mlx.system, mlx.release, mlx.mlx, mlx.mpirun)
    assert told.cuda_devices == mlx.cuda_devices
    assert told.available.get("nccl", mlx.available["nccl"]) == mlx.available["nccl"]
