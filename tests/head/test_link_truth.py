"""The figures on the links against the kernel's own counters."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.hosts.lab import forbidden
from tests.needs import need
from tests.waiting import comes_true

if TYPE_CHECKING:
    from allranks import Cluster
    from allranks_backends.views import Snapshot

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="ss and ip are Linux's"),
]


def counted_by_ss(cluster: Cluster) -> dict[int, int]:
    """Bytes acked on all of each rank's connections to other ranks, as ``ss`` prints them."""
    pids = {rank.pid: rank.rank for rank in cluster.snapshot.ranks}
    said = subprocess.run(["ss", "-tinpH"], capture_output=True, text=True, check=True).stdout
    sums = dict.fromkeys(range(cluster.size), 0)
    for line, details in zip(said.splitlines()[::2], said.splitlines()[1::2], strict=True):
        ports = [int(word.rpartition(":")[2]) for word in line.split()[3:5]]
        pid = re.search(r"pid=(\d+)", line)
        acked = re.search(r"bytes_acked:(\d+)", details)
        if pid and int(pid[1]) in pids and acked and any(20_000 <= port < 32_000 for port in ports):
            sums[pids[int(pid[1])]] += int(acked[1])
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
        assert counted_by_ss(cluster) == {
            rank: pytest.approx(sent(cluster.snapshot, rank), rel=0.02) for rank in range(3)
        }


def sent(snapshot: Snapshot, rank: int) -> int:
    return sum(view.sent or 0 for view in snapshot.links if view.link.source == rank)


SLOWED = """
import json, sys, time
sys.path[:0] = {path!r}
import allranks

def counter():
    with open("/sys/class/net/lo/statistics/tx_bytes") as file:
        return int(file.read())

with allranks.Cluster(2, backend="ring") as cluster:
    cluster.run("x = mx.ones(1 << 18); mx.eval(x)").check()
    cell = cluster.begin("for _ in range(260): mx.eval(mx.distributed.all_sum(x))", want_values=False)
    time.sleep(2)
    windows = []
    for _ in range(3):
        shown, before = 0.0, counter()
        began = looked = time.monotonic()
        while looked - began < 4:
            time.sleep(0.1)
            rate, now = sum(view.rate or 0 for view in cluster.snapshot.links), time.monotonic()
            shown += rate * (now - looked)  # a busy machine looks at uneven intervals
            looked = now
        windows.append([shown / (looked - began), (counter() - before) / (time.monotonic() - began)])
    cell.finish(120).check()
print(json.dumps(windows))
"""


@pytest.mark.hosts
def test_the_rate_on_a_slow_link_is_the_counters_rate(tmp_path: Path) -> None:
    """Loopback of a network namespace, held at 200 Mbit/s: the counter's frames have headers of at most 4 %."""
    import json

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
        script.write_text(SLOWED.format(path=sys.path))
        done = subprocess.run([*inside, sys.executable, str(script)], capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr
        # A rate is that of the last half second, so that a window in which the traffic changes is off by a little.
        apart = sorted(abs(shown / counted - 1) for shown, counted in json.loads(done.stdout.splitlines()[-1]))
        assert apart[0] < 0.05 and apart[1] < 0.1
    finally:
        subprocess.run(["ip", "netns", "del", space], check=True)
