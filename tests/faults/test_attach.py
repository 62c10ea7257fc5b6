"""A kept cluster outlives its notebook; another takes it over, with the cell that was running."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from argparse import Namespace
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from allranks import Cluster
from allranks.errors import CellFailed, NoCluster, UsageError, WorldBroken
from allranks.head.state.monitor import Monitor
from allranks.head.world.detached_cluster_file import detached_file
from allranks.machine.lease import BUSY_STATUS
from allranks.magics.verbs import Verbs
from tests.faults.stop import running
from tests.shell import allranks
from tests.waiting import WITHIN, comes_true, eventually

pytestmark = pytest.mark.slow

FIRST_NOTEBOOK = """
import allranks, sys
cluster = allranks.Cluster(2, backend="ring", keep=True, name=sys.argv[1], check="off", ordered=True).up()
cluster.run("a = mx.arange(4) + rank")
cell = cluster.begin('''import time
print("early")
while not os.path.exists(go): time.sleep(0.05)
print("late")
mx.distributed.all_sum(a).tolist()''' .replace("go", repr(sys.argv[2])).replace("import time", "import os, time"))
assert cluster._live.ranks.monitor.wait(lambda: all(rank.report.line for rank in cluster._live.ranks.monitor.ranks), 60)
print("running", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def orphaned(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[str, Path]]:
    """The name of a kept cluster whose notebook was killed in mid-cell, and the file that lets the cell end."""
    name, go = f"kept-{uuid.uuid4().hex[:8]}", tmp_path / "go"
    notebook = subprocess.Popen(
        [sys.executable, "-c", getattr(request, "param", FIRST_NOTEBOOK), name, str(go)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert notebook.stdin is not None and notebook.stdout is not None
    try:
        assert notebook.stdout.readline() == "running\n"
    finally:
        notebook.send_signal(signal.SIGKILL)
        notebook.wait()
        notebook.stdin.close()
        notebook.stdout.close()
    yield name, go
    try:
        cluster = Cluster.attach(name)
    except NoCluster:
        return
    cluster.down()


def test_the_running_cell_is_followed_to_its_end(orphaned: tuple[str, Path]) -> None:
    name, go = orphaned
    cluster = Cluster.attach(name)
    try:
        assert comes_true(cluster, running(0, 1), WITHIN)
        assert (cluster.check, cluster.ordered) == ("off", True), "as the first notebook asked for"
        (cell,) = cluster.adopted_cells()
        go.touch()
        result = cell.finish(WITHIN)
        assert result.ok
        assert result[0].stdout == result[1].stdout == "early\nlate\n", "what was printed before is there too"
        assert list(cluster.printed().lines(1)) == ["early\n", "late\n"]
        assert [a.tolist() for a in cluster.pull("a")] == [[0, 1, 2, 3], [1, 2, 3, 4]]
        assert cluster.run("mx.distributed.all_sum(a).tolist()")[0].value == [1, 3, 5, 7]
    finally:
        cluster.down()


def test_a_cell_that_ended_unseen_is_still_shown(orphaned: tuple[str, Path]) -> None:
    name, go = orphaned
    go.touch()
    cluster = Cluster.attach(name)
    try:
        (cell,) = cluster.adopted_cells()
        assert cell.finish(WITHIN).ok
    finally:
        cluster.down()


TWO_CELLS = """
import allranks, sys
cluster = allranks.Cluster(2, backend="ring", keep=True, name=sys.argv[1]).up()
wait = "import os, time\\nwhile not os.path.exists(" + repr(sys.argv[2]) + "): time.sleep(0.05)\\n"
cluster.begin(wait + "1 / 0", ranks=[0])
cluster.begin(wait + "print('the other')", ranks=[1])
assert cluster._live.ranks.monitor.wait(lambda: all(rank.report.line for rank in cluster._live.ranks.monitor.ranks), 60)
print("running", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("orphaned", [TWO_CELLS], indirect=True)
def test_a_cell_that_failed_hides_no_other(orphaned: tuple[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    name, go = orphaned
    verbs = Verbs()
    verbs.shell = verbs.cluster = verbs.ended = verbs.notifier = None
    go.touch()
    with pytest.raises(CellFailed, match="rank 0 raised ZeroDivisionError"):
        verbs._attach(Namespace(name=name))
    assert verbs.cluster is not None
    try:
        shown = capsys.readouterr().out
        assert "cell 1 of the previous notebook:" in shown and "rank 1 │ the other" in shown
    finally:
        verbs.cluster.down()


def test_an_interpreter_that_only_the_hosts_have_does_not_matter(orphaned: tuple[str, Path]) -> None:
    """The ranks run already."""
    name, go = orphaned
    go.touch()
    kept = json.loads(detached_file(name).read_text())
    kept["settings"]["python"] = "/only/on/the/hosts/python"
    detached_file(name).write_text(json.dumps(kept))
    cluster = Cluster.attach(name)
    try:
        (cell,) = cluster.adopted_cells()
        assert cell.finish(WITHIN).ok and cluster.size == 2
    finally:
        cluster.down()


def test_an_adopted_cluster_heals_and_goes_down_whole(orphaned: tuple[str, Path]) -> None:
    name, go = orphaned
    go.touch()
    cluster = Cluster.attach(name)
    for cell in cluster.adopted_cells():
        cell.finish(WITHIN)
    pids = [rank.pid for rank in cluster.snapshot.ranks]
    os.kill(pids[1] or 0, signal.SIGKILL)
    assert cluster._live.ranks is not None
    assert cluster._live.ranks.monitor.wait(lambda: cluster.state == "broken", WITHIN)
    assert "rank 1 got the variables of rank 0" in str(cluster.heal(source=0))
    assert [a.tolist() for a in cluster.pull("a")] == [[0, 1, 2, 3]] * 2
    cluster.down()
    assert eventually(lambda: not any(psutil.pid_exists(pid or 0) for pid in pids))
    with pytest.raises(NoCluster, match=f"no detached cluster named '{name}'"):
        Cluster.attach(name)


def test_two_notebooks_do_not_hold_one_cluster(orphaned: tuple[str, Path]) -> None:
    name, go = orphaned
    go.touch()
    first = Cluster.attach(name)
    try:
        with pytest.raises(NoCluster, match="is attached to the cluster"):
            Cluster.attach(name)
        with pytest.raises(UsageError, match="is already up"):
            Cluster(2, keep=True, name=name).up()
    finally:
        first.down()


def test_the_example_of_the_documentation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))  # another cluster may have its name
    text = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
    section = text.partition("## Leave a cluster running")[2]
    for number, example in enumerate(re.findall(r"```python\n(.*?)```", section, re.DOTALL)[:2]):
        (tmp_path / f"{number}.py").write_text(example)
    subprocess.run([sys.executable, "0.py"], cwd=tmp_path, timeout=200, check=True)
    try:
        second = subprocess.run(
            [sys.executable, "1.py"], cwd=tmp_path, timeout=200, check=True, stdout=subprocess.PIPE, text=True
        )
    finally:
        allranks("down", "long", "--force")
    assert second.stdout == "".join(f"{step}\n" for step in range(10)) + " 9\n"


CHANGING_NOTEBOOK = """
import contextlib, os, signal, sys
import allranks
from allranks.head.world import checkpoints, forming, healing
from allranks.head.world.ranks import Ranks

def dies_in(owner, name, *, after=False):
    function = getattr(owner, name)
    def dies(*args, **kwargs):
        if after:
            function(*args, **kwargs)
        os.kill(os.getpid(), signal.SIGKILL)
    setattr(owner, name, dies)

def stopped_after(owner, name):
    function = getattr(owner, name)
    def stopped(*args):
        function(*args)
        raise KeyboardInterrupt
    setattr(owner, name, stopped)

cluster = allranks.Cluster(3, backend="ring", keep=True, name=sys.argv[1]).up()
cluster.run("held = rank * 10").check()
"""
KILLED = """
os.kill(cluster.snapshot.ranks[2].pid, signal.SIGKILL)
assert cluster._live.ranks.monitor.wait(lambda: cluster.state == "broken", 60)
"""
STOPPED = """
import atexit
from allranks.errors import CellInterrupted
atexit.register(os.kill, os.getpid(), signal.SIGKILL)
stopped_after(healing, '_end_all')
with contextlib.suppress(CellInterrupted):
"""
STEPS = ["Ranks, 'launch', after=True", "forming, 'form'", "forming, 'form', after=True", "checkpoints, 'copy'"]
RESTART = ["healing, '_end_all', after=True", "Ranks, 'launch', after=True", "forming, 'form', after=True"]
CHANGES = [
    *[(f"{KILLED}\ndies_in({step})\ncluster.heal(source=0)", step, [0, 10, 0]) for step in STEPS],
    *[(f"dies_in({step})\ncluster.resize(4, source=0)", step, [0, 10, 20]) for step in STEPS],
    *[(f"dies_in({step})\ncluster.resize(2)", step, [0, 10]) for step in STEPS[1:3]],
    *[(f"dies_in({step})\ncluster.rewire('mpi')", step, [0, 10, 20]) for step in RESTART],
    (f"{STOPPED}    cluster.rewire('mpi')", "stopped", [0, 10, 20]),
]


@pytest.mark.parametrize(
    ("change", "held"),
    [pytest.param(change, held, id=f"{change.split('cluster.')[-1]} {step}") for change, step, held in CHANGES],
)
def test_what_a_killed_notebook_was_changing_is_finished_by_the_next(
    change: str, held: list[int], need_mpi: None
) -> None:
    name = f"changing-{uuid.uuid4().hex[:8]}"
    done = subprocess.run([sys.executable, "-c", CHANGING_NOTEBOOK + change, name], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    cluster = Cluster.attach(name)
    try:
        assert cluster._live.ranks is not None
        if cluster._live.ranks.owed or any(rank.state == "dead" for rank in cluster.snapshot.ranks):
            with pytest.raises(WorldBroken, match="heal"):
                cluster.run("held")
            cluster.heal(source=None if "rewire" in change else 0)
        assert cluster.pull("held") == [*held, *[0] * (cluster.size - len(held))]
        assert cluster.run("mx.distributed.all_sum(mx.array(1)).item()")[0].value == cluster.size
        assert not cluster.heal().changed
    finally:
        cluster.down()


UNACKNOWLEDGED = """
from allranks.lifeline import head_end
head_end.ACKNOWLEDGED_WITHIN = 3600.0
cluster.run("more = rank").check()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_cell_whose_end_was_not_acknowledged_is_over_after_attach(monkeypatch: pytest.MonkeyPatch) -> None:
    name, take = f"ended-{uuid.uuid4().hex[:8]}", Monitor._take_new
    done = subprocess.run([sys.executable, "-c", CHANGING_NOTEBOOK + UNACKNOWLEDGED, name], capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr

    def takes_long(monitor: Monitor, rank: Any, event: Any, buffers: Any) -> None:
        time.sleep(0.3)
        take(monitor, rank, event, buffers)

    monkeypatch.setattr(Monitor, "_take_new", takes_long)
    cluster = Cluster.attach(name)
    try:
        assert cluster.pull("more") == [0, 1, 2]
    finally:
        cluster.down()


FORKED = """
cluster.run("import os, time\\nif not os.fork(): time.sleep(600)", ranks=2).check()
"""


def test_the_end_of_a_rank_whose_forked_process_goes_on_ends_no_other() -> None:
    """It has the rank's descriptors, with which the host process holds sockets."""
    name = f"forked-{uuid.uuid4().hex[:8]}"
    notebook = CHANGING_NOTEBOOK + FORKED + KILLED + "os.kill(os.getpid(), signal.SIGKILL)"
    done = subprocess.run([sys.executable, "-c", notebook, name], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    cluster = Cluster.attach(name)
    try:
        cluster.heal()
        assert cluster.pull("held", ranks=[0, 1]) == [0, 10]
    finally:
        cluster.down()


def test_attach_names_what_there_is() -> None:
    with pytest.raises(NoCluster, match="--keep"):
        Cluster.attach("no-such-cluster")


def test_a_damaged_file_is_called_so_and_by_its_path() -> None:
    name = f"kept-{uuid.uuid4().hex[:8]}"
    file = detached_file(name)
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    for damage in ('{"settings": {"na', "[]", '{"ranks": []}'):
        file.write_text(damage)
        try:
            with pytest.raises(NoCluster, match=f"is damaged or from another version.*rm {file}"):
                Cluster.attach(name)
        finally:
            file.unlink()


ENDS_SAVED = """
import allranks, os, signal, sys
name, folder = sys.argv[1:]
cluster = allranks.Cluster(2, backend="ring", lease="1s", save=folder, name=name).up()
cluster.run("a = mx.arange(4) + rank").check()
print(cluster._live.ranks.host.process[0], flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("writable", [True, False])
def test_what_ranks_hold_is_saved_before_a_lease_ends_them(tmp_path: Path, writable: bool) -> None:
    name, folder = f"leased-{uuid.uuid4().hex[:8]}", tmp_path / "states" / "a"
    if not writable:
        folder.parent.mkdir()
        folder.write_text("a file")
    notebook = [sys.executable, "-c", ENDS_SAVED, name, str(folder)]
    done = subprocess.run(notebook, stdout=subprocess.PIPE, text=True)
    host, says = int(done.stdout), detached_file(f"{name}-save").with_suffix(".log")
    if writable:
        assert eventually(lambda: not psutil.pid_exists(host))
        assert eventually(lambda: says.read_text().endswith(f"{name} has ended.\n")), says.read_text()
        with Cluster(2, backend="ring") as cluster:
            cluster.load(folder)
            assert [a.tolist() for a in cluster.pull("a")] == [[0, 1, 2, 3], [1, 2, 3, 4]]
    else:  # it is tried twice
        assert eventually(lambda: says.exists() and says.read_text().count("Nothing was ended.\n") == 2)
        assert "File exists" in says.read_text() or "Not a directory" in says.read_text()
        clusters = list[Cluster]()

        def attached() -> bool:  # once the process that could not save has ended
            with suppress(NoCluster):
                clusters.append(Cluster.attach(name))
            return bool(clusters)

        assert eventually(attached)
        try:
            assert clusters[0].pull("a")[1].tolist() == [1, 2, 3, 4]
        finally:
            clusters[0].down()
    says.unlink()


def test_a_save_without_a_lease_that_ends_is_refused() -> None:
    for lease in ("0", "none", None):
        with pytest.raises(UsageError, match="--save saves before a lease ends the ranks: add --lease 12h"):
            Cluster(2, lease=lease, save="a")


LEASED = FIRST_NOTEBOOK.replace("keep=True", "lease='10m'")


@pytest.mark.parametrize("orphaned", [FIRST_NOTEBOOK, LEASED], ids=["kept", "leased"], indirect=True)
def test_a_shell_saves_what_the_ranks_hold_and_ends_them(orphaned: tuple[str, Path], tmp_path: Path) -> None:
    name, go = orphaned
    command = ("down", name, "--save", str(tmp_path / "a"))
    refused = allranks(*command)
    assert refused.returncode == BUSY_STATUS, refused
    assert "still busy with an earlier cell" in refused.stderr and refused.stderr.endswith("Nothing was ended.\n")
    go.touch()
    assert eventually(lambda: allranks(*command).returncode == 0)
    assert allranks(*command).returncode == 2, "it has ended"
    with Cluster(2, backend="ring") as cluster:
        cluster.load(tmp_path / "a", "a")
        assert [a.tolist() for a in cluster.pull("a")] == [[0, 1, 2, 3], [1, 2, 3, 4]]
