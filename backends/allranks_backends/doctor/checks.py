"""All checks, in the order in which starting a world depends on what they check."""

from __future__ import annotations

from collections.abc import Sequence

from . import gpus, in_place, macs, mpi, network, resources, software, ssh, wires
from .facts import Asked, HostFacts
from .finding import Check, Finding


def _several(hosts: Sequence[HostFacts], _: Asked) -> bool:
    return len(hosts) > 1


def _elsewhere(hosts: Sequence[HostFacts], _: Asked) -> bool:
    return any(not host.local for host in hosts)


def _macs_among(hosts: Sequence[HostFacts], _: Asked) -> bool:
    return any(host.is_mac for host in hosts)


def _tried(hosts: Sequence[HostFacts], _: Asked) -> bool:
    """Whether hosts have tried to reach each other. They do so only once ranks have started."""
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
        mpi.open_mpi,
        lambda _, asked: asked.by_mpirun,
    ),
    Check("whether collectives can be aborted in place", in_place.in_place, in_place.applies),
    Check(
        "GPUs, CUDA and NCCL",
        gpus.gpus,
        lambda hosts, asked: asked.needs("cuda") or any(host.gpus for host in hosts),
    ),
    Check("Metal and CUDA mixed", gpus.mixed, _several),
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
    Check("memory for what the ranks load", resources.memory, lambda _, asked: asked.memory is not None),
    Check("space for temporary files", resources.disk),
    Check(
        "the working folder", resources.folders, lambda hosts, asked: any(asked.folder_of(host.name) for host in hosts)
    ),
    Check("space for environments", resources.home, _elsewhere),
)
_ORDER = {"error": 0, "warning": 1, "note": 2}


def examine(hosts: Sequence[HostFacts], asked: Asked) -> tuple[list[Finding], list[str]]:
    """Return the findings, errors first, and the descriptions of the checks that were run.

    A host with `HostFacts.trouble` was not reached: its only finding is the one about ssh.
    """
    findings = list(ssh.logs_in(hosts, asked))
    reached = [host for host in hosts if not host.trouble]
    looked_at = [CHECKS[0].looks_at] if CHECKS[0].applies(hosts, asked) else []
    for check in CHECKS[1:]:
        if check.applies(reached, asked):
            findings += check.rule(reached, asked)
            looked_at.append(check.looks_at)
    return sorted(findings, key=lambda finding: _ORDER[finding.severity]), looked_at
