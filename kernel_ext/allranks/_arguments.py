"""What a user asked for, checked before anything starts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from allranks_backends._backend import BackendError, get_backend
from allranks_backends._plan import Host
from allranks_backends.hostfile import read_hostfile

from .errors import UsageError

DEFAULT_RANKS = 2
"""The smallest world in which something is communicated."""
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1", os.uname().nodename)
HERE = Host("localhost")


def hosts_of(
    n: int | None, hosts: Sequence[str] | None, hostfile: str | Path | None, ranks_per_host: int
) -> tuple[list[Host], str | None, dict[str, str]]:
    """One Host for every rank, and the backend and environment a hostfile names."""
    if sum(given is not None for given in (n, hosts, hostfile)) > 1:
        raise UsageError("-n, --hosts and --hostfile exclude each other: each says how many ranks there are.")
    if ranks_per_host < 1:
        raise UsageError(f"--ranks-per-host {ranks_per_host}: at least 1 rank a host is needed.")
    named, env = None, dict[str, str]()
    if hostfile is not None:
        try:
            world = read_hostfile(hostfile)
        except (BackendError, OSError) as error:
            raise UsageError(str(error)) from None
        found, named = list(world.hosts), world.backend
        env = dict(setting.split("=", 1) for setting in world.envs)
    elif hosts is not None:
        found = [Host(host) for host in hosts]
    else:
        count = DEFAULT_RANKS if n is None else n
        if count < 1:
            raise UsageError(f"-n {count}: a world needs at least 1 rank.")
        return [HERE] * count, None, {}
    if remote := [host.name for host in found if host.name not in LOCAL_NAMES]:
        raise UsageError(
            f"{', '.join(dict.fromkeys(remote))}: ranks on other machines are not supported by this version; "
            "only localhost is. Use -n N for ranks on this machine."
        )
    return [HERE for _ in found for _ in range(ranks_per_host)], named, env


def known_check(check: str) -> str:
    if check not in ("off", "warn", "strict"):
        raise UsageError(f"check {check!r}: off, warn or strict.")
    return check


def known_backend(backend: str) -> None:
    try:
        get_backend(backend)
    except BackendError as error:
        raise UsageError(str(error)) from None
