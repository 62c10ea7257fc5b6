"""The notebook and its hosts lose sight of each other: the ranks go on, and nothing is lost when the way is back."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import psutil
import pytest

from allranks import Cluster
from allranks.errors import CannotStart, NoCluster
from allranks.hosts.ssh import ssh_connection
from allranks.hosts.ssh.remote import RemoteHost
from allranks.machine.hosted_clusters import FILE, hosted_clusters
from allranks.machine.lease import busy_at
from allranks_backends.views import Snapshot
from tests.faults.test_silence import Shown
from tests.hosts.lab import Hosts
from tests.hosts.oddities import ended
from tests.jupyter import Notebook
from tests.shared_memory import shared_memory
from tests.shell import allranks
from tests.waiting import comes_true, eventually

pytestmark = [pytest.mark.hosts, pytest.mark.slow]

WITHIN = 60.0
TRAINS = """
import time
for step in range({steps}):
    print(step)
    log(loss=1 / (step + 1))
    total = mx.distributed.all_sum(mx.ones(4))
    mx.eval(total)
    time.sleep({pause})
total.tolist()"""


@contextmanager
def cut_off(hosts: Hosts) -> Iterator[None]:
    """Within, nothing passes between this machine and the hosts, which reach each other as before."""
    hosts.cut_off(True)
    try:
        yield
    finally:
        hosts.cut_off(False)


def gone(hosts: Hosts, within: float) -> bool:
    """Whether nothing of ours is left on any host within so many seconds."""
    deadline = time.monotonic() + within
    while any(map(hosts.processes, hosts.names)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not any(map(hosts.processes, hosts.names))


def logged_in_again(hosts: Hosts, before: list[int], _now: Snapshot) -> bool:
    return all(hosts.logins(name) > was for name, was in zip(hosts.names, before, strict=False))


def when_reached(cluster: Cluster, change: Callable[[], object]) -> None:
    """Make a change of the world: it is refused while a host is out of reach, as one may be again on a busy machine."""
    deadline = time.monotonic() + WITHIN
    while True:
        assert comes_true(cluster, lambda _: not away(cluster), WITHIN)
        try:
            change()
            return
        except CannotStart:
            if time.monotonic() > deadline:
                raise


def away_is(ranks: list[int]) -> Callable[[Snapshot], bool]:
    return lambda now: [view.rank for view in now.ranks if view.away is not None] == ranks


def away(cluster: Cluster) -> list[int]:
    return [view.rank for view in cluster.snapshot.ranks if view.away is not None]


@pytest.mark.parametrize("backend", ["ring", pytest.param("mpi", marks=pytest.mark.mpi)])
def test_a_gap_during_training_costs_nothing(hosts3: Hosts, backend: str, request: pytest.FixtureRequest) -> None:
    if backend == "mpi":
        request.getfixturevalue("need_mpi")
    seconds, pause = 18, 0.2  # longer than a host waits for a word, and than ssh waits for an answer
    steps = int((seconds + 12) / pause)
    with Cluster(hosts=hosts3.names, backend=backend) as cluster:
        cluster.run("kept = rank * 10")
        pids = [view.pid for view in cluster.snapshot.ranks]
        cell = cluster.begin(TRAINS.format(steps=steps, pause=pause))
        assert comes_true(cluster, lambda now: all(view.state in ("running", "waiting") for view in now.ranks), WITHIN)
        with cut_off(hosts3):
            begun = time.monotonic()
            assert comes_true(cluster, lambda now: all(view.away is not None for view in now.ranks), WITHIN)
            doing = cluster.snapshot.doing(range(3))
            assert "out of reach for" in doing and "reconnecting" in doing
            assert any("its ranks go on" in note for note in cluster.snapshot.notes)
            time.sleep(max(0.0, begun + seconds - time.monotonic()))
        assert comes_true(cluster, lambda now: not away(cluster), WITHIN)
        result = cell.finish(200)
        assert result.ok
        for rank in range(3):
            assert result[rank].stdout.split() == [str(step) for step in range(steps)], "in order, and once"
            assert result[rank].value == [3.0] * 4
            assert (cluster.logged("loss")["rank"] == rank).sum() == steps
        assert cluster.pull("kept") == [0, 10, 20]
        assert [view.pid for view in cluster.snapshot.ranks] == pids
        assert comes_true(cluster, lambda now: not any("out of reach" in note for note in now.notes), WITHIN)
        assert cluster.state == "whole"
        assert cluster.client.ids == [0, 1, 2]
        assert cluster.client[:].apply_sync(os.getpid) == pids


def test_a_notebook_whose_interpreter_was_held_calls_no_host_out_of_reach(hosts3: Hosts) -> None:
    shown = Shown()
    with Cluster(hosts=hosts3.names, backend="ring") as cluster:
        fails = "if rank == 1:\n    raise ValueError\nmx.eval(mx.distributed.all_sum(mx.ones(9)))"
        cell = cluster.begin(fails, screen=shown)
        ctypes.PyDLL(None).sleep(8)  # unlike CDLL, with the GIL; twice as long as a host may be silent
        result = cell.finish(WITHIN)
        assert list(result.errors) == [1] and result[0].unblocked and result[2].unblocked
        assert not away(cluster) and "out of reach" not in shown.text
        assert cluster.run("mx.distributed.all_sum(mx.array(1)).item()").check()[2].value == 3


@pytest.fixture
def talking_shell(hosts3: Hosts) -> Iterator[None]:
    """The login shell of a host prints something first."""
    (hosts3.home("host1") / ".bashrc").write_text("echo Welcome to this host\n")
    hosts3.restart_sshd("host1", HOME=str(hosts3.home("host1")))
    yield
    hosts3.restart_sshd("host1")


def test_an_ssh_client_that_is_killed_is_replaced(hosts3: Hosts, talking_shell: None) -> None:
    with Cluster(hosts=hosts3.names[:2], backend="ring") as cluster:
        cluster.run("kept = rank")
        prepared = prepared_on(cluster)
        for _ in range(2):
            before = [hosts3.logins(name) for name in hosts3.names[:2]]
            for process in psutil.Process().children():
                with suppress(psutil.Error):
                    if process.name() == "ssh":
                        process.kill()
            # That they are away may be over before anybody has looked: the logins stay counted.
            assert comes_true(cluster, partial(logged_in_again, hosts3, before), WITHIN)
            assert comes_true(cluster, lambda now: not away(cluster), WITHIN)
        assert cluster.run("mx.distributed.all_sum(mx.array(rank + 1)).item()")[0].value == 3
        assert cluster.pull("kept") == [0, 1]
        assert eventually(partial(heard_since, cluster, "host1", time.monotonic()))
        when_reached(cluster, lambda: cluster.heal(kill=[0]))  # what was ordered before is done then
        assert prepared_on(cluster) == prepared, "a host is asked once to make itself ready: it makes a folder then"
        when_reached(cluster, lambda: cluster.resize(3))
        assert cluster.run("mx.distributed.all_sum(mx.array(1)).item()")[2].value == 3


def test_a_host_outlives_its_ssh_from_the_moment_that_up_returns(
    hosts3: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ssh client is stopped while the host receives its lease, and killed when `up` returns."""
    keep = RemoteHost.keep
    held: list[threading.Timer] = []

    def keep_later(end: RemoteHost, lease: float | None, *, longer: float) -> Callable[[], object]:
        assert end._connection.login is not None
        ssh = end._connection.login.process
        ssh.send_signal(signal.SIGSTOP)
        held.append(threading.Timer(2, ssh.send_signal, (signal.SIGCONT,)))
        held[-1].start()
        return keep(end, lease, longer=longer)

    monkeypatch.setattr(RemoteHost, "keep", keep_later)
    with Cluster(hosts=["host1"], backend="ring") as cluster:
        assert cluster._live.ranks is not None
        end = cluster._live.ranks.reached.end_at("host1")
        assert isinstance(end, RemoteHost) and end._connection.login is not None
        end._connection.login.process.kill()
        for timer in held:
            timer.cancel()
        assert comes_true(cluster, lambda now: bool(away(cluster)) or now.ranks[0].state == "dead", WITHIN)
        assert comes_true(cluster, lambda now: not away(cluster), WITHIN)
        assert cluster.run("rank")[0].value == 0


