"""What the figures were taken on."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version

import psutil

QUIET = 0.1
"""Share of the machine that may be busy before the figures are called noisy."""


def describe_machine() -> dict[str, str]:
    """Processor, cores, system, and the versions that matter."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    packages = {name: _version(name) for name in ("allranks", "mlx", "ipyparallel", "ipykernel")}
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    return {"cores": str(cores), "system": system, "Python": platform.python_version(), **packages}


def other_work(seconds: float = 1.0) -> str | None:
    """A sentence when other programs keep the machine busy; looks for ``seconds``."""
    busy = psutil.cpu_percent(seconds) / 100
    if busy <= QUIET:
        return None
    return f"{busy:.0%} of this machine is busy with other things: these figures are noisy."


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "(not installed)" if package != "allranks" else "(from source)"
