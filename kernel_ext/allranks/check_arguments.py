"""The user's arguments, checked before anything starts."""

from __future__ import annotations

import math
import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import psutil

from allranks_backends.hostfile import HostfileError, hosts_in, read_hostfile
from allranks_backends.plan import Host
from allranks_backends.registry import BackendError, get_backend

from .errors import UsageError
from .units import size_text

RANKS_OF_A_CORE = 4
"""Maximum number of ranks per core on this machine without `--yes`."""
OF_A_RANK = 64 << 20
"""Bytes of memory of an idle rank, without the memory that all ranks of a machine share."""
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


def fits_here(option: str, count: int) -> None:
    """Raise UsageError if this machine lacks the memory for `count` more ranks; two are always allowed."""
    most = max(psutil.virtual_memory().available // OF_A_RANK, 2)
    if count > most:
        raise UsageError(f"{option}: a rank needs about {size_text(OF_A_RANK)} of memory. At most {most} fit here.")


def not_too_many(option: str, count: int, running: int = 0) -> None:
    """Raise UsageError if memory is short, or if there are more ranks per core than may start without `--yes`.

    The ranks that are already `running` are part of `count` and need no further memory.
    """
    fits_here(option, count - running)
    cores = psutil.cpu_count() or 1
    if count > RANKS_OF_A_CORE * cores:
        raise UsageError(
            f"{option}: this machine has {cores} {'core' if cores == 1 else 'cores'}, and ranks of a ring are busy "
            f"while they wait. Up to {RANKS_OF_A_CORE * cores} start unasked; {option} --yes starts all of these."
        )


def parse_size(text: str) -> int:
    """Convert a size to bytes: ``4096``, ``64K`` or ``4MiB``. K, M and G are powers of 1024. Raises UsageError."""
    units = {"": 1, "B": 1} | {
        letter + rest: 1 << 10 * power for power, letter in enumerate("KMG", 1) for rest in ("", "B", "IB")
    }
    digits = text.strip().rstrip("KMGIBkmgib")
    unit, digits = text.strip()[len(digits) :].upper(), digits.rstrip()
    if not digits.isascii() or not digits.isdigit() or unit not in units:
        raise UsageError(f"invalid size {text!r}: use 64K, 4MiB or a number of bytes.")
    return int(digits) * units[unit]


def rdma_links(hosts: Sequence[Host]) -> tuple[bool, bool]:
    """Whether a hostfile gives RDMA devices between every two of these hosts, and between neighbours in a ring."""
    size = len(hosts)

    def joined(source: int, target: int) -> bool:
        row = hosts[source].rdma
        return len(row) == size and bool(row[target])

    neighbours = [(rank, (rank + step) % size) for rank in range(size) for step in (1, -1)]
    every = [(source, target) for source in range(size) for target in range(size) if source != target]
    return size > 1 and all(joined(*pair) for pair in every), size > 1 and all(joined(*pair) for pair in neighbours)


LEASE = 12 * 3600.0
"""Default lease in seconds: long enough for a night and the way to work."""
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def lease_of(given: float | str | None, *, lasts: bool = True) -> float | None:
    """Return the lease in seconds, None for no limit. Raises UsageError.

    If `given` is None, the lease is `LEASE` for a cluster that `lasts` beyond its notebook, and 0 for any other.
    """
    if given is None:
        return LEASE if lasts else 0.0
    if given == "none":
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", str(given).strip())
    if found is None or not math.isfinite(float(found[1])):
        raise UsageError(f"--lease {given}: use a time such as 90s, 45m or 12h, 0, or none.")
    return float(found[1]) * _UNITS[found[2] or "s"]


def known_backend(backend: str) -> None:
    try:
        get_backend(backend)
    except BackendError as error:
        raise UsageError(str(error)) from None


def writable(option: str, path: str) -> Path:
    """Return the path. Raises UsageError if the file cannot be written, so that no measurement is made in vain."""
    try:
        file = Path(path).expanduser()
        fresh = not file.exists()
        file.open("a").close()
        if fresh:
            file.unlink()
    except (OSError, RuntimeError) as error:  # RuntimeError: a user without a home
        raise UsageError(f"{option} {path}: {getattr(error, 'strerror', None) or error}.") from None
    return file