HANGS = '#!/bin/sh\n[ ! -e {flag} ] || exec sleep 1000\nexec {python} "$@"\n'


def test_logins_that_hang_while_a_host_is_out_of_reach_are_ended_there(
    hosts3: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh_connection, "ANSWER_WITHIN", 0.0)
    monkeypatch.setattr(ssh_connection, "RECONNECT_WITHIN", (3,))
    flag, script = tmp_path / "flag", tmp_path / "python-hangs"
    script.write_text(HANGS.format(flag=flag, python=shlex.quote(sys.executable)))
    script.chmod(0o755)

    def hanging() -> set[int]:
        found = set()
        for pid in hosts3.processes("host1"):
            with suppress(psutil.Error):
                if psutil.Process(pid).name() == "sleep":
                    found.add(pid)
        return found

    name = f"hosts-{uuid.uuid4().hex[:8]}"  # away, it must not pass for another test's
    try:
        with Cluster(hosts=["host1"], backend="ring", python=str(script), name=name, lease=600) as cluster:
            flag.touch()
            for process in psutil.Process().children():
                with suppress(psutil.Error):
                    if process.name() == "ssh":
                        process.kill()
            assert eventually(hanging)
            first = hanging()
            assert eventually(lambda: hanging() and not hanging() & first), "the next one hangs, and not the one before"
            flag.unlink()
            assert comes_true(cluster, lambda now: not away(cluster), WITHIN)
            assert eventually(lambda: not hanging())
            assert cluster.run("rank")[0].value == 0
    finally:
        ended(hosts3, "host1")


