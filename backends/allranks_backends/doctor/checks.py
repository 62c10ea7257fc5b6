"""All checks, in the order in which a world needs what they look at."""

from __future__ import annotations

from collections.abc import Sequence

from . import _gpus, _macs, _mpi, _network, _resources, _software, _ssh
from ._finding import Check, Finding
from .facts import Asked, HostFacts


def _several(hosts: Sequence[HostFacts], _: Asked) -> bool:
    return len(hosts) > 1


def _elsewhere(hosts: Sequence[HostFacts], _: Asked) -> bool:
    return any(not host.local for host in hosts)


def _macs_among(hosts: Sequence[HostFacts], _: Asked) -> bool:
    return any(host.is_mac for host in hosts)


CHECKS = (
    Check("ssh logs in (host name, key, host key, time)", _ssh.logs_in, _elsewhere),
    Check("Python and the packages that must be equal", _software.same_versions),
    Check("settings known to do harm", _software.harmful_settings),
    Check("clocks", _software.clocks, _elsewhere),
    Check("what the hosts' names resolve to", _network.names, _several),
    Check("TCP ports between hosts (firewalls, routes)", _network.ports, _several),
    Check("MTU and doubled networks", _network.interfaces),
    Check(
        "Open MPI: mpirun, its library, its daemon, one process started",
        _mpi.open_mpi,
        lambda _, asked: asked.backend == "mpi",
    ),
    Check(
        "GPUs, CUDA and NCCL",
        _gpus.gpus,
        lambda hosts, asked: asked.backend == "nccl" or any(host.gpus for host in hosts),
    ),
    Check("Metal and CUDA mixed", _gpus.mixed, _several),
    Check("macOS versions, sleep", _macs.systems, _macs_among),
    Check("RDMA and Thunderbolt", _macs.thunderbolt, _macs_among),
    Check("memory for what is to be loaded", _resources.memory, lambda _, asked: asked.memory is not None),
    Check("room for temporary files", _resources.disk),
)
_ORDER = {"error": 0, "warning": 1, "note": 2}


def examine(hosts: Sequence[HostFacts], asked: Asked) -> tuple[list[Finding], list[str]]:
    """What is wrong, the worst first, and what was looked at. Of a host that cannot be asked, only that is said."""
    findings = list(_ssh.logs_in(hosts, asked))
    reached = [host for host in hosts if not host.trouble]
    looked_at = [CHECKS[0].looks_at] if CHECKS[0].applies(hosts, asked) else []
    for check in CHECKS[1:]:
        if check.applies(reached, asked):
            findings += check.rule(reached, asked)
            looked_at.append(check.looks_at)
    return sorted(findings, key=lambda finding: _ORDER[finding.severity]), looked_at
