"""The backends by name, and the choice of a backend for given hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from types import MappingProxyType

from allranks_backends.runtimes.jaccl import Jaccl
from allranks_backends.runtimes.mpi import MPI
from allranks_backends.runtimes.nccl import NCCL
from allranks_backends.runtimes.ring import Ring

from .plan import Site
from .protocol import Backend, BackendError

_ALL: tuple[Backend, ...] = (Ring(), Jaccl(), Jaccl(ring=True), MPI(), NCCL())
BACKENDS: Mapping[str, Backend] = MappingProxyType({backend.name: backend for backend in _ALL})


def get_backend(name: str) -> Backend:
    """Return the backend with this name. Raises BackendError with a list of the valid names."""
    if name in BACKENDS:
        return BACKENDS[name]
    close = get_close_matches(name.lower(), BACKENDS, n=1)
    guess = f"Did you mean --backend {close[0]}? " if close else ""
    raise BackendError(f"unknown backend {name!r}. {guess}The backends are {listed([*BACKENDS], 'and')}, or auto.")


def cannot_run(name: str, sites: Sequence[Site], *, up: bool = False) -> str | None:
    """Return why the backend ``name`` cannot run the ranks meant for these hosts; None if it can.

    If another backend can run them, the text also says what to type. The command depends on whether the ranks are `up`
    already.
    """
    found = _obstacle(name, sites)
    if found is None:
        return None
    site, why = found
    can = can_run(sites)
    where, there = ("here", "here") if site.local else (f"on {site.name}", "on these hosts")
    if not can:
        return f"Backend {name} cannot run {where}: {why}. No other backend can run {there} either."
    advice = f"--backend {can[0]}"
    if up:
        advice = f"%distributed rewire {advice}"
    elif len(_used(sites)) == 1 and site.local:
        advice = f"%distributed up -n {_size(sites)} {advice}"
    return f"Backend {name} cannot run {where}: {why}. {listed(can, 'and')} can run {there}: {advice}"


def can_run(sites: Sequence[Site]) -> list[str]:
    """Return the names of the backends that can run the ranks meant for these hosts."""
    return [name for name in BACKENDS if _obstacle(name, sites) is None]


def choose(sites: Sequence[Site], *, rdma_mesh: bool = False, rdma_ring: bool = False) -> tuple[str, str]:
    """Return the backend that ``--backend auto`` selects, and one sentence why.

    It selects ``nccl`` if every rank has a CUDA device, else ``jaccl`` on a full RDMA mesh, else ``jaccl-ring`` on an
    RDMA ring, else ``ring``. ``rdma_mesh`` and ``rdma_ring`` say whether the hostfile lists such RDMA links.
    """
    candidates = {
        "nccl": (any(site.platform.cuda_devices > 0 for site in _used(sites)), "every rank has a CUDA device"),
        "jaccl": (rdma_mesh, "an RDMA link joins every pair of ranks"),
        "jaccl-ring": (rdma_ring or rdma_mesh, "RDMA links join the ranks in a ring"),
    }
    passed_over = []
    for name, (wanted, because) in candidates.items():
        if wanted:
            found = _obstacle(name, sites)
            if found is None:
                return name, f"{name}, since {because}."
            site, why = found
            passed_over.append(why if site.local else f"{why} ({site.name})")
    if passed_over:
        return "ring", f"ring, since {passed_over[0]}."
    return "ring", "ring, since there are no CUDA devices or RDMA links to use."


def _obstacle(name: str, sites: Sequence[Site]) -> tuple[Site, str] | None:
    """Return the first host that cannot run the backend, and why; None if all can.

    With mpirun, hosts without ranks are checked, too, since mpirun itself runs on one of them.
    """
    backend = get_backend(name)
    for site in sites if backend.launcher == "mpirun" else _used(sites):
        why = backend.why_not(site.platform, _size(sites), site.ranks)
        if why is not None:
            return site, why
    return None


def _used(sites: Sequence[Site]) -> list[Site]:
    return [site for site in sites if site.ranks]


def _size(sites: Sequence[Site]) -> int:
    return sum(site.ranks for site in sites)


def listed(names: Sequence[str], word: str) -> str:
    """Return names as a list in words: ``ring, mpi and nccl`` if `word` is ``and``."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {word} {names[-1]}"