def prepared_on(cluster: Cluster) -> dict[str, object]:
    """What each host has answered when it had made itself ready."""
    assert cluster._live.ranks is not None
    ends = cluster._live.ranks.reached.others
    return {name: end.prepared for name, end in ends.items() if isinstance(end, RemoteHost)}


def heard_since(cluster: Cluster, name: str, since: float) -> bool:
    """Whether a host has answered since then, as it does every second."""
    assert cluster._live.ranks is not None
    end = cluster._live.ranks.reached.others[name]
    assert isinstance(end, RemoteHost)
    return end._connection._heard_at > since


TAKES = """
import socket, sys, time
taken = socket.socket()
taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
while True:
    try:
        taken.bind(("127.0.0.1", int(sys.argv[1])))
        break
    except OSError:
        time.sleep(0.01)
taken.listen()
print("taken", flush=True)
time.sleep(600)
"""


def test_a_port_that_another_program_took_is_named(hosts3: Hosts) -> None:
    name = hosts3.names[0]
    with Cluster(hosts=[name], backend="ring") as cluster:
        cluster.run("kept = rank")
        assert cluster._live.ranks is not None
        port = cluster._live.ranks.reached.end_at(name).lifeline_url.rpartition(":")[2]
        with cut_off(hosts3):
            assert comes_true(cluster, away_is([0]), WITHIN)
            taker = hosts3.begin(name, sys.executable, "-c", TAKES, port)
            hosts3.end_logins(name)
            assert taker.stdout is not None and taker.stdout.readline() == "taken\n"
        said = "The last try failed: another program there has a port"
        assert comes_true(cluster, lambda now: any(said in note for note in now.notes), WITHIN)
        taker.kill()
        assert comes_true(cluster, away_is([]), WITHIN)
        # The rank connects again once a second, which `pull` waits for.
        assert cluster.pull("kept") == [0] and not any("last try" in note for note in cluster.snapshot.notes)


def test_a_value_asked_for_before_the_rank_has_connected_again_is_waited_for(hosts3: Hosts) -> None:
    name = hosts3.names[0]
    with Cluster(hosts=[name], backend="ring") as cluster:
        cluster.run("kept = rank")
        pid = cluster.snapshot.ranks[0].pid
        assert pid is not None
        with cut_off(hosts3):
            assert comes_true(cluster, away_is([0]), WITHIN)
            os.kill(pid, signal.SIGSTOP)  # so that its host is back before it is
            hosts3.end_logins(name)
        assert comes_true(cluster, away_is([]), WITHIN)
        goes_on = threading.Timer(1, os.kill, (pid, signal.SIGCONT))
        goes_on.start()
        assert cluster.pull("kept") == [0]
        goes_on.join()


