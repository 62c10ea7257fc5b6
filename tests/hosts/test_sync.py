"""The notebook's folder on other hosts: real ssh, hosts with file systems and home folders of their own."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import uuid
from typing import Any

import pytest

from allranks import Cluster
from allranks.errors import CannotCopy, CellInterrupted, UsageError, WorldBroken
from allranks.files.sync import FileChanged, FolderSync
from tests.hosts.apart import WITHIN, Apart, values
from tests.waiting import comes_true, eventually

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(300)]


@pytest.fixture
def apart(apart: Apart) -> Apart:
    (apart.work / "train.py").write_text("STEP = 1\n\ndef step():\n    return STEP\n")
    (apart.work / "data").mkdir()
    (apart.work / "data" / "a b.csv").write_text("1,2")
    return apart


def test_what_i_edit_is_what_runs_on_every_host_and_here(apart: Apart) -> None:
    with Cluster(hosts=[*apart.names[:2], "localhost"], backend="ring", sync=True) as cluster:
        lines: list[str] = []
        said = str(cluster.sync(progress=lines.append))
        assert lines == ["Sending 2 files (41 B) to host1, host2: data/a b.csv, train.py"]
        assert "localhost: has this folder itself" in said
        code = (
            "import os, train; kept = train.step(); (os.path.basename(os.getcwd()), kept, open('data/a b.csv').read())"
        )
        names = [apart.copy(name).name for name in apart.names[:2]]
        assert values(cluster, code) == [(name, 1, "1,2") for name in (*names, apart.work.name)]
        assert all(name.startswith("my work-") for name in names)

        (apart.work / "train.py").write_text("STEP = 2\n\ndef step():\n    return 10 * STEP\n")
        (apart.work / "data" / "a b.csv").write_text("3,4")
        (apart.work / "more.py").write_text("from train import step\n")
        assert (
            values(cluster, "import more; (train.step(), more.step(), kept, open('data/a b.csv').read())")
            == [(20, 20, 1, "3,4")] * 3
        )
        assert values(cluster, "%run more.py\nstep()") == [20] * 3


def test_a_removed_file_goes_and_its_module_with_it(apart: Apart) -> None:
    with Cluster(hosts=apart.names[:2], backend="ring", sync=True) as cluster:
        cluster.run("import train; held = train.step").check()
        (apart.work / "train.py").rename(apart.work / "training.py")
        assert values(cluster, "import training; (training.step(), held())") == [(1, 1)] * 2
        failed = cluster.run("import train")
        assert {error.ename for error in failed.errors.values()} == {"ModuleNotFoundError"}
        assert set(apart.texts("host1")) == set(apart.texts("host2")) == {"training.py", "data/a b.csv"}


def test_a_module_that_fails_on_one_host_stays_as_it_was_on_all(apart: Apart) -> None:
    with Cluster(hosts=[*apart.names[:2], "localhost"], backend="ring", sync=True) as cluster:
        cluster.run("import train; old = train.step").check()
        only = "import os\nif 'host2' == os.uname().nodename:\n    raise OSError('no such device')\nSTEP = 5\n"
        (apart.work / "train.py").write_text(only + "def step():\n    return 'new'\n")
        result = cluster.run("train.step(), old(), train.STEP")
        assert [rank.value for rank in result.check().values()] == [(1, 1, 1)] * 3
        said = str(cluster.sync())
        assert "rank 1: train.py, line 3: OSError: no such device" in said and "all ranks keep" in said
        (apart.work / "train.py").write_text("STEP = 5\n\ndef step():\n    return 'new'\n")
        assert values(cluster, "train.step(), old(), train.STEP") == [("new", "new", 5)] * 3


def test_what_ranks_wrote_there_is_neither_replaced_nor_removed(apart: Apart) -> None:
    with Cluster(hosts=apart.names[:2], backend="ring") as cluster:
        cluster.sync()
        cluster.run("open('data/a b.csv', 'w').write(str(rank)); open('own.txt', 'w').write('own')").check()
        (apart.work / "data" / "a b.csv").write_text("newer")
        (apart.work / "own.txt").write_text("from here")
        said = str(cluster.sync())
        assert "Left as it is there: data/a b.csv (it was changed there since it was sent" in said
        assert "own.txt (another file is there, which was not sent from here" in said
        assert apart.texts("host2") == {
            "data/a b.csv": "1",
            "own.txt": "own",
            "train.py": apart.texts("host1")["train.py"],
        }
        (apart.work / "data" / "a b.csv").unlink()
        for _ in range(2):
            assert "data/a b.csv (it was changed there since it was sent" in str(cluster.sync())
        assert apart.texts("host2")["data/a b.csv"] == "1"
        cluster.sync(overwrite=True)
        assert "data/a b.csv" not in apart.texts("host2")
        assert apart.texts("host2")["own.txt"] == "from here"


def test_a_file_that_was_changed_there_is_named_by_each_sync_and_one_that_is_gone_comes_again(apart: Apart) -> None:
    with Cluster(hosts=apart.names[:1], backend="ring", sync=True) as cluster:
        cluster.run("1").check()
        (apart.copy("host1") / "data" / "a b.csv").write_text("theirs")
        (apart.copy("host1") / "train.py").unlink()
        for _ in range(2):
            assert "data/a b.csv (it was changed there since it was sent" in str(cluster.sync())
            assert apart.texts("host1")["data/a b.csv"] == "theirs"
            assert values(cluster, "import train; train.step()") == [1]
        assert cluster.sync(overwrite=True).hosts["host1"].refused == {}
        assert apart.texts("host1")["data/a b.csv"] == "1,2"


def test_empty_files_alone_and_files_that_vanish(apart: Apart) -> None:
    with Cluster(hosts=apart.names[:1], backend="ring", sync=True) as cluster:
        (apart.work / "lib").mkdir()
        (apart.work / "lib" / "__init__.py").touch()
        cluster.run("import lib").check()
        (apart.work / "lib" / "__init__.py").unlink()
        (apart.work / "lib").rmdir()
        failed = cluster.run("import sys; sys.modules.pop('lib', None); import lib").errors
        assert failed[0].ename == "ModuleNotFoundError"
        over = threading.Event()

        def churn() -> None:
            for number in itertools.count():
                file = apart.work / f"t{number % 50}.tmp"
                file.write_text("x" * 100)
                file.rename(apart.work / "state")
                if over.is_set():
                    return

        churning = threading.Thread(target=churn)
        churning.start()
        try:
            for number in range(10):
                assert values(cluster, str(number)) == [number]
        finally:
            over.set()
            churning.join(WITHIN)


def test_files_and_links_that_turn_into_folders_and_back(apart: Apart) -> None:
    (apart.work / "other").mkdir()
    (apart.work / "other" / "b").write_text("other")
    (apart.work / "link").symlink_to("other")
    (apart.work / "file").write_text("file")
    with Cluster(hosts=apart.names[:1], backend="ring") as cluster:
        cluster.sync()
        for name in ("link", "file"):
            (apart.work / name).unlink()
            (apart.work / name).mkdir()
            (apart.work / name / "b").write_text(f"in {name}")
        assert cluster.sync().hosts["host1"].refused == {}
        root = apart.copy("host1")
        assert [(root / name / "b").read_text() for name in ("link", "file", "other")] == [
            "in link",
            "in file",
            "other",
        ]
        (apart.work / "file" / "b").unlink()
        (apart.work / "file").rmdir()
        (apart.work / "file").write_text("again")
        assert cluster.sync().hosts["host1"].refused == {}
        assert (root / "file").read_text() == "again"
        (apart.work / "link" / "b").unlink()
        (apart.work / "link").rmdir()
        (apart.work / "link").symlink_to("other")
        assert cluster.sync().hosts["host1"].refused == {}
        assert (root / "link" / "b").read_text() == "other"


def test_a_copy_that_is_removed_while_ranks_work_in_it_is_made_again(apart: Apart) -> None:
    with Cluster(hosts=apart.names[:1], backend="ring", sync=True) as cluster:
        cluster.run("1").check()
        shutil.rmtree(apart.copy("host1"))
        (apart.work / "train.py").write_text("def step():\n    return 'new'\n")
        with pytest.raises(CannotCopy, match=r"^host1: "):
            cluster.run("1")
        assert values(cluster, "import os, train; (os.path.exists('train.py'), train.step())") == [(True, "new")]


def test_a_rank_that_dies_while_files_are_sent_gets_no_cell(apart: Apart) -> None:
    with Cluster(hosts=apart.names[:1], ranks_per_host=2, backend="ring", sync=True) as cluster:
        cluster.run("1").check()
        apart.hosts.slow_towards("host1", 50)
        (apart.work / "large").write_bytes(os.urandom(12 << 20))
        incoming, pid = apart.copy("host1") / ".allranks" / "incoming", cluster.snapshot.ranks[1].pid
        assert pid

        def kill() -> None:
            assert eventually(lambda: [each for each in incoming.rglob("*") if each.is_file()])
            os.kill(pid, signal.SIGKILL)

        killing = threading.Thread(target=kill)
        killing.start()
        with pytest.raises(WorldBroken, match="rank 1 died"):
            cluster.run("1", timeout=WITHIN)
        killing.join(WITHIN)
        assert (apart.copy("host1") / "large").exists()


def test_a_full_disk_on_one_host_changes_none(apart: Apart) -> None:
    place = apart.home("host2") / "allranks"
    place.mkdir()
    apart.hosts.mounted("host2", "-t", "tmpfs", "-o", "size=1m", "none", str(place))
    with Cluster(hosts=apart.names[:2], backend="ring", sync=True) as cluster:
        assert values(cluster, "import train; train.step()") == [1, 1]
        (apart.work / "train.py").write_text("def step():\n    return 'new'\n")
        (apart.work / "large").write_bytes(os.urandom(3 << 20))
        with pytest.raises(CannotCopy, match=r"^host2: .* are to be sent, and .* are free there") as raised:
            cluster.run("1")
        assert "host1" not in str(raised.value)
        assert "large" not in apart.texts("host1")
        apart.hosts.within("host2", "mount", "-o", "remount,size=9m", str(place))
        assert values(cluster, "import os; os.path.getsize('large') >> 20") == [3, 3], "room was made"
        (apart.work / "large").unlink()
        cluster.run("1").check()
        apart.hosts.within("host2", "mount", "-o", "remount,size=1m", str(place))
        (apart.work / "train.py").write_text("def step():\n    return 'newer'\n")
        # Less than was free when the folder was opened, and another fills the disk meanwhile.
        (apart.work / "large").write_bytes(os.urandom(600 << 10))
        apart.hosts.within("host2", "dd", "if=/dev/zero", f"of={place}/filler", "bs=1k", "count=700")
        with pytest.raises(CannotCopy, match=r"host2: .*(No space left on device|are free there)"):
            cluster.run("1")
        assert set(apart.texts("host1")) == {"train.py", "data/a b.csv"}
        assert "'new'" in apart.texts("host1")["train.py"]
        (apart.work / "large").unlink()
        apart.hosts.within("host2", "rm", f"{place}/filler")
        assert values(cluster, "train.step()") == ["newer", "newer"], "the session goes on"


def test_a_folder_that_cannot_be_written_is_named_with_what_to_do(apart: Apart) -> None:
    place = apart.home("host1") / "allranks"
    place.mkdir()
    apart.hosts.mounted("host1", "-t", "tmpfs", "-o", "ro", "none", str(place))
    with Cluster(hosts=apart.names[:2], backend="ring") as cluster:
        with pytest.raises(CannotCopy, match=r"^host1: .*Read-only file system.* Choose a folder .* with --cwd\.$"):
            cluster.sync()
        assert values(cluster, "1") == [1, 1]


def test_hosts_that_share_a_folder_get_one_copy(apart: Apart) -> None:
    shared = apart.work.parent / "nfs"
    shared.mkdir()
    for name in apart.names[:2]:
        place = apart.home(name) / "allranks"
        place.mkdir()
        apart.hosts.mounted(name, "--bind", str(shared), str(place))
    with Cluster(hosts=apart.names, backend="ring", sync=True) as cluster:
        said = str(cluster.sync())
        assert "host2: shares" in said and "with host1" in said
        assert values(cluster, "import train; train.step()") == [1] * 3
        (apart.work / "train.py").write_text("def step():\n    return 'new'\n")
        assert values(cluster, "train.step()") == ["new"] * 3
        result = cluster.sync()
        assert result.hosts["host2"].with_host == "host1" and not result.hosts["host3"].with_host


def test_a_host_that_mounts_the_notebooks_folder_gets_nothing(apart: Apart) -> None:
    apart.hosts.unmounted("host1", apart.work)
    with Cluster(hosts=apart.names[:2], backend="ring", sync=True) as cluster:
        assert "host1: has this folder itself" in str(cluster.sync())
        assert values(cluster, "import os; os.getcwd()")[0] == str(apart.work)
        assert not (apart.home("host1") / "allranks").exists()


def test_what_was_fetched_does_not_come_back_from_a_host_that_mounts_the_folder(apart: Apart) -> None:
    apart.hosts.unmounted("host1", apart.work)
    with Cluster(hosts=["host1"], backend="ring") as cluster:
        first = cluster.fetch("**/*.py").files
        assert first and cluster.fetch("**/*.py").files == first


def test_a_rank_that_takes_anothers_place_finds_its_modules(apart: Apart) -> None:
    (apart.work / "model.py").write_text("class Model:\n    width = 3\n")
    with Cluster(hosts=apart.names[:2], backend="ring", sync=True) as cluster:
        cluster.run("import model; m = model.Model(); m.depth = 7").check()
        pid = cluster.snapshot.ranks[1].pid
        assert pid
        os.kill(pid, signal.SIGKILL)
        assert comes_true(cluster, lambda now: now.ranks[1].state == "dead", WITHIN)
        assert "rank 1 got the variables of rank 0" in str(cluster.heal(source=0))
        assert values(cluster, "import os; (m.width, m.depth, os.getcwd())") == [
            (3, 7, str(apart.copy(name))) for name in apart.names[:2]
        ]
        (apart.work / "model.py").write_text("class Model:\n    width = 4\n")
        assert values(cluster, "m.width, m.depth") == [(4, 7)] * 2


def test_a_host_that_goes_in_the_middle_keeps_what_it_had(apart: Apart) -> None:
    with Cluster(hosts=apart.names[:2], backend="ring", sync=True) as cluster:
        assert values(cluster, "import train; train.step()") == [1, 1]
        apart.hosts.slow("host2", 20)
        (apart.work / "train.py").write_text("def step():\n    return 'new'\n")
        (apart.work / "large").write_bytes(os.urandom(20 << 20))
        raised: list[BaseException] = []

        def sync() -> None:
            try:
                cluster.sync()
            except BaseException as error:
                raised.append(error)

        syncing = threading.Thread(target=sync)
        syncing.start()
        incoming = apart.copy("host2") / ".allranks" / "incoming"
        assert eventually(lambda: [each for each in incoming.rglob("*") if each.is_file()])
        apart.hosts.link("host2", "down")
        syncing.join(WITHIN)
        apart.hosts.link("host2", "up")
        assert [type(error) for error in raised] == [CannotCopy] and "host2" in str(raised[0])
        assert "STEP" in apart.texts("host1")["train.py"] and "STEP" in apart.texts("host2")["train.py"]
        assert comes_true(cluster, lambda now: all(rank.state == "idle" for rank in now.ranks), WITHIN)
        assert values(cluster, "train.step()") == ["new", "new"]
        assert not list(incoming.iterdir())


def test_a_file_that_is_changed_while_it_is_read_is_read_again(apart: Apart, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user sees no error."""
    changed, bring = list[FileChanged](), FolderSync._bring

    def noted(*args: Any) -> Any:
        try:
            return bring(*args)
        except FileChanged as error:
            changed.append(error)
            raise

    monkeypatch.setattr(FolderSync, "_bring", noted)
    names, large = apart.names[:2], apart.work / "large"
    with Cluster(hosts=names, backend="ring") as cluster:
        cluster.sync()
        for name in names:
            apart.hosts.slow_towards(name, 100)
        large.write_bytes(os.urandom(64 << 20))  # more than is read ahead

        def cut() -> None:
            incoming = [apart.copy(name) / ".allranks" / "incoming" for name in names]
            if eventually(lambda: all(any(each.is_file() for each in folder.rglob("*")) for folder in incoming)):
                os.truncate(large, 1 << 20)

        cutting = threading.Thread(target=cut)
        cutting.start()
        said = cluster.sync(limit=1 << 30)
        cutting.join(WITHIN)
        assert said.sent == {name: ["large"] for name in names}
        assert [(apart.copy(name) / "large").read_bytes() for name in names] == [large.read_bytes()] * 2
        assert large.stat().st_size == 1 << 20
        assert len(changed) == 1, "it was being read when it changed"


