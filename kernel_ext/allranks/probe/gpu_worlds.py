"""NVIDIA GPUs and NCCL: what this machine has, and which worlds it can form."""

from __future__ import annotations

from collections.abc import Sequence

from allranks.machine.describe_host import installed
from allranks.messages.events.probe_answers import ProbeAnswer
from allranks_backends.runtimes.nccl import SHARE

from .machine import said
from .world import ProbedWorld

QUERY = ("nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader")
SHARES_FROM = (2, 30)
"""The first version of NCCL that supports several ranks on one GPU."""


def found() -> list[str]:
    """Name, driver and memory of each GPU."""
    return [line.strip() for line in said(*QUERY).splitlines() if line.strip()]


def nccl_version() -> str:
    """The version of the NCCL that MLX for CUDA depends on; empty if it is not installed."""
    return installed("nvidia-nccl-cu13") or installed("nvidia-nccl-cu12")


def ask(gpus: Sequence[str], nccl: str) -> list[ProbeAnswer]:
    said = "; ".join(gpus)
    return [
        ProbeAnswer("gpus", "yes", said, {"gpus": len(gpus)})
        if gpus
        else ProbeAnswer("gpus", "no", "nvidia-smi lists none"),
        ProbeAnswer("nccl", "yes", nccl, {"version": nccl})
        if nccl
        else ProbeAnswer("nccl", "no", "MLX here is not for CUDA"),
    ]


def worlds(gpus: int, nccl: str) -> list[ProbedWorld]:
    """The worlds to form: a rank on each GPU, two ranks on two GPUs if there are as many, and two ranks on one GPU.

    On a machine that can form none, the list has one world that gives the reason.
    """
    if not gpus:
        return [ProbedWorld("nccl", "nccl", why_not="there is no NVIDIA GPU (nvidia-smi -L lists none)")]
    if not nccl:
        return [ProbedWorld("nccl", "nccl", why_not='MLX is installed without CUDA (pip install "allranks[cuda13]")')]
    own = [
        ProbedWorld(f"nccl, {size} GPUs" if size > 1 else "nccl, 1 GPU", "nccl", size)
        for size in sorted({min(2, gpus), gpus})
    ]
    why = "" if shares(nccl) else f"it needs NCCL 2.30 or newer, and this is {nccl}"
    return [
        *own,
        ProbedWorld("nccl, 2 ranks on 1 GPU", "nccl", 2, {SHARE: "1", "CUDA_VISIBLE_DEVICES": "0"}, why_not=why),
    ]


def shares(nccl: str) -> bool:
    numbers = [int(part) for part in nccl.split(".")[:2] if part.isdecimal()]
    return tuple(numbers) >= SHARES_FROM
