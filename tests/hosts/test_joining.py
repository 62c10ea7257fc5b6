"""Ranks that join from other hosts, which nobody logs in to."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from allranks import Cluster
from allranks.errors import CannotStart
from allranks.hosts import accept_scheduler_ranks
from tests.hosts.lab import Hosts
from tests.hosts.test_hosts import gone, left, sums
from tests.waiting import comes_true

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(300)]
WITHIN = 60.0

KNOCK = """
import os, sys, time, zmq
from zmq.utils.monitor import parse_monitor_message
events, names, poller, heard = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_CONNECTED, {}, zmq.Poller(), set()
for url in sys.argv[1:]:
    for curve in (False, True):
        stranger = zmq.Context.instance().socket(zmq.DEALER)
        stranger.reconnect_ivl = -1
        if curve:
            stranger.curve_serverkey = zmq.curve_keypair()[0]
            stranger.curve_publickey, stranger.curve_secretkey = zmq.curve_keypair()
        monitor = stranger.get_monitor_socket(events)
        names[monitor] = (url, curve, stranger)
        poller.register(monitor, zmq.POLLIN)
        stranger.connect(url)
def hear(within, wanted):
    until = time.monotonic() + within
    while (left := until - time.monotonic()) > 0 and len(heard) < wanted:
        for monitor, _ in poller.poll(int(left * 1000) + 1):
            heard.add((*names[monitor][:2], parse_monitor_message(monitor.recv_multipart())["event"]))
hear(60, len(names))
hear(2, 2 * len(names))
for url, curve, _ in names.values():
    if (url, curve, zmq.EVENT_CONNECTED) not in heard:
        print("closed", url)
    if (url, curve, zmq.EVENT_HANDSHAKE_SUCCEEDED) in heard:
        print("let in", url)