def test_another_notebook_knows_what_was_sent(apart: Apart) -> None:
    with Cluster(hosts=apart.names[:2], backend="ring") as cluster:
        assert cluster.sync().sent == {name: ["data/a b.csv", "train.py"] for name in apart.names[:2]}
    (apart.work / "train.py").unlink()
    with Cluster(hosts=apart.names[:2], backend="ring") as cluster:
        result = cluster.sync()
        assert result.sent == {name: [] for name in apart.names[:2]}
        assert [list(each.removed) for each in result.hosts.values()] == [["train.py"]] * 2


def test_a_folder_that_the_user_names(apart: Apart) -> None:
    """The same on all hosts; here, it is not the notebook's own."""
    named = apart.work.parent / "named"
    named.mkdir()
    for name in apart.names[:2]:
        apart.hosts.mounted(name, "-t", "tmpfs", "none", str(named))
    with Cluster(hosts=apart.names[:2], backend="ring", cwd=named, sync=True) as cluster:
        assert values(cluster, "import os, train; (os.getcwd(), train.step())") == [(str(named), 1)] * 2
        assert not list(named.iterdir()), "here it stays as it was"


def test_a_folder_that_the_user_names_is_made_here_too(apart: Apart) -> None:
    named = apart.work.parent / "named"
    with Cluster(hosts=["localhost", apart.names[0]], backend="ring", cwd=named, sync=True) as cluster:
        assert values(cluster, "import os, train; (os.getcwd(), train.step())") == [(str(named), 1)] * 2
    with (
        pytest.raises(UsageError, match="lies in the notebook's folder"),
        Cluster(hosts=["localhost"], backend="ring", cwd=apart.work / "run", sync=True) as cluster,
    ):
        cluster.run("1")


