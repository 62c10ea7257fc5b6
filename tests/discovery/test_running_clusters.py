"""`allranks list` and `allranks down`: clusters whose notebooks live elsewhere, or not any more."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from allranks import Cluster, __version__
from allranks.discovery.running_clusters import Ending, OnHost, RunningCluster, end_cluster
from allranks.host_process.describe_for_shell import Description
from allranks.machine.hosted_clusters import FILE, HOST_MODULE, HOST_PROCESS, HostedCluster, end, hosted_clusters
from allranks.machine.process_identity import identity_of
from allranks.messages.host_messages import DescribeCluster
from tests.shell import WITHIN, allranks, described_as
from tests.waiting import eventually

KEEPS = """
import sys, time, allranks
with_name = allranks.Cluster(2, backend="ring", keep=True, name=sys.argv[1]).up()
print("up", flush=True)
time.sleep(600)
"""


def listed(name: str) -> list[dict[str, Any]]:
    done = allranks("list", "--json")
    assert done.returncode == 0, done.stderr
    return [each for each in json.loads(done.stdout) if each["name"] == name]


class Script:
    """A program that keeps a cluster of its own."""

    def __init__(self) -> None:
        self.name = f"shell{os.getpid()}-{time.monotonic_ns()}"
        line = [sys.executable, "-c", KEEPS, self.name]
        self.process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None and self.process.stdout.readline() == "up\n"
        self.described = described_as(self.name)
        self.pids = [int(pid) for pid, _ in self.described.processes.values()]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(WITHIN)


@pytest.fixture
def script() -> Iterator[Script]:
    made = Script()
    yield made
    made.kill()
    allranks("down", made.name, "--force")


def ended(pids: list[int], within: float = WITHIN) -> bool:
    processes = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    return not psutil.wait_procs(processes, within)[1]


@pytest.mark.slow
def test_one_that_outlives_its_notebook_is_listed_and_ended(script: Script) -> None:
    (found,) = listed(script.name)
    assert (found["size"], found["backend"], found["hosts"], found["attached"]) == (2, "ring", ["localhost"], True)
    assert {"rank 0", "rank 1"} < set(found["running"]["localhost"])
    refused = allranks("down", script.name)
    assert refused.returncode == 2 and f"process {script.process.pid}" in refused.stderr and "--force" in refused.stderr
    script.kill()
    deadline = time.monotonic() + WITHIN
    while (found := listed(script.name)[0])["attached"] and time.monotonic() < deadline:
        pass
    assert 11 * 3600 < found["ends_in"] <= 12 * 3600 and found["runs_a_cell"] is False
    assert "gone for" in allranks("list").stdout
    folder = Path(script.described.folders[0])
    done = allranks("down", script.name)
    assert (done.returncode, done.stdout) == (0, f"{script.name} has ended: 2 ranks on localhost.\n"), done.stderr
    assert ended(script.pids) and not folder.exists() and not listed(script.name)
    again = allranks("down", script.name)
    assert again.returncode == 2 and "was found" in again.stderr


@pytest.mark.slow
def test_files_of_a_cluster_whose_processes_were_killed_are_removed(script: Script) -> None:
    host, _ = script.described.processes[HOST_PROCESS]
    script.kill()
    psutil.Process(host).kill()
    assert ended(script.pids), "ranks end with their host process"
    assert not listed(script.name)
    folder = Path(script.described.folders[0])
    assert folder.exists()
    done = allranks("down", script.name)
    assert done.stdout == f"{script.name} has ended: no rank was running.\n", done.stderr
    assert not folder.exists()


@pytest.mark.slow
def test_of_two_with_one_name_one_is_chosen_by_its_id(script: Script, ring2: Cluster) -> None:
    with Cluster(1, backend="ring", name=script.name):
        assert eventually(lambda: len(listed(script.name)) >= 2)
        refused = allranks("down", script.name, "--force")
        assert refused.returncode == 2 and "2 clusters are named" in refused.stderr
        assert allranks("down", script.described.cluster[:6], "--force").returncode == 0, "it may be cut short"
        assert [each["size"] for each in listed(script.name)] == [1]
    assert ring2.run("rank").check()[1].value == 1, "others go on"


@pytest.mark.parametrize("words", [["down"], ["down", "a", "b"], ["list", "--hosts"]])
def test_what_is_no_command_is_refused(words: list[str]) -> None:
    assert allranks(*words).returncode == 2


@pytest.mark.slow  # each is a login
def test_a_host_that_cannot_be_asked_is_named() -> None:
    done = allranks("list", "--hosts", "no-such-host.invalid")
    assert done.returncode == 1 and "no-such-host.invalid could not be asked" in done.stderr
    done = allranks("down", "nothing", "--json", "--hosts", "no-such-host.invalid")
    assert "no-such-host.invalid could not be asked" in json.loads(done.stdout)["refused"]
    assert done.returncode == 2 and "no-such-host.invalid could not be asked" in done.stderr


def described(**fields: Any) -> HostedCluster:
    told: dict[str, Any] = {
        "cluster": "1234",
        "name": "main",
        "backend": "ring",
        "size": 2,
        "hosts": ["mac1"],
        "logins": {"mac1": sys.executable},
        "host": "mac1",
        "notebook": "process 7 on laptop",
        "python": sys.executable,
        "node": platform.node(),
        "processes": {HOST_PROCESS: identity_of()},
        "since": time.time() - 7200,
    }
    return HostedCluster(**{**told, **fields})


def test_files_of_others_are_passed_over(tmp_path: Path) -> None:
    mine, theirs, damaged = tmp_path / "a", tmp_path / "b", tmp_path / "c"
    for folder in (mine, theirs, damaged):
        folder.mkdir(mode=0o700)
    described(folders=[str(mine)]).write()
    described(folders=[str(theirs)], node="another machine, with the same files").write()
    (damaged / FILE).write_text('{"cluster": 7')
    (damaged / "d").mkdir()
    (damaged / "d" / FILE).write_text('["nothing of ours"]')
    found = hosted_clusters([mine, theirs, damaged, damaged / "d", tmp_path / "e"])
    assert [each.folders for each in found if str(tmp_path) in str(each.folders)] == [[str(mine)]]
    assert next(each for each in found if each.folders == [str(mine)]).running == [HOST_PROCESS]


@pytest.mark.slow
def test_a_cluster_of_another_version_is_named_with_that_version_and_its_host_counts_as_asked(tmp_path: Path) -> None:
    newer, older = tmp_path / "allranks-newer", tmp_path / "allranks-older"
    for folder, version in ((newer, "9.9.9"), (older, None)):
        folder.mkdir(mode=0o700)
        described(name=folder.name, cluster=folder.name, folders=[str(folder)], version=version).write()
        told = json.loads((folder / FILE).read_text())
        del told["hosts"]
        (folder / FILE).write_text(json.dumps(told))
    line, environment = [sys.executable, "-m", HOST_MODULE], {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=environment) as host:
        try:
            done, ended = allranks("list"), allranks("down", "allranks-newer")
        finally:
            host.kill()
    assert "could not be asked" not in done.stderr and done.returncode == 0
    said = f"allranks-newer on localhost runs with allranks 9.9.9, which this one ({__version__}) cannot read."
    assert f"allranks: {said} There: {sys.executable} -m allranks list\n" in done.stderr
    assert "allranks-older on localhost runs with an older version of allranks, which this one" in done.stderr
    assert ended.returncode == 2 and said in ended.stderr


def test_a_description_with_fields_of_a_newer_version_is_read(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    described(name="newer", folders=[str(tmp_path)]).write()
    told = json.loads((tmp_path / FILE).read_text())
    (tmp_path / FILE).write_text(json.dumps({**told, "new": 1}))
    assert [each.name for each in hosted_clusters([tmp_path]) if each.folders == [str(tmp_path)]] == ["newer"]


def test_a_folder_that_others_can_write_in_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As /tmp is root's own, a link there to /tmp itself had root end, and delete, what anybody had written down."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    open_to_all, copied = tmp_path / "open", tmp_path / "allranks-copied"
    for folder, mode in ((open_to_all, 0o777), (copied, 0o700)):
        folder.mkdir()
        folder.chmod(mode)
    forged = described(name="forged", folders=[str(open_to_all), "/etc"])
    forged.write()
    shutil.copy(open_to_all / FILE, copied)
    (tmp_path / "allranks-link").symlink_to(open_to_all)
    assert not [each for each in hosted_clusters([open_to_all]) if each.name == "forged"]


def test_one_whose_notebook_has_another_tmpdir_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "allranks-main-x"
    folder.mkdir(mode=0o700)
    described(name="elsewhere", folders=[str(folder)]).write()
    line, environment = [sys.executable, "-m", HOST_MODULE], {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=environment) as host:
        try:
            found = hosted_clusters()
        finally:
            host.kill()
    assert [each.folders for each in found if each.name == "elsewhere"] == [[str(folder)]]


def test_the_end_of_what_is_left_spares_the_file_of_the_next_cluster_of_that_name(tmp_path: Path) -> None:
    folder, also, attach = tmp_path / "allranks-main-x", tmp_path / "allranks-1234", tmp_path / "main.json"
    for each in (folder, also):
        each.mkdir()
    attach.write_text("the next one's")
    ended_before = identity_of(os.getpid())[1] - 3600
    left = described(processes={HOST_PROCESS: (os.getpid(), ended_before)}, folders=[*map(str, (folder, also, attach))])
    assert end(left) == []
    assert [each.exists() for each in (folder, also, attach)] == [False, False, True]


def test_a_number_that_is_no_ranks_is_not_written_down(tmp_path: Path) -> None:
    """The head names a launcher's ranks by number; the number of one that has ended may be another process's."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        try:
            description = Description()
            order = DescribeCluster(
                "1234", "main", "mpi", 1, ["mac1"], {}, "mac1", "", sys.executable, {"rank 0": other.pid}
            )
            description.take(order)
            description.update([tmp_path], {}, 0.0, None)
        finally:
            other.kill()
    assert list(json.loads((tmp_path / FILE).read_text())["processes"]) == [HOST_PROCESS]


