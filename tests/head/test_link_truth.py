"""The figures on the links against the kernel's own counters."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.hosts.lab import forbidden
from tests.needs import need
from tests.waiting import comes_true, eventually

if TYPE_CHECKING:
    from allranks import Cluster
    from allranks_backends.views import Snapshot

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="ss and ip are Linux's"),
]


def counted_by_ss(cluster: Cluster) -> dict[int, int]:
    """Bytes acked on all of each rank's connections to other ranks, as ``ss`` prints them, a line for each."""
    pids = {rank.pid: rank.rank for rank in cluster.snapshot.ranks}
    said = subprocess.run(["ss", "-tinpHO", "state", "established"], capture_output=True, text=True, check=True).stdout
    sums = dict.fromkeys(range(cluster.size), 0)
    for line in said.splitlines():
        ports = [int(word.rpartition(":")[2]) for word in line.split()[2:4]]
        ranks = [pids[int(pid)] for pid in re.findall(r"pid=(\d+)", line) if int(pid) in pids]  # their host's, too
        acked = re.search(r"bytes_acked:(\d+)", line)
        if ranks and acked and any(20_000 <= port < 32_000 for port in ports):
            sums[ranks[0]] += int(acked[1])
    return sums


@pytest.mark.parametrize("connections", [1, 2])
def test_bytes_on_links_are_those_that_ss_counts(connections: int) -> None:
    from allranks import Cluster

    need(shutil.which("ss"), "there is no ss (apt install iproute2)")
    with Cluster(3, backend="ring", connections=connections) as cluster:
        cluster.run("x = mx.ones(200_000)\nfor _ in range(20): mx.eval(mx.distributed.all_sum(x))", timeout=120).check()
        least = 20 * 800_000  # each rank sends 4/3 of it
        assert comes_true(cluster, lambda now: all(sent(now, rank) > least for rank in range(3)), 60)
        expected = {
            rank: pytest.approx(20 * 800_000 * 4 / 3, rel=0.02) for rank in range(3)
        }  # what all_sum has to send
        assert comes_true(cluster, lambda now: {rank: sent(now, rank) for rank in range(3)} == expected, 60)
        # Nothing is on its way any more, so that both count the same once the ranks have reported it.
        assert eventually(lambda: counted_by_ss(cluster) == {rank: sent(cluster.snapshot, rank) for rank in range(3)})


def sent(snapshot: Snapshot, rank: int) -> int:
    return sum(view.sent or 0 for view in snapshot.links if view.link.source == rank)


NOTED = """
import time
from allranks.rank.process.engine import RankEngine
wire = RankEngine.instance().agent.meters.wire
readings, read = [], wire.read
def noted():
    links = read()
    readings.extend((wire._before[link.peer][1], link.sent, link.rate) for link in links)
    return links
wire.read = noted
"""
"""Run on a rank that has one neighbour: when each of its readings was taken, and what it says."""

SLOWED = """
import json, sys
sys.path[:0] = {path!r}
import allranks
from tests.waiting import comes_true

def counter():
    with open("/sys/class/net/lo/statistics/tx_bytes") as file:
        return int(file.read())

shown = set()
def rests(now):
    shown.update((view.link.source, view.sent, view.rate) for view in now.links if view.sent > 1 << 20)
    return all(view.sent > 100 << 20 and view.rate == 0 for view in now.links)

with allranks.Cluster(2, backend="ring") as cluster:
    cluster.run("x = mx.ones(1 << 18); mx.eval(x)").check()
    cluster.run({noted!r}).check()
    cluster.run("while not readings: time.sleep(0.01)", timeout=60).check()
    before = counter()
    cell = cluster.begin("for _ in range(101): mx.eval(mx.distributed.all_sum(x))", want_values=False)
    assert comes_true(cluster, rests, 120), cluster.status()
    cell.finish(60).check()
    counted = counter() - before
    print(json.dumps([counted, cluster.pull("readings"), sorted(shown)]))
"""


@pytest.mark.hosts
def test_the_rate_on_a_slow_link_is_the_counters_rate(tmp_path: Path) -> None:
    """Loopback of a network namespace, held at 200 Mbit/s: the counter's frames have headers of at most 4 %."""
    need(shutil.which("ip") and shutil.which("tc"), "there is no ip and tc (apt install iproute2)")
    if reason := forbidden():
        pytest.skip(reason)
    space = f"allranks-{tmp_path.name[-8:]}"
    subprocess.run(["ip", "netns", "add", space], check=True)
    try:
        inside = ["ip", "netns", "exec", space]
        subprocess.run([*inside, "ip", "link", "set", "lo", "up"], check=True)
        shape = [
            "tc",
            "qdisc",
            "add",
            "dev",
            "lo",
            "root",
            "tbf",
            "rate",
            "200mbit",
            "burst",
            "256kb",
            "latency",
            "50ms",
        ]
        subprocess.run([*inside, *shape], check=True)
        script = tmp_path / "slowed.py"
        script.write_text(SLOWED.format(path=sys.path, noted=NOTED))
        done = subprocess.run([*inside, sys.executable, str(script)], capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr
        counted, readings, shown = json.loads(done.stdout.splitlines()[-1])
        # Each rate times the seconds since the reading before it: how busy the machine is makes no difference.
        moved = sum(rate * (at - before) for each in readings for (before, _, _), (at, _, rate) in pairwise(each))
        assert moved <= counted < 1.05 * moved
        assert {(rank, sent, rate) for rank, sent, rate in shown} <= {
            (rank, sent, rate) for rank, each in enumerate(readings) for _, sent, rate in each
        }
        assert any(rate for _, _, rate in shown)
    finally:
        subprocess.run(["ip", "netns", "del", space], check=True)
