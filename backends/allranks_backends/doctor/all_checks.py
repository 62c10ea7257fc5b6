"""All checks, in the order of what a start depends on: ssh, software, network, backend, devices, then resources."""

from __future__ import annotations

from collections.abc import Sequence

from . import abort_checks, gpu_checks, macs, mpi_checks, network, resource_checks, software, ssh, wires
from .finding import Check, Finding
from .host_facts import Asked, HostFacts


def _several(hosts: Sequence[HostFacts], _: Asked) -> bool:
    return len(hosts) > 1


def _elsewhere(hosts: Sequence[HostFacts], _: Asked) -> bool:
    return any(not host.local for host in hosts)


def _macs_among(hosts: Sequence[HostFacts], _: Asked) -> bool:
    return any(host.is_mac for host in hosts)


def _tried(hosts: Sequence[HostFacts], _: Asked) -> bool:
    """Whether hosts have tried to reach each other: the doctor's trial start does this once ranks have started."""
    return any(host.reaches for host in hosts)


CHECKS = (
    Check("ssh logs in (host name, key, host key, time, port forwarding)", ssh.logs_in, _elsewhere),
    Check("Python and the packages that must be equal", software.same_versions),
    Check("whether MLX can be imported", software.mlx_imports),
    Check("settings known to cause trouble", software.harmful_settings),
    Check("clocks", software.clocks, _elsewhere),
    Check("what the hosts' names resolve to", network.names, _several),
    Check("TCP ports between hosts (firewalls, routes)", network.ports, _tried),
    Check("MTU and duplicate networks", network.interfaces),
    Check(
        "Open MPI: mpirun, its library, its daemon, one process started",
        mpi_checks.open_mpi,
        lambda _, asked: asked.by_mpirun,
    ),
    Check("whether collectives can be aborted in place", abort_checks.in_place, abort_checks.applies),
    Check(
        "GPUs, CUDA and NCCL",
        gpu_checks.gpus,
        lambda hosts, asked: asked.needs("cuda") or any(host.gpus for host in hosts),
    ),
    Check("Metal and CUDA mixed", gpu_checks.mixed, _several),
    Check("macOS versions, sleep", macs.systems, _macs_among),
    Check("RDMA and Thunderbolt", macs.thunderbolt, _macs_among),
    Check("the plan over RDMA devices", wires.planned, lambda _, asked: asked.needs("rdma")),
    Check(
        "the hostfile's RDMA devices against the cables",
        wires.wires,
        lambda hosts, asked: (
            _macs_among(hosts, asked)
            and any(host.rdma for host in asked.ranks)
            and (asked.backend == "auto" or asked.needs("rdma"))
        ),
    ),
    Check("memory for what the ranks load", resource_checks.memory, lambda _, asked: asked.memory is not None),
    Check("space for temporary files", resource_checks.disk),
    Check(
        "the working folder",
        resource_checks.folders,
        lambda hosts, asked: any(asked.folder_of(host.name) for host in hosts),
    ),
    Check("space for environments", resource_checks.home, _elsewhere),
)
_ORDER = {"error": 0, "warning": 1, "note": 2}


def examine(hosts: Sequence[HostFacts], asked: Asked) -> tuple[list[Finding], list[str]]:
    """Return the findings, errors first, and the descriptions of the checks that were run.

    A host with `HostFacts.trouble` was not reached: only the ssh check applies to it.
    """
    findings = list(ssh.logs_in(hosts, asked))
    reached = [host for host in hosts if not host.trouble]
    looked_at = [CHECKS[0].looks_at] if CHECKS[0].applies(hosts, asked) else []
    for check in CHECKS[1:]:
        if check.applies(reached, asked):
            findings += check.rule(reached, asked)
            looked_at.append(check.looks_at)
    return sorted(findings, key=lambda finding: _ORDER[finding.severity]), looked_at