def test_what_dies_while_nobody_looks_is_known_afterwards(hosts3: Hosts) -> None:
    with Cluster(hosts=hosts3.names[:2], backend="ring") as cluster:
        cluster.run("kept = rank")
        pid = cluster.snapshot.ranks[1].pid
        assert pid is not None
        with cut_off(hosts3):
            assert comes_true(cluster, lambda now: len(away(cluster)) == 2, WITHIN)
            os.kill(pid, signal.SIGKILL)  # the hosts share this machine's processes
            time.sleep(1)
        assert comes_true(cluster, lambda now: now.ranks[1].state == "dead", WITHIN)
        assert "SIGKILL" in (cluster.snapshot.ranks[1].cause or "")
        when_reached(cluster, lambda: cluster.heal(source=0))
        assert cluster.pull("kept") == [0, 0]


def test_a_host_process_that_ended_meanwhile_is_told_from_a_cut_network(hosts3: Hosts) -> None:
    with Cluster(hosts=hosts3.names[:2], backend="ring") as cluster:
        cluster.run("kept = rank")
        parent = psutil.Process(cluster.snapshot.ranks[1].pid).parent()
        assert parent is not None
        parent.kill()
        assert comes_true(cluster, lambda now: now.ranks[1].state == "dead", WITHIN)
        when_reached(cluster, lambda: cluster.heal(source=0))
        assert cluster.pull("kept") == [0, 0]


NOTEBOOK = """
import allranks, sys
cluster = allranks.Cluster(hosts={hosts}, backend={backend!r}, name=sys.argv[1], lease={lease}).up()
cluster.run("kept = rank * 10")
cell = cluster.begin({code!r})
cluster._live.ranks.monitor.wait(lambda: all(rank.report.line for rank in cluster._live.ranks.monitor.ranks), 60)
print("running", flush=True)
sys.stdin.read()
"""


