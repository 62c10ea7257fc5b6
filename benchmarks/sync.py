"""The notebook's folder on other hosts: how long an edit takes to run there, and the first copy against `scp`.

The hosts are network namespaces on this machine (tests/hosts/lab.py), with home folders of their own and links that are
held at a rate. They share its cores and its disk, which on several machines they would not.

An edit: one file of a large tree is written, then a cell calls the function in it on every rank: the time from the
write to the result. The first copy: random bytes to four hosts, against one plain `scp` of the same files to one of
them; where the notebook's own link is held at the same rate as theirs, four `scp`s must share it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

from allranks import Cluster
from tests.hosts.apart import made_apart
from tests.hosts.lab import forbidden, missing

from ._table import Bar, Row, Table

HOSTS = 4
TREE, FILES = 2 << 30, 20_000
COPY, COPIED_FILES, COPY_MBIT = 200 << 20, 200, 200
EDIT_MBIT = 1000


def measure(repeat: int | None, *, quick: bool = False) -> Table:
    """Edits in one large tree; first copies, with and without a bottleneck at the notebook."""
    table = Table("sync", "the notebook's folder on other hosts; lower is better")
    if reason := missing() or forbidden():
        table.notes.append(f"Not measured here: {reason}.")
        return table
    rounds = repeat or (2 if quick else 5)
    for count, limit in ((HOSTS, 1.5), (2 * HOSTS, 2.0)):
        if quick and count > HOSTS:
            continue
        edits, size = _edits(count, rounds, FILES // (20 if quick else 1), TREE // (20 if quick else 1))
        what = f"an edit, {count} hosts, {size}"
        table.rows.append(Row(what, "s", edits, bar=Bar("at most", limit, "ours")))
    for bottleneck in (False, True):
        times = 4 if bottleneck else 1
        samples = [_first_copy(COPY // (4 if quick else 1), bottleneck) for _ in range(1 if quick else min(rounds, 3))]
        ours, theirs = [each[0] for each in samples], [each[1] * times for each in samples]
        where = f", the notebook's link at {COPY_MBIT} Mbit/s too" if bottleneck else ""
        against = "four times one scp" if bottleneck else "one scp to one host"
        table.rows.append(Row(f"first copy to {HOSTS} hosts{where}", "s", ours, theirs, against, Bar("at most", 1.3)))
    return table


def _edits(count: int, rounds: int, files: int, size: int) -> tuple[list[float], str]:
    """Seconds of each edit, and what the tree is."""
    with made_apart(count) as apart:
        work = apart.work
        _write(work, files, size)
        (work / "edited.py").write_text("def answer():\n    return 0\n")
        for name in apart.names:
            apart.hosts.slow(name, EDIT_MBIT)
            apart.hosts.slow_towards(name, EDIT_MBIT)
        with Cluster(hosts=apart.names, backend="ring", sync=True) as cluster:
            cluster.sync(limit=2 * size)
            cluster.run("import edited").check()
            seconds = []
            for number in range(1, rounds + 2):
                (work / "edited.py").write_text(f"def answer():\n    return {number}\n")
                began = time.perf_counter()
                values = [rank.value for rank in cluster.run("edited.answer()").check().values()]
                seconds.append(time.perf_counter() - began)
                assert values == [number] * count
        return seconds[1:], f"{files:,} files, {size / 1e9:.1f} GB"


def _first_copy(size: int, bottleneck: bool) -> tuple[float, float]:
    """Seconds to all hosts, and of one `scp` to one."""
    with made_apart(HOSTS) as apart:
        work = apart.work
        _write(work, COPIED_FILES, size)
        for name in apart.names:
            apart.hosts.slow_towards(name, COPY_MBIT)
        if bottleneck:
            apart.hosts.slow_here(COPY_MBIT)
        began = time.perf_counter()
        target = apart.home(apart.names[0]) / "scp"
        # As the lab's own ssh, which knows the hosts.
        options = ["-q", "-r", "-O", "-S", str(apart.hosts.folder / "bin" / "ssh")]
        subprocess.run(["scp", *options, str(work), f"{apart.names[0]}:{target}"], check=True)
        theirs = time.perf_counter() - began
        shutil.rmtree(target)
        with Cluster(hosts=apart.names, backend="ring") as cluster:
            began = time.perf_counter()
            cluster.sync(limit=2 * size)
            ours = time.perf_counter() - began
        return ours, theirs


def _write(work: Path, files: int, size: int) -> None:
    each = size // files
    for number in range(files):
        folder = work / f"d{number % 200}"
        folder.mkdir(exist_ok=True)
        (folder / f"f{number}").write_bytes(os.urandom(each))
