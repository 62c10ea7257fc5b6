"""The backends by name, and which of them to use where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from types import MappingProxyType

from ._plan import Platform
from ._platform import this_platform
from ._protocol import WORLD_VARIABLES, Backend, BackendError
from .jaccl import Jaccl
from .mpi import MPI
from .nccl import NCCL
from .ring import Ring

__all__ = [
    "BACKENDS",
    "WORLD_VARIABLES",
    "Backend",
    "BackendError",
    "cannot_run",
    "choose",
    "get_backend",
    "this_platform",
]

_ALL: tuple[Backend, ...] = (Ring(), Jaccl(), Jaccl(ring=True), MPI(), NCCL())
BACKENDS: Mapping[str, Backend] = MappingProxyType({backend.name: backend for backend in _ALL})


def get_backend(name: str) -> Backend:
    """The backend the user calls ``name``; raises ``BackendError`` with the valid names."""
    if name in BACKENDS:
        return BACKENDS[name]
    close = get_close_matches(name.lower(), BACKENDS, n=1)
    guess = f"Did you mean --backend {close[0]}? " if close else ""
    raise BackendError(f"There is no backend {name!r}. {guess}The backends are {listed([*BACKENDS], 'and')}, or auto.")


def cannot_run(name: str, platform: Platform, size: int) -> str | None:
    """Why the backend ``name`` cannot run ``size`` ranks here, and what to type instead; None when it can."""
    why = get_backend(name).why_not(platform, size)
    if why is None:
        return None
    can = [other for other, backend in BACKENDS.items() if backend.why_not(platform, size) is None]
    if not can:
        return f"Backend {name} cannot run here: {why}. No other backend can run here either."
    return f"Backend {name} cannot run here: {why}. {listed(can, 'and')} can run here: {_up(size, can[0])}"


def choose(platform: Platform, size: int, *, rdma_mesh: bool = False, rdma_ring: bool = False) -> tuple[str, str]:
    """What ``--backend auto`` means: the name, and one sentence why.

    NCCL where every rank has a CUDA device, JACCL on a full RDMA mesh, its ring on an RDMA ring, else the TCP ring.
    ``rdma_mesh`` and ``rdma_ring`` say what the hostfile lists or discovery found.
    """
    candidates = {
        "nccl": (platform.cuda_devices > 0, "every rank has a CUDA device"),
        "jaccl": (rdma_mesh, "an RDMA link joins every pair of ranks"),
        "jaccl-ring": (rdma_ring or rdma_mesh, "RDMA links join the ranks in a ring"),
    }
    passed_over = []
    for name, (wanted, because) in candidates.items():
        if wanted:
            why = BACKENDS[name].why_not(platform, size)
            if why is None:
                return name, f"{name}, since {because}."
            passed_over.append(why)
    if passed_over:
        return "ring", f"ring, since {passed_over[0]}."
    return "ring", "ring, since there are no CUDA devices or RDMA links to use."


def _up(size: int, backend: str) -> str:
    return f"%distributed up -n {size} --backend {backend}"


def listed(names: Sequence[str], word: str) -> str:
    """``ring, mpi and nccl``."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {word} {names[-1]}"