def killed_notebook(names: Sequence[str], name: str, lease: float, code: str, backend: str = "ring") -> None:
    """A notebook that is killed while its cell runs, with a rank on each host in `names`."""
    script = NOTEBOOK.format(hosts=names, lease=lease, code=code, backend=backend)
    with subprocess.Popen(
        [sys.executable, "-c", script, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as notebook:
        assert notebook.stdout is not None
        assert notebook.stdout.readline() == "running\n"
        notebook.kill()


def test_a_world_survives_its_killed_notebook_and_is_attached(hosts3: Hosts) -> None:
    name = f"hosts-{uuid.uuid4().hex[:8]}"
    killed_notebook(hosts3.names, name, 600.0, TRAINS.format(steps=100, pause=0.05))
    cluster = Cluster.attach(name)
    try:
        (cell,) = cluster.adopted_cells()
        result = cell.finish(WITHIN)
        assert [result[rank].value for rank in range(3)] == [[3.0] * 4] * 3
        assert result[2].stdout.split() == [str(step) for step in range(100)]
        assert cluster.pull("kept") == [0, 10, 20]
        assert cluster.run("mx.distributed.all_sum(mx.array(1)).item()")[0].value == 3
        os.kill(cluster.snapshot.ranks[1].pid or 0, signal.SIGKILL)
        assert comes_true(cluster, lambda now: now.ranks[1].state == "dead", WITHIN)
        when_reached(cluster, lambda: cluster.heal(source=0))
        assert cluster.pull("kept") == [0, 0, 20]
    finally:
        cluster.down()
    assert gone(hosts3, 2 * WITHIN)
    with pytest.raises(NoCluster):
        Cluster.attach(name)


def test_a_world_that_another_machine_left_behind_is_named_when_one_starts_beside_it(
    hosts3: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_notebook: Callable[..., Notebook]
) -> None:
    name = f"hosts-{uuid.uuid4().hex[:8]}"
    with monkeypatch.context() as elsewhere:  # this machine does not know how to attach to it
        elsewhere.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
        killed_notebook(hosts3.names, name, 600.0, "rank")
    assert eventually(lambda: all(each.away_since for each in hosted_clusters() if each.name == name))
    notebook = new_notebook()
    notebook.ok("%load_ext allranks")
    up = f"%distributed up --hosts {','.join(hosts3.names)} --backend ring --name {name}"
    said = notebook.ok(up).stdout
    assert re.match(
        rf"{name} also runs on .*: 3 ring ranks of .*, gone for .*; ranks end in \d+ min\. To end it: ", said
    )
    words = shlex.split(said.partition("To end it: allranks ")[2])
    assert words[0] == "down" and set(words[3].split(",")) >= set(hosts3.names)
    done = allranks(*words)
    assert f"{name} has ended: " in done.stdout, done.stderr
    notebook.ok("%distributed down")
    assert "also runs" not in notebook.ok(up).all
    notebook.ok("%distributed down")
    assert gone(hosts3, 2 * WITHIN)


def busy_for(name: str) -> float:
    """Seconds from the end of the notebook to the last sign of a cell, on the host that has given it first."""
    found = []
    for file in Path(tempfile.gettempdir()).glob(f"allranks-*/{FILE}"):  # those of the hosts too
        with suppress(OSError):  # another test's cluster may just have ended
            told = json.loads(file.read_text())
            if told["name"] == name and told["host"] != "localhost" and told["away_since"]:
                found.append(busy_at(map(Path, told["folders"])) - told["away_since"])
    return min(found, default=0.0)


@pytest.mark.parametrize("backend", ["ring", pytest.param("mpi", marks=pytest.mark.mpi)])
def test_a_lease_that_runs_out_leaves_nothing(
    hosts3: Hosts, backend: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    names = hosts3.names
    if backend == "mpi":
        request.getfixturevalue("need_mpi")
        names = sorted(names[:2] * 2)  # those of one host share memory
    go = tmp_path / "go"  # the hosts share this machine's files
    name, lease = f"hosts-{uuid.uuid4().hex[:8]}", 4.0
    code = f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.1)"
    killed_notebook(names, name, lease, code, backend)
    try:
        assert eventually(lambda: busy_for(name) > 2 * lease)
        assert all(hosts3.processes(host) for host in names), "a lease is not counted while a cell runs"
        segments = shared_memory(psutil.Process(pid) for host in hosts3.names for pid in hosts3.processes(host))
        assert bool(segments) == (backend == "mpi")
    finally:
        go.touch()
    assert gone(hosts3, 2 * WITHIN)
    assert not list(filter(os.path.exists, segments))
    with pytest.raises(NoCluster):
        Cluster.attach(name)


def test_stop_and_down_while_a_host_is_away(hosts3: Hosts) -> None:
    cluster = Cluster(hosts=hosts3.names[:2], backend="ring", lease=5.0).up()
    try:
        cell = cluster.begin("import time\nwhile True: time.sleep(0.05)")
        with cut_off(hosts3):
            assert comes_true(cluster, lambda now: len(away(cluster)) == 2, WITHIN)
            threading.Timer(0.5, cell.stop).start()
            with pytest.raises(KeyboardInterrupt, match="out of reach"):
                cell.finish()
        assert comes_true(cluster, lambda now: not away(cluster), WITHIN)
        assert comes_true(cluster, lambda now: all(view.state == "idle" for view in now.ranks), WITHIN)
        assert cluster.run("rank")[1].value == 1
    finally:
        cluster.down()


def test_a_host_that_was_away_for_down_is_ended_when_it_is_reached(hosts3: Hosts) -> None:
    cluster = Cluster(hosts=hosts3.names[:2], backend="ring").up()
    with cut_off(hosts3):
        assert comes_true(cluster, lambda now: len(away(cluster)) == 2, WITHIN)
        cluster.down()
        assert cluster.not_ended == hosts3.names[:2]
        assert all(map(hosts3.processes, hosts3.names[:2]))
    assert gone(hosts3, 2 * WITHIN)
