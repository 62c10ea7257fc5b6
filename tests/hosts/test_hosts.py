"""Worlds over several hosts: real ssh into network namespaces, real rings across them."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import stat
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from allranks import Cluster
from allranks.cluster.start_times import REMOTE
from allranks.errors import AllranksError, CannotStart, UsageError
from allranks.hosts.ssh import many_logins, remote, ssh_connection
from tests.faults.absent import blocked
from tests.hosts.lab import Hosts
from tests.hosts.oddities import ended
from tests.jupyter import Notebook
from tests.shell import allranks
from tests.test_imports import imports_for_ranks
from tests.waiting import comes_true

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(300)]
WITHIN = 60.0
HERE = shlex.quote(sys.executable)
SUM = "mx.distributed.all_sum(mx.ones(10))[0].item()"


def sums(cluster: Cluster) -> list[float]:
    return [rank.value for rank in cluster.run(SUM, timeout=60).check().values()]


def left(hosts: Hosts) -> dict[str, list[int]]:
    return {name: pids for name in hosts.names if (pids := hosts.processes(name))}


def gone(hosts: Hosts, within: float) -> bool:
    deadline = time.monotonic() + within
    while left(hosts) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not left(hosts)


@pytest.fixture
def world(hosts3: Hosts) -> Iterator[Cluster]:
    """One ring rank on each of three hosts."""
    with Cluster(hosts=hosts3.names, backend="ring") as cluster:
        yield cluster
    assert gone(hosts3, WITHIN)


def test_which_ranks_work_elsewhere_since_their_host_lacks_the_notebooks_folder_is_said(
    hosts3: Hosts, tmp_path: Path, new_notebook: Callable[..., Notebook]
) -> None:
    work = tmp_path / "outer" / "work"
    work.mkdir(parents=True)
    hosts3.mounted("host2", "-t", "tmpfs", "none", str(work.parent))
    try:
        notebook = new_notebook(PATH=hosts3.path)
        notebook.ok(f"import os\nos.chdir({str(work)!r})\n%load_ext allranks")
        up = notebook.ok("%distributed up --hosts host1,host2 --backend ring")
        home = notebook.ok("%%distributed\nimport os\nprint(os.getcwd())").by_rank[1].strip()
        assert home != str(work)
        assert (
            f"folders: rank 0 in {work}; rank 1 in {home}. host2 has no {work}: up --sync sends this folder there, "
            "and --cwd names another.\n" in up.stdout
        )
        notebook.ok("%distributed down")
        assert "folders:" not in notebook.ok("%distributed up --hosts host1,host2 --backend ring --cwd /").all
        notebook.ok("%distributed down")
    finally:
        hosts3.unmounted("host2", work.parent)


def test_hosts_are_shown_as_the_hostfile_writes_them(
    hosts3: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "hosts.json"
    file.write_text(json.dumps([{"ssh": name, "user": "root", "port": 22} for name in hosts3.names[:2]]))
    with Cluster(hostfile=file, backend="ring", name="written") as cluster:
        assert [rank.host for rank in cluster.snapshot.ranks] == ["host1", "host2"]
        assert [host.name for host in cluster.snapshot.hosts] == ["host1", "host2"]
        assert "host1" in str(cluster) and "root@host1:22" not in str(cluster)
        listed = json.loads(allranks("list", "--json").stdout)
        assert [each["hosts"] for each in listed if each["name"] == "written"] == [["host1", "host2"]]
        model = tmp_path / "weights"  # all hosts have it: they share this file system
        model.write_bytes(b"1")
        shares = [cluster.share(str(model), source=each) for each in ("host2", "root@host2:22", 1)]
        assert {each.source for each in shares} == {"host2"} and [*shares[0].hosts] == ["host1", "host2"]
        assert "root@" not in str(shares[0])
        monkeypatch.chdir(tmp_path)
        assert [*cluster.sync().hosts] == ["host1", "host2"]
        with pytest.raises(UsageError, match=r"^--from host9: no such rank or host\. Hosts: host1, host2, localhost$"):
            cluster.share(str(model), source="host9")
        cluster.run("import os; os._exit(1)", ranks=[1])
        cluster.heal()
        assert sums(cluster) == [2.0, 2.0]


@pytest.mark.parametrize("each", [1, 2])
def test_a_ring_over_three_hosts(hosts3: Hosts, each: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # A machine that stands still for 4 s costs no login here.
    monkeypatch.setattr(
        ssh_connection, "SILENT_AFTER", WITHIN
    )  # a machine that stands still for 4 s costs no login here
    before = [hosts3.logins(name) for name in hosts3.names]
    with Cluster(hosts=hosts3.names, ranks_per_host=each, backend="ring") as cluster:
        assert sums(cluster) == [3.0 * each] * (3 * each)
        assert [rank.host for rank in cluster.snapshot.ranks] == [name for name in hosts3.names for _ in range(each)]
        assert not imports_for_ranks(cluster), "no rank runs on this machine"
        assert cluster.start_times is not None
        steps = [[step.name for step in cluster.start_times.steps if step.host == name] for name in hosts3.names]
        assert steps == [[*REMOTE, "connect the ranks"]] * 3
        where = cluster.run("import os; os.environ['SSH_CONNECTION'].split()[2]").check()
        assert [rank.value for rank in where.values()] == [hosts3.address(n) for n in hosts3.names for _ in range(each)]
        assert {view.name for view in cluster.snapshot.hosts} == set(hosts3.names)
        assert comes_true(cluster, lambda now: all(view.sent for view in now.links), WITHIN)
        between = [view for view in cluster.snapshot.links if view.link.kind == "ethernet"]
        assert between and all(view.link.interface == "eth0" and view.nominal for view in between)
        within = [view for view in cluster.snapshot.links if view.link.kind == "loopback"]
        assert len(within) == (0 if each == 1 else 6)
        assert all(view.link.interface == "lo" and view.nominal is None for view in within)
    assert gone(hosts3, WITHIN)
    logins = [hosts3.logins(name) - was for name, was in zip(hosts3.names, before, strict=True)]
    assert logins == [1, 1, 1]


def test_the_notebooks_own_machine_can_be_one_of_them(hosts3: Hosts) -> None:
    with Cluster(hosts=["localhost", "host2"], backend="ring") as cluster:
        assert sums(cluster) == [2.0, 2.0]
        assert [rank.host for rank in cluster.snapshot.ranks] == ["localhost", "host2"]


def test_a_hostfile_with_addresses_and_connections(hosts3: Hosts, tmp_path: Path) -> None:
    entries = ", ".join(f'{{"ssh": "{name}", "ips": ["{hosts3.address(name)}"]}}' for name in hosts3.names[:2])
    (tmp_path / "hosts.json").write_text(f'{{"backend": "ring", "envs": ["COLOUR=blue"], "hosts": [{entries}]}}')
    with Cluster(hostfile=tmp_path / "hosts.json", connections=2) as cluster:
        assert sums(cluster) == [2.0, 2.0]
        assert cluster.run("import os; os.environ['COLOUR']").check()[1].value == "blue"


def test_more_ranks_than_a_host_has_cores_for_are_warned_of_before_they_start(hosts3: Hosts) -> None:
    said, size = list[str](), 2 * (os.cpu_count() or 1) + 1
    cluster = Cluster(hosts=[f"{hosts3.names[0]} slots={size}", hosts3.names[1]], backend="ring")
    try:
        assert cluster.up(said.append).size == size + 1
    finally:
        cluster.down()
    assert len(said) == 1 and said[0].startswith(f"{size} ranks share the ")
    assert f"of {hosts3.names[0]} (up to" in said[0]


def test_a_rank_that_dies_is_replaced_on_its_host(world: Cluster, hosts3: Hosts) -> None:
    world.run("weights = mx.full((1000,), rank + 1); mx.eval(weights); before = id(weights)").check()
    pid = world.snapshot.ranks[1].pid
    assert pid
    os.kill(pid, signal.SIGKILL)
    assert comes_true(world, lambda now: now.ranks[1].state == "dead", WITHIN)
    assert "killed by SIGKILL" in (world.snapshot.ranks[1].cause or "")
    told = str(world.heal(source=0))
    assert "rank 1 got the variables of rank 0" in told
    assert world.snapshot.ranks[1].host == "host2"
    values = world.run("weights[0].item(), id(weights) == before").check()
    assert [rank.value[0] for rank in values.values()] == [1, 1, 3]
    assert values[0].value[1] and values[2].value[1], "survivors' arrays are untouched"
    assert sums(world) == [3.0] * 3


def test_a_stuck_rank_elsewhere_is_killed_and_replaced(world: Cluster) -> None:
    cell = world.begin("import os, signal\nif rank == 2: os.kill(os.getpid(), signal.SIGSTOP)", want_values=False)
    follow = threading.Thread(target=cell.finish, daemon=True)
    follow.start()
    assert comes_true(world, lambda now: now.ranks[2].suspended, WITHIN), "its host process says so"
    world.heal(kill=[2])
    follow.join(WITHIN)
    assert sums(world) == [3.0] * 3


def test_the_world_grows_and_shrinks(world: Cluster) -> None:
    world.run("kept = rank").check()
    world.resize(2)
    assert sums(world) == [2.0, 2.0]
    world.resize(3)
    assert sums(world) == [3.0] * 3
    assert world.run("kept", ranks=[0, 1]).check()[1].value == 1


def test_a_collective_is_broken_and_the_world_formed_anew(world: Cluster) -> None:
    world.run("kept = rank").check()
    result = blocked(world, SUM)
    assert list(result.errors) == [1]
    assert result[0].unblocked and result[2].unblocked
    assert sums(world) == [3.0] * 3
    assert world.pull("kept") == [0, 1, 2]


def test_a_cut_link_is_named_and_the_world_goes_on_without_the_host(world: Cluster, hosts3: Hosts) -> None:
    world.run("kept = rank").check()
    cell = world.begin("while True: mx.eval(mx.distributed.all_sum(mx.ones(1000)))", want_values=False)
    outcome: list[BaseException] = []

    def finish() -> None:
        try:
            cell.finish(200)
        except (AllranksError, KeyboardInterrupt) as error:
            outcome.append(error)

    follow = threading.Thread(target=finish, daemon=True)
    follow.start()
    assert comes_true(world, lambda now: all(view.state in ("running", "waiting") for view in now.ranks), WITHIN)
    try:
        hosts3.link("host3", "down")
        assert comes_true(world, lambda now: "out of reach" in now.ranks[2].doing, WITHIN)
        assert hosts3.processes("host3"), "its ranks stay"
        with pytest.raises(CannotStart, match="host3 is out of reach"):
            world.heal(kill=[2])
        follow.join(WITHIN)
        assert not follow.is_alive()
        assert "given up while host3 was out of reach" in (world.snapshot.ranks[2].cause or "")
        world.resize(2)
        assert sums(world) == [2.0, 2.0], "it goes on without the lost host"
    finally:
        hosts3.link("host3", "up")
    world.resize(3)
    assert [rank.host for rank in world.snapshot.ranks] == [*hosts3.names[:2], "host2"]
    assert sums(world) == [3.0] * 3
    assert world.run("kept", ranks=[0, 1]).check()[1].value == 1


def test_a_host_that_was_lost_is_healed_when_it_is_back(world: Cluster, hosts3: Hosts) -> None:
    world.run("kept = rank").check()
    for pid in hosts3.processes("host3"):  # as if it had been switched off
        with suppress(ProcessLookupError):  # a rank ends with its host process
            os.kill(pid, signal.SIGKILL)
    assert comes_true(world, lambda now: now.ranks[2].state == "dead", WITHIN)
    world.heal(source=0)
    assert world.snapshot.ranks[2].host == "host3"
    assert sums(world) == [3.0] * 3
    assert world.pull("kept") == [0, 1, 0]


NOTEBOOK = """
import sys, time
sys.path[:0] = {path!r}
import allranks
cluster = allranks.Cluster(hosts={names!r}, backend="ring", lease=0).up()
print("up", flush=True)
time.sleep(600)
"""


def test_a_killed_notebook_leaves_nothing_on_any_host_without_a_lease(hosts3: Hosts, tmp_path: Path) -> None:
    script = NOTEBOOK.format(path=sys.path, names=hosts3.names)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as notebook:
        assert notebook.stdout is not None and notebook.stdout.readline() == "up\n"
        assert all(hosts3.processes(name) for name in hosts3.names)
        notebook.kill()
    assert gone(hosts3, 2 * WITHIN), left(hosts3)


def test_nothing_listens_without_our_key(world: Cluster, hosts3: Hosts) -> None:
    """Only the rings' own ports are open to other hosts; the ways to the notebook are on loopback and want its key."""
    for name in hosts3.names:
        said = hosts3.inside(name, "ss", "-tlnH").stdout
        for line in said.splitlines():
            address, _, port = line.split()[3].rpartition(":")
            assert address.strip("[]") in ("127.0.0.1", "::1", hosts3.address(name)), line
            assert address == "127.0.0.1" or port == "22", f"{line}: a ring's ports are closed once it is formed"
    assert world._live.ranks is not None
    for end in world._live.ranks.reached.others.values():
        assert stat.S_IMODE(end.directory.stat().st_mode) == 0o700
    here = world._live.ranks.host._process
    assert here is not None
    ours = psutil.Process(here.pid)  # the test's own process has other worlds too, whose mpirun listens
    for process in (psutil.Process(), ours, *ours.children(recursive=True)):
        listening = [each for each in process.net_connections("tcp") if each.status == psutil.CONN_LISTEN]
        assert {each.laddr.ip for each in listening} <= {"127.0.0.1", *map(hosts3.address, hosts3.names)}, process
    secret = world._live.settings.token
    for rank in world.snapshot.ranks:
        told = Path(f"/proc/{rank.pid}/cmdline").read_bytes() + Path(f"/proc/{rank.pid}/environ").read_bytes()
        assert secret.encode() not in told