def test_what_only_some_hosts_have_got_is_said_of_these(apart: Apart) -> None:
    with Cluster(hosts=["localhost", apart.names[0]], backend="ring", sync=True) as cluster:
        cluster.run("import train").check()
        (apart.work / ".gitignore").write_text("train.py\n")
        (apart.work / "train.py").write_text("def step():\n    return 'new'\n")
        assert "Reloaded on rank 0: train." in str(cluster.sync())
        assert values(cluster, "train.step()") == ["new", 1]


def test_ctrl_c_while_files_are_sent_changes_nothing(apart: Apart) -> None:
    with Cluster(hosts=apart.names[:2], backend="ring") as cluster:
        cluster.sync()
        for name in apart.names[:2]:
            apart.hosts.slow(name, 20)
        (apart.work / "large").write_bytes(os.urandom(40 << 20))
        incoming = apart.copy("host2") / ".allranks" / "incoming"

        def press() -> None:
            eventually(lambda: [each for each in incoming.rglob("*") if each.is_file()])
            os.kill(os.getpid(), signal.SIGINT)

        pressing = threading.Thread(target=press)
        pressing.start()
        with pytest.raises(CellInterrupted, match="the hosts have what they had"):
            cluster.sync()
        pressing.join(WITHIN)
        (apart.work / "large").unlink()
        assert set(apart.texts("host1")) == set(apart.texts("host2")) == {"train.py", "data/a b.csv"}
        assert values(cluster, "1") == [1, 1]
        assert eventually(lambda: not list(incoming.iterdir()))