def test_of_one_name_the_one_that_runs_is_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = replace(described(cluster="gone", host="localhost", logins={}), folders=["a"])
    lives = described(
        cluster="lives", host="mac1", logins=dict.fromkeys(["mac1", "mac2"], "python"), away_since=1.0, folders=["b"]
    )
    parts = [OnHost(gone, []), OnHost(lives, [HOST_PROCESS, "rank 0"])]
    asked: list[str] = []

    def answer(_: object, what: str) -> tuple[dict[str, list[object]], dict[str, str]]:
        asked.append(what)
        return {"localhost": ["rank 0"]}, {}

    monkeypatch.setattr("allranks.discovery.running_clusters._ask", lambda pythons: (parts if pythons else [], {}, []))
    monkeypatch.setattr("allranks.discovery.running_clusters._run", answer)
    ending = end_cluster("main")
    assert asked == ["lives"]
    assert ending.unreached == {"mac2": "it was not named with --hosts"}, "its ranks there go on"


def test_the_files_of_all_of_one_name_are_removed_where_none_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [
        OnHost(replace(described(cluster=name, host="localhost", logins={}), folders=[name], since=since), [])
        for name, since in (("old", 1.0), ("newest", 3.0), ("older", 2.0))
    ]
    asked: list[str] = []

    def answer(_: object, what: str) -> tuple[dict[str, list[object]], dict[str, str]]:
        asked.append(what)
        return {"localhost": []}, {}

    monkeypatch.setattr("allranks.discovery.running_clusters._ask", lambda pythons: (parts if pythons else [], {}, []))
    monkeypatch.setattr("allranks.discovery.running_clusters._run", answer)
    assert end_cluster("main", force=True).id == "newest"
    assert sorted(asked) == ["newest", "old", "older"]


