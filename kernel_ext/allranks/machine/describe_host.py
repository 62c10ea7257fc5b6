"""Facts about this host and what it can run, found without importing MLX.

Ranks are forked from the process that collects these facts, and CUDA fails in a child if it was used before the fork.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

COMPARED = ("allranks", "ipyparallel", "ipykernel", "mlx")
"""Packages whose versions must match the notebook's."""
COUNT_WITHIN = 5.0
"""Timeout, in seconds, for nvidia-smi, which takes one or two seconds if the driver has to wake up."""


def description() -> dict[str, Any]:
    """The fields of `messages.host_messages.Prepared` other than `directory`, for a head on another host."""
    from .addresses import own_addresses
    from .hosted_clusters import listed

    return {
        "versions": versions(),
        "ssh": os.environ.get("SSH_CONNECTION", ""),
        "cores": os.cpu_count() or 1,
        "addresses": own_addresses(),
        "platform": machine(),
        "cuda": os.environ.get("CUDA_VISIBLE_DEVICES", ""),
        "python": sys.executable,
        "left_behind": [each for each in listed() if each["running"] and each["cluster"].get("away_since") is not None],
    }


def versions() -> dict[str, str]:
    """Versions of Python and of the packages in `COMPARED`; empty for a package that is not installed."""
    return {"python": ".".join(map(str, sys.version_info[:3]))} | {package: installed(package) for package in COMPARED}


def machine() -> dict[str, object]:
    """The fields of ``allranks_backends.plan.Platform``; a backend missing from ``available`` is not ruled out."""
    mac = sys.platform == "darwin"
    return {
        "system": platform.system(),
        "release": platform.mac_ver()[0] if mac else platform.release(),
        "available": _available(),
        "cuda_devices": cuda_devices(),
        "mlx": installed("mlx"),
        # Look beside the interpreter first, at the path with which it was started, as the notebook does.
        "mpirun": shutil.which("mpirun", path=str(Path(sys.executable).parent)) or shutil.which("mpirun"),
    }


def cuda_devices() -> int:
    """The number of CUDA devices that a process here may use, from nvidia-smi and CUDA_VISIBLE_DEVICES."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return 0
    try:
        told = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=COUNT_WITHIN, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return 0
    # Slices of a card (MIG) are indented below it.
    listed = sum(line.startswith("GPU ") for line in told.splitlines())
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    return listed if chosen is None else min(listed, _named(chosen))


def _named(chosen: str) -> int:
    """The number of devices in a value of CUDA_VISIBLE_DEVICES: CUDA stops at the first invalid entry, such as -1."""
    names = [name.strip() for name in chosen.split(",")]
    return next((number for number, name in enumerate(names) if not name or name.startswith("-")), len(names))


def _available() -> dict[str, bool]:
    """Whether NCCL is available: only ``mlx-cuda-12`` and ``-13`` have it. Empty if no build of MLX is recognised."""
    if installed("mlx-cuda-12") or installed("mlx-cuda-13"):
        return {"nccl": True}
    return {"nccl": False} if installed("mlx-cpu") or installed("mlx-metal") else {}


def installed(package: str) -> str:
    """The version of a package; empty if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