# MPI.


@pytest.mark.mpi
@pytest.mark.parametrize("each", [1, 2])
def test_mpi_over_three_hosts(hosts3: Hosts, need_mpi: None, each: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh_connection, "SILENT_AFTER", WITHIN)
    before = [hosts3.logins(name) for name in hosts3.names]
    with Cluster(hosts=hosts3.names, ranks_per_host=each, backend="mpi") as cluster:
        assert sums(cluster) == [3.0 * each] * (3 * each)
        assert [rank.host for rank in cluster.snapshot.ranks] == [name for name in hosts3.names for _ in range(each)]
        code = "from mpi4py import MPI\nMPI.COMM_WORLD.allreduce(rank), MPI.Get_processor_name()"
        values = [rank.value for rank in cluster.run(code, timeout=60).check().values()]
        size = 3 * each
        assert values == [(size * (size - 1) // 2, name) for name in hosts3.names for _ in range(each)]
        cell = cluster.begin("while True: mx.eval(mx.distributed.all_sum(mx.ones(100_000)))", want_values=False)
        # What a host sends without it is some kilobytes a second.
        assert comes_true(cluster, lambda now: all((host.sent_rate or 0) > 1e5 for host in now.hosts), WITHIN)
        assert {host.interface for host in cluster.snapshot.hosts} == {"eth0"}
        assert all(view.sent is None for view in cluster.snapshot.links), "what went over which link is not known"
        cell.interrupt()
        cell.finish(WITHIN)
    assert gone(hosts3, WITHIN), left(hosts3)
    logins = [hosts3.logins(name) - was for name, was in zip(hosts3.names, before, strict=True)]
    assert max(logins) <= 2, "ours, and mpirun's"


@pytest.mark.mpi
def test_mpi_ranks_elsewhere_die_and_come_back(hosts3: Hosts, need_mpi: None) -> None:
    with Cluster(hosts=["localhost", "host1", "host2"], backend="mpi") as cluster:
        cluster.run("kept = mx.full((10,), rank); mx.eval(kept)").check()
        os.kill(cluster.snapshot.ranks[2].pid or 0, signal.SIGKILL)
        assert comes_true(cluster, lambda now: now.ranks[2].state == "dead", WITHIN)
        told = str(cluster.heal(source=1))
        assert "ranks 0-1 restarted with all variables" in told
        assert "rank 2 got the variables of rank 1" in told
        assert [rank.value for rank in cluster.run("kept[0].item()").check().values()] == [0, 1, 1]
        assert sums(cluster) == [3.0] * 3
    assert gone(hosts3, WITHIN), left(hosts3)


@pytest.mark.mpi
def test_mpi_over_hosts_is_aborted_in_place(hosts3: Hosts, need_mpi: None) -> None:
    with Cluster(hosts=["localhost", "host1", "host2"], backend="mpi") as cluster:
        pids = [rank.pid for rank in cluster.snapshot.ranks]
        for victim in range(3):
            code = f"if rank == {victim}: raise ValueError('boom')\nmx.eval(mx.distributed.all_sum(mx.ones(100_000)))"
            result = cluster.run(code, timeout=WITHIN)
            assert list(result.errors) == [victim] and sums(cluster) == [3.0] * 3
        cluster.resize(2)
        assert sums(cluster) == [2.0] * 2 and [rank.pid for rank in cluster.snapshot.ranks] == pids[:2]
    assert gone(hosts3, WITHIN), left(hosts3)


@pytest.mark.mpi
def test_from_ring_to_mpi_and_back(world: Cluster, need_mpi: None) -> None:
    world.run("kept = rank + 5").check()
    world.rewire("mpi")
    assert sums(world) == [3.0] * 3
    world.rewire("ring")
    assert sums(world) == [3.0] * 3
    assert world.pull("kept") == [5, 6, 7]


# What goes wrong before a rank runs.


@contextmanager
def refused(hosts: Hosts, message: str, names: list[str] | None = None, **options: object) -> Iterator[None]:
    """`up` says this, naming the host, and the other hosts' processes are ended."""
    with pytest.raises(CannotStart, match=message):
        Cluster(hosts=names or hosts.names, backend="ring", **options).up()  # type: ignore[arg-type]
    yield
    assert gone(hosts, WITHIN), left(hosts)


def test_a_host_that_is_not_there(hosts3: Hosts) -> None:
    with refused(hosts3, r"nowhere\.invalid: unknown host name", ["host1", "nowhere.invalid"]):
        pass


def test_a_host_that_does_not_answer(hosts3: Hosts) -> None:
    hosts3.link("host2", "down")
    try:
        with refused(hosts3, r"host2: (there is no route to it|it does not answer|it accepted)"):
            pass
    finally:
        hosts3.link("host2", "up")


def test_a_host_that_accepts_and_says_nothing(hosts3: Hosts) -> None:
    with socket.create_server((hosts3.gateway, 0)) as silent:
        name = f"{hosts3.gateway}:{silent.getsockname()[1]}"
        with refused(hosts3, rf"{name}: it does not answer", ["host1", name]):
            pass


def test_a_key_that_is_refused(hosts3: Hosts) -> None:
    keys = hosts3.folder / "authorized"
    text = keys.read_text()
    keys.write_text("")
    try:
        with refused(hosts3, "host1: it refused the ssh key. Copy the key there with: ssh-copy-id host1"):
            pass
    finally:
        keys.write_text(text)


def test_a_host_key_that_has_changed(hosts3: Hosts) -> None:
    known = hosts3.folder / "known"
    text = known.read_text()
    lines = text.splitlines()
    keys = [line.split(" ", 1)[1] for line in lines]
    known.write_text("\n".join([f"{lines[0].split()[0]} {keys[1]}", *lines[1:]]) + "\n")
    try:
        said = r"host1: its host key has changed. If that is expected: (ssh-keygen .*-R \S+)\."
        with pytest.raises(CannotStart, match=said) as raised:
            Cluster(hosts=["host1"], backend="ring").up()
        assert gone(hosts3, WITHIN), left(hosts3)
        found = re.search(said, str(raised.value))
        assert found is not None
        subprocess.run(shlex.split(found[1]), check=True, capture_output=True)
        with refused(hosts3, "host1: its host key is not known here", ["host1"]):
            pass
    finally:
        known.write_text(text)


def test_a_host_whose_shell_greets_without_a_newline(hosts3: Hosts, tmp_path: Path) -> None:
    (tmp_path / ".bashrc").write_text("printf 'Welcome!\\n{\"a\": 1}\\nready> '\n")
    hosts3.restart_sshd("host1", HOME=str(tmp_path))
    try:
        with Cluster(hosts=["host1"], backend="ring") as cluster:
            assert sums(cluster) == [1.0]
    finally:
        hosts3.restart_sshd("host1")
    assert gone(hosts3, WITHIN)


@pytest.mark.parametrize(
    "line",
    ["ForceCommand echo This account is for file transfer only.", "Banner {banner}\nForceCommand echo No shell."],
)
def test_a_host_that_runs_something_else_is_quoted(hosts3: Hosts, line: str, tmp_path: Path) -> None:
    (tmp_path / "banner").write_text("Authorised use only.\n")
    hosts3.restart_sshd("host1", line.format(banner=tmp_path / "banner") + "\n")
    try:
        with refused(hosts3, "^host1: (This account is for file transfer only|No shell)\\.$", ["host1"]):
            pass
    finally:
        hosts3.restart_sshd("host1")


def test_a_host_that_takes_passwords_only(hosts3: Hosts) -> None:
    hosts3.restart_sshd("host1", "PubkeyAuthentication no\n")
    try:
        with refused(hosts3, "host1: its sshd accepts passwords only", ["host1"]):
            pass
    finally:
        hosts3.restart_sshd("host1")


def test_no_python_there(hosts3: Hosts) -> None:
    with refused(hosts3, "host1: there is no /usr/bin/true-python there", python="/usr/bin/true-python"):
        pass


def python_that(folder: Path, name: str, body: str) -> str:
    script = folder / name
    script.write_text("#!/bin/sh\n" + textwrap.dedent(body))
    script.chmod(0o755)
    return str(script)


NAPS = "import sys, time\nif 'allranks.host_process.host' in sys.orig_argv: time.sleep(1000)\n"
HANGS = {
    "itself": ("exec sleep 1000", "its Python did not start within 2 s"),
    "in a script": ("sleep 1000\nexit 1", "its Python did not start within 2 s"),
    "and ends with nothing": ("trap '' TERM HUP\nsleep 1000 | sleep 1000", "its Python did not start within 2 s"),
    "in the host process": (f'PYTHONPATH={{naps}}:$PYTHONPATH exec {HERE} "$@"', "but did not answer within"),
}


@pytest.mark.parametrize(("body", "said"), HANGS.values(), ids=HANGS)
def test_a_python_that_hangs_is_ended_on_its_host(
    hosts3: Hosts, tmp_path: Path, body: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "STARTS_WITHIN", 2.0)
    monkeypatch.setattr(many_logins, "READY_WITHIN", 12.0)
    (tmp_path / "sitecustomize.py").write_text(NAPS)
    python = python_that(tmp_path, "python-hangs", body.format(naps=tmp_path))
    try:
        with refused(hosts3, f"^host1: .*{said}", ["host1"], python=python):
            pass
    finally:
        ended(hosts3, "host1")


def test_allranks_is_not_installed_there(hosts3: Hosts, tmp_path: Path) -> None:
    """The notebook's own machine has it; the hosts, which are those with an ssh connection, do not."""
    python = python_that(
        tmp_path,
        "python-without",
        f'[ -n "$SSH_CONNECTION" ] && exec {HERE} -I -S "$@"\nexec {HERE} "$@"',
    )
    with refused(hosts3, f"host1: allranks is not installed for {python} there", python=python):
        pass


def test_a_disk_that_is_full(hosts3: Hosts, tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(full)], check=True)
    hosts3.restart_sshd("host2", TMPDIR=str(full))
    try:
        with refused(hosts3, r"^host2: its disk is full \(where TMPDIR points, or /tmp\)\.$"):
            pass
        assert not list(full.iterdir()), "what was begun there is taken away"
    finally:
        hosts3.restart_sshd("host2")
        subprocess.run(["umount", str(full)], check=True)


def test_another_python_there(hosts3: Hosts, tmp_path: Path) -> None:
    """A version that is not installed here: that of a Python which says so."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\nif 'SSH_CONNECTION' in os.environ: sys.version_info = (3, 9, 1, 'final', 0)\n"
    )
    python = python_that(tmp_path, "python-3.9", f'PYTHONPATH={tmp_path}:$PYTHONPATH exec {HERE} "$@"')
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    said = rf"host1 differs from this notebook:\n[\s\S]*python .* 3\.9\.1 +use a Python {here} there"
    with refused(hosts3, said, python=python):
        pass


def test_a_host_whose_ssh_knows_no_address(hosts3: Hosts) -> None:
    """Through a ProxyCommand (or over IPv6) ssh's own address is none that a ring could use; the hosts have others."""
    config = hosts3.folder / "config"
    text = config.read_text()
    inside = f"ip netns exec {hosts3.space('host2')} unshare --uts sh -c"
    command = f"hostname host2 && exec /usr/sbin/sshd -i -f {hosts3.home('host2') / 'sshd_config'}"
    entry = f"Host far\n  HostKeyAlias host2\n  ProxyCommand {inside} '{command}'\n"
    config.write_text(f"{entry}Host astray\n  ProxyCommand /no/such/program\n{text}")
    try:
        with Cluster(hosts=["host1", "far"], backend="ring") as cluster:
            assert cluster.run("import os; os.environ['SSH_CONNECTION']").check()[1].value.startswith("UNKNOWN")
            assert sums(cluster) == [2.0, 2.0]
        said = r"astray: its ProxyJump or ProxyCommand in ~/.ssh/config does not get"
        with refused(hosts3, said, ["host1", "astray"]):
            pass
    finally:
        config.write_text(text)


def test_other_versions_there(hosts3: Hosts, tmp_path: Path) -> None:
    lies = tmp_path / "lies"
    lies.mkdir()
    (lies / "sitecustomize.py").write_text(
        "import importlib.metadata as m, os, sys\n"
        "real = m.version\n"
        "if 'SSH_CONNECTION' in os.environ:\n"
        "    m.version = lambda name: '0.20.1' if name == 'mlx' else real(name)\n"
    )
    python = python_that(tmp_path, "python-old", f'PYTHONPATH={lies}:$PYTHONPATH exec {HERE} "$@"')
    with refused(
        hosts3,
        r"host1 differs from this notebook:\n[\s\S]*mlx +\S+ +0.20.1 +there: .* -m pip install mlx==",
        python=python,
    ):
        pass