def test_a_machine_with_two_names_is_asked_once(ring2: Cluster) -> None:
    by, name = f"process {os.getpid()} ", ring2.name
    assert eventually(lambda: [each for each in hosted_clusters() if each.name == name and by in each.notebook])
    found = json.loads(allranks("list", "--json", "--hosts", f"127.0.0.1,{platform.node()}").stdout)
    mine = [each for each in found if each["name"] == name and by in each["notebook"]]
    assert [list(each["running"]) for each in mine] == [["localhost"]]


@pytest.mark.parametrize(
    ("fields", "running", "said"),
    [
        ({}, [HOST_PROCESS, "rank 0"], "process 7 on laptop"),
        ({"away": 120, "lease": 3600}, [HOST_PROCESS, "rank 0"], "gone for 2 min; ranks end in 58 min"),
        ({"away": 120, "lease": 60}, ["controller", HOST_PROCESS], "gone for 2 min; its lease has ended"),
        ({"away": 120, "lease": None}, [HOST_PROCESS, "rank 0"], "gone for 2 min; ranks stay until they are ended"),
        ({"away": 120, "lease": 60, "busy": 1}, [HOST_PROCESS, "rank 0"], "gone for 2 min; a cell runs"),
        ({"lease": 60}, ["rank 0"], "gone; no host process on localhost"),
        ({"lease": None}, ["rank 0"], "gone; ranks stay until they are ended; no host process on localhost"),
    ],
)
def test_what_is_said_of_the_notebook(fields: dict[str, Any], running: list[str], said: str) -> None:
    now = time.time()
    away, busy = fields.pop("away", None), fields.pop("busy", None)
    fields |= {"away_since": now - away} if away else {}
    fields |= {"busy_at": now - busy} if busy else {}
    assert RunningCluster([OnHost(described(**fields), running)]).notebook == said


def test_the_machine_of_the_notebook_knows_best_whether_it_is_there() -> None:
    here, there = described(host="localhost", away_since=time.time()), described()
    parts = [OnHost(there, [HOST_PROCESS]), OnHost(here, [HOST_PROCESS])]
    assert not RunningCluster(parts).attached
    assert RunningCluster([parts[0], OnHost(here, [])]).attached, "what a host process wrote before it was killed"


def test_ranks_of_mpirun_are_written_down(mpi2: Cluster) -> None:
    deadline = time.monotonic() + WITHIN
    ours, names = f"process {os.getpid()} on {platform.node()}", set[str]()
    while not {"rank 0", "rank 1", "launcher"} <= names:
        assert time.monotonic() < deadline, names
        found = [each for each in hosted_clusters() if (each.notebook, each.backend) == (ours, "mpi")]
        names = {name for each in found for name in each.running}


def test_the_end_in_words() -> None:
    assert str(Ending("main", "1", {"mac1": 1, "localhost": 0, "mac2": 3}, {})) == (
        "main has ended: 1 rank on mac1, 3 ranks on mac2."
    )
    assert str(Ending("main", "1", {"localhost": 0}, {})) == "main has ended: no rank was running."