def test_a_notebook_in_the_home_folder_is_refused_before_anything_starts(
    apart: Apart, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(apart.work))
    with pytest.raises(UsageError, match="a folder of their own"):
        Cluster(hosts=apart.names[:2], sync=True)


def test_ranks_of_mpi_work_in_the_folder_too(apart: Apart, need_mpi: None) -> None:
    with Cluster(hosts=["localhost", *apart.names[:2]], backend="mpi", sync=True) as cluster:
        code = "import train; (train.step(), mx.distributed.all_sum(mx.ones(1)).item())"
        assert values(cluster, code) == [(1, 3)] * 3
        (apart.work / "train.py").write_text("def step():\n    return 'new'\n")
        assert values(cluster, "train.step()") == ["new"] * 3


def test_a_notebook_that_takes_the_world_over_goes_on_with_it(apart: Apart) -> None:
    name = f"sync-{uuid.uuid4().hex[:6]}"
    program = f"""
        import os, signal
        from allranks import Cluster
        cluster = Cluster(hosts={apart.names[:2]!r}, backend="ring", sync=True, name={name!r}).up()
        cluster.run("import train; kept = rank; os.chdir('data')").check()
        os.kill(os.getpid(), signal.SIGKILL)
    """
    program = textwrap.dedent(program).replace("os.chdir('data')", "import os; os.chdir('data')")
    assert subprocess.run([sys.executable, "-c", program], cwd=apart.work).returncode == -signal.SIGKILL
    (apart.work / "train.py").write_text("def step():\n    return 'new'\n")
    cluster = Cluster.attach(name)
    try:
        assert cluster.auto_sync
        where = "train.step(), kept, os.path.basename(os.getcwd())"
        assert values(cluster, where) == [("new", 0, "data"), ("new", 1, "data")], "they stay where the user sent them"
    finally:
        cluster.down()


def test_files_of_ranks_on_other_hosts_come_back(apart: Apart) -> None:
    with Cluster(hosts=[*apart.names[:2], "localhost"], backend="ring", sync=True) as cluster:
        cluster.run("import os; os.makedirs('runs', exist_ok=True); open('runs/loss', 'w').write(str(rank))").check()
        cluster.run("open('runs/a', 'w').write('a')").check()
        result = cluster.fetch("runs/*")
        fetched = {name: (apart.work / "fetched" / name).read_text() for name in result.files}
        assert fetched == {"runs/a": "a", **{f"rank-{rank}/runs/loss": str(rank) for rank in range(3)}}
        cluster.sync()
        assert "fetched" not in " ".join(apart.texts("host1")), "it is not sent to hosts"