sys.stdout.flush()
os._exit(0)
"""


def line(hosts: Hosts, name: str, file: Path) -> list[str]:
    """What a scheduler runs on the host of that name."""
    named = 'hostname "$1" && shift && exec "$@"'
    inside = ["ip", "netns", "exec", hosts.space(name), "unshare", "--uts", "sh", "-c", named, "sh", name]
    return [*inside, sys.executable, "-m", "allranks.rank", "--join", str(file)]


@contextmanager
def started(hosts: Hosts, names: Sequence[str], file: Path, each: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that join, the hosts in turn, as Slurm's cyclic distribution starts them."""
    processes = []
    size = each * len(names)
    for number in range(size):
        name = names[number % len(names)]
        env = {**os.environ, "SLURM_PROCID": str(number), "SLURM_STEP_NUM_TASKS": str(size)}
        processes.append(subprocess.Popen(line(hosts, name, file), stdin=subprocess.DEVNULL, env=env))
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_two_ranks_from_each_of_two_hosts(hosts3: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "ranks.json"
    cluster = Cluster(join=file, backend="ring", timeout=60)
    names = ["host1", "host2"]
    with started(hosts3, names, file, 2) as processes:
        try:
            cluster.up()
            assert [rank.host for rank in cluster.snapshot.ranks] == names * 2
            assert sums(cluster) == [4.0] * 4
            assert {view.link.interface for view in cluster.snapshot.links} <= {"eth0", "lo", None}
            cluster.run("kept = rank").check()
            cluster.resize(2)
            assert sums(cluster) == [2.0] * 2
            assert cluster.pull("kept") == [0, 1]
            _nobody_is_let_in(cluster, hosts3)
            # Not before: a process that stands still for a moment is not to be taken for one that is lost.
            monkeypatch.setattr(accept_scheduler_ranks, "LOST_AFTER", 0.5)
            hosts3.link("host2", "down")
            assert comes_true(cluster, lambda now: now.ranks[1].state == "dead", WITHIN)
            end = cluster._live.ranks.reached.others["host2"] if cluster._live.ranks else None
            assert end is not None
            end.wait_end()
            assert "lost on host2: it stopped responding" in (cluster.snapshot.ranks[1].cause or "")
            cluster.resize(1)
            assert cluster.pull("kept") == [0]
        finally:
            hosts3.link("host2", "up")
            cluster.down()
        codes = [process.wait(WITHIN) for process in processes]
        assert [codes[0], codes[2]] == [0, 0]
        assert gone(hosts3, WITHIN), left(hosts3)


def test_those_that_come_after_a_loss_are_kept_until_there_are_enough(hosts3: Hosts, tmp_path: Path) -> None:
    file = tmp_path / "ranks.json"
    cluster = Cluster(join=file, backend="ring", timeout=60)
    with started(hosts3, ["host1", "host2"], file, 1) as first:
        try:
            cluster.up()
            end(cluster, first)
            with started(hosts3, ["host3"], file, 1) as third:
                arrive(cluster, 1)
                with pytest.raises(CannotStart, match="host2: the process that joined from there has ended"):
                    cluster.heal()
                with started(hosts3, ["host1"], file, 1):
                    arrive(cluster, 2)
                    cluster.heal()
                    assert sums(cluster) == [2.0] * 2
                    assert [rank.host for rank in cluster.snapshot.ranks] == ["host1", "host3"], "a host's own ranks"
                    _one_that_a_look_took_in_is_used(cluster, hosts3, third, file)
        finally:
            cluster.down()
    assert gone(hosts3, WITHIN), left(hosts3)


def _one_that_a_look_took_in_is_used(
    cluster: Cluster, hosts: Hosts, lost: Sequence[subprocess.Popen[bytes]], file: Path
) -> None:
    ranks = cluster._live.ranks
    assert ranks is not None
    end(cluster, lost)
    with started(hosts, ["host2"], file, 1):
        arrive(cluster, 1)
        ranks.sites(ranks.hosts)  # as resize, rewire and a comparing bench do before they change anything
        cluster.heal()
        assert sums(cluster) == [2.0] * 2
        assert [rank.host for rank in cluster.snapshot.ranks] == ["host1", "host2"]


def end(cluster: Cluster, processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """As scancel would; returns when the cluster knows that their ranks are dead."""
    before = sum(rank.state == "dead" for rank in cluster.snapshot.ranks)
    for process in processes:
        process.terminate()
    dead = before + len(processes)
    assert comes_true(cluster, lambda now: sum(rank.state == "dead" for rank in now.ranks) == dead, WITHIN)
    ranks = cluster._live.ranks
    assert ranks is not None
    for process in processes:
        process.wait(WITHIN)
    for rank in ranks.monitor.ranks:
        if rank.dead:
            ranks.reached.others[rank.host].wait_end()


def arrive(cluster: Cluster, count: int) -> None:
    """Wait until so many have come that nobody has needed yet."""
    listener = cluster._live.ranks.listener if cluster._live.ranks else None
    assert listener is not None

    def spare() -> bool:
        return sum(bool(task.prepared) and task.end is None for task in listener._tasks.values()) == count

    with listener._changed:
        assert listener._changed.wait_for(spare, WITHIN)


def _nobody_is_let_in(cluster: Cluster, hosts: Hosts) -> None:
    """What other hosts reach of this machine's ports is encrypted, and lets nobody in without the key."""
    assert cluster._live.ranks is not None and cluster._live.ranks.host._process is not None
    here = psutil.Process(cluster._live.ranks.host._process.pid)  # beside this process, which has other worlds too
    found = {
        each.laddr.port
        for process in [psutil.Process(), here, *here.children(recursive=True)]
        for each in process.net_connections("tcp4")
        if each.status == psutil.CONN_LISTEN and each.laddr.ip != "127.0.0.1"
    }
    assert len(found) == 9, "the lifeline, and eight sockets of the controller's for engines"
    said = hosts.inside("host3", sys.executable, "-c", KNOCK, *(f"tcp://{hosts.gateway}:{port}" for port in found))
    assert (said.stdout, said.stderr) == ("", "")


NOTEBOOK = """
import sys
sys.path[:0] = {path!r}
import allranks
cluster = allranks.Cluster(join={file!r}, backend="ring", timeout=60).up()
print("up", flush=True)
sys.stdin.read()
"""


def test_a_killed_notebook_leaves_none_of_them(hosts3: Hosts, tmp_path: Path) -> None:
    file = tmp_path / "ranks.json"
    script = NOTEBOOK.format(path=sys.path, file=str(file))
    with (
        started(hosts3, hosts3.names, file, 1),
        subprocess.Popen([sys.executable, "-c", script], stdin=-1, stdout=-1, text=True) as notebook,
    ):
        assert notebook.stdout is not None and notebook.stdout.readline() == "up\n"
        assert all(hosts3.processes(name) for name in hosts3.names)
        notebook.kill()
        assert gone(hosts3, 2 * WITHIN), left(hosts3)
