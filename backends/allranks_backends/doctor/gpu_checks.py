"""Checks for problems that keep MLX from using NVIDIA GPUs."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from .finding import Finding, Severity
from .host_facts import Asked, HostFacts


def gpus(hosts: Sequence[HostFacts], asked: Asked) -> Iterator[Finding]:
    severity: Severity = "error" if asked.needs("cuda") else "warning"
    for host in hosts:
        if asked.needs("cuda") and not host.gpus:
            what = "There are no NVIDIA GPUs, which nccl needs."
            yield Finding("error", host.name, what, "nvidia-smi -L lists none", "--backend ring, or mpi")
        if not host.gpus or host.python is None:
            continue
        visible = host.environment.get("CUDA_VISIBLE_DEVICES")
        chosen = len(host.gpus) if visible is None else _seen(visible, len(host.gpus))
        if chosen < len(host.gpus):
            yield Finding(
                "error" if asked.needs("cuda") and chosen < asked.ranks_per_host else "note",
                host.name,
                f"CUDA_VISIBLE_DEVICES shows {chosen} of its {len(host.gpus)} GPUs.",
                f"CUDA_VISIBLE_DEVICES={visible}",
                "%distributed up --env CUDA_VISIBLE_DEVICES=" + ",".join(map(str, range(len(host.gpus)))),
            )
        elif asked.needs("cuda") and asked.ranks_per_host > chosen:
            there = "1 GPU" if chosen == 1 else f"{chosen} GPUs"
            what = f"nccl takes one rank per GPU: {there} for {asked.ranks_per_host} ranks."
            yield Finding("error", host.name, what, host.gpus[0], f"--ranks-per-host {chosen}")
        if "error" in host.python["mlx"]:
            continue  # MLX cannot be imported, so its build is unknown: `mlx_imports` reports this
        if not host.python["mlx"].get("cuda"):
            install = f'{shlex.quote(host.python["executable"])} -m pip install "mlx[cuda12]"'
            what = "It has GPUs, but its MLX is built without CUDA."
            yield Finding(severity, host.name, what, host.gpus[0], install, host.name)
        elif not host.python["nccl"]:
            install = f"{shlex.quote(host.python['executable'])} -m pip install nvidia-nccl-cu12"
            what = "The NCCL library was not found."
            yield Finding(severity, host.name, what, "dlopen(libnccl.so.2) fails", install, host.name)


def _seen(visible: str, there: int) -> int:
    """Return how many of the host's `there` GPUs are listed in `visible`, its CUDA_VISIBLE_DEVICES. CUDA ignores the
    entries from the first unknown entry on."""
    known = [
        (each.isdecimal() and int(each) < there) or each.startswith(("GPU-", "MIG-"))
        for each in map(str.strip, visible.split(","))
    ]
    return known.index(False) if False in known else len(known)


def mixed(hosts: Sequence[HostFacts], _: Asked) -> Iterator[Finding]:
    """Report Macs and CUDA hosts in one world: a ring over Metal and CUDA hangs."""
    macs = [host.name for host in hosts if host.is_mac]
    cuda = [host.name for host in hosts if host.gpus]
    if macs and cuda:
        yield Finding(
            "error",
            cuda[0],
            f"Macs ({', '.join(macs)}) and hosts with CUDA ({', '.join(cuda)}) in one world: MLX hangs.",
            "",
            f"a world of {', '.join(macs)}, and another one of {', '.join(cuda)}",
            source="#3876, exo #2219",
        )
