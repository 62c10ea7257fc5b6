"""NCCL worlds on the GPUs of this machine, two ranks to a GPU where there are fewer GPUs than ranks."""

from __future__ import annotations

import subprocess

from allranks import Cluster
from allranks.machine.describe_host import cuda_devices, installed
from allranks.probe.gpu_worlds import nccl_version, shares
from allranks_backends.runtimes.nccl import SHARE
from tests.needs import need_gpu

BACKEND = "nccl"
WITHIN = 120.0
"""Seconds for a world of GPUs to start, or a cell that compiles kernels first."""


def need_ranks(size: int) -> None:
    """Skip where this machine cannot have an NCCL world of so many ranks."""
    devices = cuda_devices()
    need_gpu(installed("mlx-cuda-13") or installed("mlx-cuda-12"), "MLX is built without CUDA (make gpu MLX=cuda13)")
    need_gpu(devices, "there is no NVIDIA GPU (nvidia-smi -L)")
    if size > devices:
        need_gpu(shares(nccl_version()), f"{size} ranks on {devices} GPUs need NCCL 2.30, and {nccl_version()} is here")


def world(size: int, **env: str) -> Cluster:
    """Ranks on GPUs of their own where there are enough; to be used with ``with``."""
    need_ranks(size)
    share = {SHARE: "1"} if size > cuda_devices() else {}
    return Cluster(size, backend=BACKEND, env={**share, **env})


def machine() -> list[str]:
    """What a report of a run must name: versions, driver and GPUs."""
    asked = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        gpus = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.splitlines()
    except OSError:
        gpus = []
    packages = ("mlx", "mlx-cuda-13", "mlx-cuda-12", "nvidia-nccl-cu13", "nvidia-nccl-cu12", "ipyparallel", "ipykernel")
    found = ", ".join(f"{name} {installed(name)}" for name in packages if installed(name))
    return [f"packages: {found}", *(f"gpu: {line}" for line in gpus or ["none"])]
