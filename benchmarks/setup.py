"""A host that has only sshd and a Python, to the first all_sum: `setup` from sent wheels, `setup` again, and `up`.

The hosts are network namespaces on this machine with home folders of their own (tests/hosts/apart.py), and reach no
index. They share its cores and its disk.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

from allranks import Cluster
from allranks.environments.setup import setup
from tests.hosts.apart import made_apart
from tests.hosts.lab import forbidden, missing

from ._table import Bar, Row, Table

HOSTS = 2
NO_INDEX = "http://127.0.0.1:9/simple"


def measure(repeat: int | None, *, quick: bool = False) -> Table:
    """New hosts in each round."""
    table = Table("setup", f"{HOSTS} hosts with nothing but sshd and a Python; lower is better")
    if reason := missing() or forbidden():
        table.notes.append(f"Not measured here: {reason}.")
        return table
    rounds = [_round() for _ in range(1 if quick else repeat or 3)]
    first, again, up = map(list, zip(*rounds))
    table.rows += [
        Row(f"first setup of {HOSTS} hosts, from sent wheels", "s", first),
        Row("setup again, for each host", "s", again, bar=Bar("at most", 2.0, "ours")),
        Row("up, to the first all_sum", "s", up),
    ]
    return table


def _round() -> tuple[float, float, float]:
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    with (
        made_apart(HOSTS) as apart,
        tempfile.TemporaryDirectory() as cache,
        mock.patch.dict(os.environ, XDG_CACHE_HOME=cache),  # so that the wheels are built again
    ):
        for name in apart.names:
            python = apart.hosts.home(name) / "bin" / version
            python.parent.mkdir(exist_ok=True)
            python.symlink_to(Path(sys.base_prefix, "bin", version))
            apart.hosts.restart_sshd(name, HOME=str(apart.home(name)), PIP_INDEX_URL=NO_INDEX, UV_INDEX_URL=NO_INDEX)
        began = time.perf_counter()
        made = setup(hosts=apart.names)
        first = time.perf_counter() - began
        assert made.ok, made
        began = time.perf_counter()
        same = setup(hosts=apart.names)
        again = time.perf_counter() - began
        assert all(host.seconds is None for host in same.hosts), same
        began = time.perf_counter()
        with Cluster(hosts=apart.names, backend="ring") as cluster:
            cluster.run("mx.eval(mx.distributed.all_sum(mx.ones(4)))").check()
            return first, again / HOSTS, time.perf_counter() - began
