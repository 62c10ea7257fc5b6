"""The hosts that ``-n``, ``--hosts`` or ``--hostfile`` name: one entry per rank."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from allranks_backends.hostfile import HostfileError, hosts_in, read_hostfile
from allranks_backends.plan import Host
from allranks_backends.protocol import BackendError

from .check_arguments import fits_here
from .errors import UsageError

DEFAULT_RANKS = 2
"""Default number of ranks: the smallest world in which ranks communicate."""
HERE = Host("localhost")


def hosts_of(
    n: int | None, hosts: Sequence[str] | str | None, hostfile: str | Path | None, ranks_per_host: int
) -> tuple[list[Host], str | None, dict[str, str]]:
    """Return a Host per rank, and the hostfile's backend (None if it names none) and environment. Raises UsageError."""
    if sum(given is not None for given in (n, hosts, hostfile)) > 1:
        raise UsageError("-n, --hosts and --hostfile cannot be combined: each sets the number of ranks.")
    if ranks_per_host < 1:
        raise UsageError(f"--ranks-per-host {ranks_per_host}: each host needs at least 1 rank.")
    named, env = None, dict[str, str]()
    if hostfile is not None:
        try:
            world = read_hostfile(hostfile)
        except (BackendError, OSError) as error:
            raise UsageError(str(error)) from None
        found, named = list(world.hosts), world.backend
        env = {name: value for name, _, value in (setting.partition("=") for setting in world.envs)}
    elif hosts is not None:
        found = named_hosts(hosts)
        if not found:
            raise UsageError("--hosts: no hosts given.")
    else:
        if ranks_per_host != 1:
            raise UsageError("--ranks-per-host needs --hosts or --hostfile: -n is the number of ranks on this machine.")
        count = DEFAULT_RANKS if n is None else n
        if count < 1:
            raise UsageError(f"-n {count}: a world needs at least 1 rank.")
        fits_here(f"-n {count}", count)
        return [HERE] * count, None, {}
    found = [replace(host, name=HERE.name) if host.local else host for host in found]
    kinds = Counter(name for name, _, _ in {(host.name, host.python, host.cwd) for host in found})
    if mixed := [name for name, count in kinds.items() if count > 1]:
        raise UsageError(
            f"{', '.join(mixed)}: all ranks of a host have one python and one cwd. Name the same each time."
        )
    # A hostfile may list a host several times, once for each rank. `ranks_per_host` multiplies each entry.
    return [host for host in found for _ in range(ranks_per_host)], named, env


def python_here(hosts: Sequence[Host], python: str | None) -> str:
    """The interpreter for this machine: if ranks run here, the interpreter of the local `Host`, or else `python`.

    Otherwise, or if neither is given, this process's interpreter.
    """
    here = [host for host in hosts if host.local]
    named = next((host.python for host in here if host.python), None)
    return str(Path(named or (here and python) or sys.executable).expanduser())


def named_hosts(hosts: Sequence[str] | str) -> list[Host]:
    """The hosts of ``--hosts``, where ``slots=``, ``python=`` and ``cwd=`` may follow a name. Raises UsageError."""
    names = hosts.split(",") if isinstance(hosts, str) else hosts
    try:
        return [host for name in names if name.strip() for host in hosts_in(name.strip())]
    except HostfileError as error:
        raise UsageError(f"--hosts: {error}.") from None


def rdma_links(hosts: Sequence[Host]) -> tuple[bool, bool]:
    """Whether a hostfile gives RDMA devices between every two of these hosts, and between neighbours in a ring."""
    size = len(hosts)

    def joined(source: int, target: int) -> bool:
        row = hosts[source].rdma
        return len(row) == size and bool(row[target])

    neighbours = [(rank, (rank + step) % size) for rank in range(size) for step in (1, -1)]
    every = [(source, target) for source in range(size) for target in range(size) if source != target]
    return size > 1 and all(joined(*pair) for pair in every), size > 1 and all(joined(*pair) for pair in neighbours)
