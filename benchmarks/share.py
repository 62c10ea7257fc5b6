"""A model that one host has, on three others: how long `share` takes, against one `scp` to one of them.

The hosts are network namespaces on this machine (tests/hosts/lab.py), with home folders of their own and links that are
held at a rate in both directions. They share its cores and its disk, which on several machines they would not.

Each link of the chain carries all of it, at the same time as the others; `scp` copies it over one such link. So the
ratio is what the chain and the checksums add.
"""

from __future__ import annotations

import os
import shutil
import time

from allranks import Cluster
from tests.hosts.apart import made_apart
from tests.hosts.lab import forbidden, missing

from ._table import Bar, Row, Table

HOSTS = 4
SIZE, FILES, MBIT = 1_000_000_000, 4, 200
MANY = 20_000
SMALL = 1000
"""Bytes of each of `MANY` files."""


def measure(repeat: int | None, *, quick: bool = False) -> Table:
    """First copies of one model, in turns with `scp`."""
    table = Table("share", "a model from one host to all others; lower is better")
    if reason := missing() or forbidden():
        table.notes.append(f"Not measured here: {reason}.")
        return table
    size, many = (SIZE // 20, MANY // 20) if quick else (SIZE, MANY)
    for what, count, each, bar in (
        (f"{size / 1e9:g} GB", FILES, size // FILES, Bar("at most", 1.25)),
        (f"{many:,} files of {SMALL / 1e3:g} kB", many, SMALL, None),
    ):
        samples = [_first_copy(count, each) for _ in range(1 if quick else repeat or 3)]
        what += f" from one host to {HOSTS - 1} others, links of {MBIT} Mbit/s"
        ours, theirs = [one[0] for one in samples], [one[1] for one in samples]
        table.rows.append(Row(what, "s", ours, theirs, "one scp over one link", bar))
    return table


def _first_copy(count: int, size: int) -> tuple[float, float]:
    """Seconds to share `count` files of `size` bytes with all hosts, and to `scp` them from the same host to one."""
    with made_apart(HOSTS) as apart:
        hosts, (first, second, *_) = apart.hosts, apart.names
        model = apart.home(first) / "model"
        model.mkdir()
        for number in range(count):
            (model / f"{number}.safetensors").write_bytes(os.urandom(size))
        for name in apart.names:
            hosts.slow(name, MBIT)
            hosts.slow_towards(name, MBIT)
        began = time.perf_counter()
        target = apart.home(second) / "scp"
        # As the lab's own ssh, which knows the hosts.
        options = ["-q", "-r", "-O", "-S", str(hosts.folder / "bin" / "ssh")]
        assert hosts.begin(first, "scp", *options, str(model), f"{second}:{target}").wait() == 0
        theirs = time.perf_counter() - began
        shutil.rmtree(target)
        with Cluster(hosts=apart.names, backend="ring") as cluster:
            began = time.perf_counter()
            cluster.share("~/model")
            ours = time.perf_counter() - began
        return ours, theirs
