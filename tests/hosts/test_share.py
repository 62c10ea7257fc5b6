"""A model that one host has, on the others: real ssh, hosts with home folders and links of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import textwrap
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from allranks import Cluster
from allranks.errors import CannotCopy, CellInterrupted, UsageError
from tests.hosts.apart import WITHIN, Apart, values
from tests.waiting import comes_true, eventually

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(300)]
REPO = "mlx-community/tiny"


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf here"))  # of the notebook's machine; the others have their own


def model(apart: Apart, name: str, content: bytes) -> Path:
    """One on this host, below its home folder; returns its folder."""
    folder = apart.home(name) / "models" / "it's a model"
    folder.mkdir(parents=True)
    (folder / "weights").write_bytes(content)
    (folder / "config.json").write_text("{}")
    return folder


def weights(apart: Apart, name: str) -> bytes:
    return (apart.home(name) / "models" / "it's a model" / "weights").read_bytes()


def parts(apart: Apart, name: str) -> list[Path]:
    """What lies aside on this host."""
    return list((apart.home(name) / "models").glob(".allranks-*/part-*"))


def arrives(apart: Apart, name: str, nbytes: int) -> bool:
    """Whether so much is there within a minute."""
    return eventually(lambda: any(each.stat().st_size >= nbytes for each in parts(apart, name)))


def slow(apart: Apart, mbit: int) -> None:
    for name in apart.names:
        apart.hosts.slow(name, mbit)
        apart.hosts.slow_towards(name, mbit)


def listening(apart: Apart) -> dict[str, set[str]]:
    """The ports that are open on each host."""
    ports = {name: apart.hosts.inside(name, "ss", "-tlnH").stdout.splitlines() for name in apart.names}
    return {name: {line.split()[3] for line in lines} for name, lines in ports.items()}


def downloaded(cache: Path) -> Path:
    """A repository in a Hugging Face cache, as `huggingface_hub` leaves it; returns its folder."""
    repo, commit = cache / "models--mlx-community--tiny", "0123456789abcdef0123456789abcdef01234567"
    for folder in ("blobs", "refs", f"snapshots/{commit}", f".no_exist/{commit}"):
        (repo / folder).mkdir(parents=True)
    (repo / "refs" / "main").write_text(commit)
    for name, content in (("config.json", b"{}"), ("model.safetensors", os.urandom(3 << 20))):
        blob = f"{len(content):040x}"
        (repo / "blobs" / blob).write_bytes(content)
        (repo / "snapshots" / commit / name).symlink_to(f"../../blobs/{blob}")
    (repo / ".no_exist" / commit / "adapter.json").touch()
    (repo / "blobs" / "ffff.incomplete").write_bytes(b"on its way")
    return repo


def test_a_model_of_one_host_is_on_all(apart: Apart, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on the notebook's, from the middle of the ring, while ranks run a cell, and for each rank of a host."""
    monkeypatch.setenv("HOME", str(tmp_path / "home here"))
    content = os.urandom(5 << 20)
    folder = model(apart, "host2", content)
    (folder / "link").symlink_to("weights")
    (folder / "out").symlink_to("/etc/hostname")
    (folder / os.fsdecode(b"odd \xff\n")).write_bytes(b"odd")
    with Cluster(hosts=["localhost", *apart.names], ranks_per_host=2, backend="ring") as cluster:
        cell = cluster.begin(
            "import os, time\nwhile not os.path.exists('/tmp/go-' + str(os.getppid())): time.sleep(0.01)"
        )
        assert comes_true(cluster, lambda now: all(rank.state == "running" for rank in now.ranks), WITHIN)
        result = cluster.share("~/models/it's a model")
        assert {rank.state for rank in cluster.snapshot.ranks} == {"running"}
        cluster.interrupt()
        cell.finish(WITHIN)
        said = str(result)
        assert said.startswith(
            "it's a model: 4 files (5.2 MB), on host2 and shared with localhost, host1 and host3 in "
        )
        assert "Not shared: it's a model/out: a link that leads out of it." in said
        assert {host: (each.files, each.nbytes) for host, each in result.hosts.items()} == {
            "localhost": (4, len(content) + 5),
            "host1": (4, len(content) + 5),
            "host2": (0, 0),
            "host3": (4, len(content) + 5),
        }
        homes = [tmp_path / "home here", *(apart.home(name) for name in apart.names)]
        assert all((home / "models" / "it's a model" / "weights").read_bytes() == content for home in homes)
        code = 'import allranks; str(allranks.shared("it\'s a model"))'
        where = [str(home / "models" / "it's a model") for home in homes for _ in range(2)]
        assert values(cluster, code) == where
        pid = cluster.snapshot.ranks[5].pid
        assert pid
        os.kill(pid, signal.SIGKILL)
        assert comes_true(cluster, lambda now: now.ranks[5].state == "dead", WITHIN)
        cluster.heal()
        assert values(cluster, code) == where
        again = cluster.share("~/models/it's a model", source="host3")
        assert "localhost, host1 and host2 had all of it already. Nothing was sent." in str(again)


def test_a_repository_comes_into_each_cache_where_it_is_found_offline(apart: Apart, tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    repo = downloaded(apart.home("host1") / ".cache" / "huggingface" / "hub")
    with Cluster(hosts=["localhost", *apart.names[:2]], backend="ring") as cluster:
        result = cluster.share(REPO)
        assert result.name == REPO and result.source == "host1"
        caches = [
            tmp_path / "hf here" / "hub",
            *(apart.home(name) / ".cache/huggingface/hub" for name in apart.names[:2]),
        ]
        assert [each.folder for each in result.hosts.values()] == [str(cache / repo.name) for cache in caches]
        code = f"""
            import allranks
            from huggingface_hub import snapshot_download
            found = snapshot_download({REPO!r}, local_files_only=True)
            (found == str(allranks.shared({REPO!r})) == str(allranks.shared("tiny")), sorted(os.listdir(found)))
        """
        names = ["config.json", "model.safetensors"]
        assert values(cluster, "import os\n" + textwrap.dedent(code)) == [(True, names)] * 3
        there = caches[2] / repo.name
        snapshot = next((there / "snapshots").iterdir())
        assert (snapshot / "model.safetensors").is_symlink()
        assert (snapshot / "model.safetensors").read_bytes() == (repo / "blobs" / f"{3 << 20:040x}").read_bytes()
        assert not list(there.glob("blobs/*.incomplete"))
        by_path = cluster.share(snapshot, source="host2")
        assert by_path.name == REPO and "Nothing was sent" in str(by_path)


def test_a_link_that_is_cut_half_way_and_comes_back(apart: Apart) -> None:
    content = os.urandom(24 << 20)
    model(apart, "host1", content)
    slow(apart, 40)
    with Cluster(hosts=apart.names, backend="ring") as cluster:
        results = []
        sharing = threading.Thread(target=lambda: results.append(cluster.share("~/models/it's a model")))
        sharing.start()
        assert arrives(apart, "host3", 8 << 20)
        apart.hosts.link("host2", "down")
        assert comes_true(cluster, lambda now: any(rank.state not in ("idle", "running") for rank in now.ranks), WITHIN)
        apart.hosts.link("host2", "up")
        sharing.join(120)
        (result,) = results
        assert [weights(apart, name) == content for name in apart.names] == [True] * 3
        assert all(each.nbytes == len(content) + 2 for each in list(result.hosts.values())[1:])


def test_ctrl_c_leaves_what_has_arrived_for_the_next_share(apart: Apart) -> None:
    content = os.urandom(24 << 20)
    model(apart, "host1", content)
    slow(apart, 60)
    with Cluster(hosts=apart.names, backend="ring") as cluster:

        def press() -> None:
            arrives(apart, "host3", 6 << 20)
            meanwhile.update(listening(apart))
            os.kill(os.getpid(), signal.SIGINT)

        before, meanwhile = listening(apart), dict[str, set[str]]()
        pressing = threading.Thread(target=press)
        pressing.start()
        with pytest.raises(
            CellInterrupted, match="What has arrived was kept: the same %distributed share again sends the rest"
        ):
            cluster.share("~/models/it's a model")
        assert listening(apart) == before
        pressing.join(WITHIN)
        assert {name: len(meanwhile[name] - before[name]) for name in apart.names} == {
            "host1": 1,
            "host2": 1,
            "host3": 0,
        }
        assert not (apart.home("host2") / "models" / "it's a model").exists()
        result = cluster.share("~/models/it's a model")
        assert listening(apart) == before
        there = result.hosts["host3"]
        assert there.kept >= 2 << 20 and there.kept + there.nbytes == len(content) + 2
        assert [weights(apart, name) == content for name in apart.names] == [True] * 3
        assert not parts(apart, "host2") and not parts(apart, "host3")


def test_a_rank_that_dies_while_it_receives_is_named_and_a_new_one_goes_on(apart: Apart) -> None:
    content = os.urandom(16 << 20)
    model(apart, "host1", content)
    slow(apart, 60)
    with Cluster(hosts=apart.names, backend="ring") as cluster:
        pid = cluster.snapshot.ranks[1].pid
        assert pid

        def kill() -> None:
            arrives(apart, "host2", 4 << 20)
            os.kill(pid, signal.SIGKILL)

        killing = threading.Thread(target=kill)
        killing.start()
        with pytest.raises(
            CannotCopy, match=r"^host2: rank 1, which takes part for its host, has died\. %distributed heal"
        ):
            cluster.share("~/models/it's a model")
        killing.join(WITHIN)
        missed = "Not sent to host2: its ranks are dead. Run %distributed heal, then the share again."
        assert str(cluster.share("~/models/it's a model")).endswith(missed)
        assert weights(apart, "host3") == content and not (apart.home("host2") / "models" / "it's a model").exists()
        cluster.heal()
        assert cluster.share("~/models/it's a model").hosts["host2"].kept >= 1 << 20
        assert [weights(apart, name) == content for name in apart.names] == [True] * 3


def test_a_host_that_cannot_take_it_is_named_and_none_has_changed(apart: Apart) -> None:
    model(apart, "host1", os.urandom(3 << 20))
    place = apart.home("host3") / "models"
    place.mkdir()
    apart.hosts.mounted("host3", "-t", "tmpfs", "-o", "size=1m", "none", str(place))
    with Cluster(hosts=apart.names, backend="ring") as cluster:
        with pytest.raises(CannotCopy, match=r"^host3: 3\.1 MB are to be sent, and .* are free there\.$"):
            cluster.share("~/models/it's a model")
        assert not (apart.home("host2") / "models" / "it's a model").exists()
        apart.hosts.within("host3", "mount", "-o", "remount,ro", str(place))
        with pytest.raises(CannotCopy, match=r"^host3: Read-only file system.* Choose a folder .* with --to\.$"):
            cluster.share("~/models/it's a model")
        result = cluster.share("~/models/it's a model", to="~/elsewhere")
        assert result.hosts["host3"].folder == str(apart.home("host3") / "elsewhere" / "it's a model")
        assert values(cluster, 'import allranks; allranks.shared("it\'s a model").parent.name') == [
            "models",
            "elsewhere",
            "elsewhere",
        ]


def test_a_disk_that_fills_up_meanwhile(apart: Apart) -> None:
    model(apart, "host1", os.urandom(12 << 20))
    slow(apart, 40)
    place = apart.home("host2") / "models"
    place.mkdir()
    apart.hosts.mounted("host2", "-t", "tmpfs", "-o", "size=14m", "none", str(place))
    with Cluster(hosts=apart.names, backend="ring") as cluster:

        def fill() -> None:
            arrives(apart, "host3", 2 << 20)
            with suppress(subprocess.CalledProcessError):  # it takes all that is left
                apart.hosts.within("host2", "dd", "if=/dev/zero", f"of={place}/filler", "bs=1k", "count=13000")

        filling = threading.Thread(target=fill)
        filling.start()
        with pytest.raises(CannotCopy, match=r"^host2: No space left on device: .* Make room on its disk"):
            cluster.share("~/models/it's a model")
        filling.join(WITHIN)
        apart.hosts.within("host2", "rm", f"{place}/filler")
        assert cluster.share("~/models/it's a model").hosts["host2"].kept > 0


def test_what_others_have_written_is_named_and_replaced_only_if_wanted(apart: Apart) -> None:
    model(apart, "host1", b"theirs")
    model(apart, "host2", b"something else")
    with Cluster(hosts=apart.names, backend="ring") as cluster:
        with pytest.raises(
            UsageError,
            match=r"^host2: it's a model/weights in .*: another file .* --overwrite .* those of host1 \(--from names",
        ):
            cluster.share("~/models/it's a model", source="host1")
        assert not (apart.home("host3") / "models").exists() or not parts(apart, "host3")
        with pytest.raises(UsageError, match=r"it's a model is not the same on host1 and host2\. .* --from HOST"):
            cluster.share("~/models/it's a model", overwrite=True)
        cluster.share("~/models/it's a model", source="host1", overwrite=True)
        assert [weights(apart, name) for name in apart.names] == [b"theirs"] * 3


def test_the_host_where_a_model_was_changed_is_the_source_of_the_next_share(apart: Apart) -> None:
    folder = model(apart, "host2", b"first")
    with Cluster(hosts=apart.names, backend="ring") as cluster:
        assert cluster.share("~/models/it's a model").source == "host2"
        (folder / "weights").write_bytes(b"changed")
        assert cluster.share("~/models/it's a model").source == "host2"
        assert [weights(apart, name) for name in apart.names] == [b"changed"] * 3


def test_a_copy_that_only_looks_like_the_sources_is_not_passed_on(apart: Apart) -> None:
    source = model(apart, "host1", b"right")
    damaged = model(apart, "host2", b"wrong")
    for name in ("weights", "config.json"):
        now = (source / name).stat()
        os.utime(damaged / name, ns=(now.st_mtime_ns, now.st_mtime_ns))
    with Cluster(hosts=apart.names, backend="ring") as cluster:
        said = r"^host3: it's a model/weights, which came from host2, has another checksum than on host1\."
        with pytest.raises(CannotCopy, match=said):
            cluster.share("~/models/it's a model")
        assert not (apart.home("host3") / "models" / "it's a model").exists()
        (damaged / "weights").unlink()
        cluster.share("~/models/it's a model", source="host1")
        assert [weights(apart, name) for name in apart.names] == [b"right"] * 3


def test_hosts_that_share_a_folder_get_one_copy(apart: Apart, tmp_path: Path) -> None:
    nfs = tmp_path / "nfs"
    nfs.mkdir()
    for name in ("host1", "host3"):
        (apart.home(name) / "models").mkdir()
        apart.hosts.mounted(name, "--bind", str(nfs), str(apart.home(name) / "models"))
    model(apart, "host2", b"content")
    with Cluster(hosts=apart.names, backend="ring") as cluster:
        result = cluster.share("~/models/it's a model")
        one, other = result.hosts["host1"], result.hosts["host3"]
        assert sorted([one.files, other.files]) == [0, 2]
        assert {one.with_host, other.with_host} in ({"", "host1"}, {"", "host3"})
        assert (nfs / "it's a model" / "weights").read_bytes() == b"content"
        assert cluster.share("~/models/it's a model", source="host1").hosts["host3"].same


def test_who_has_it(apart: Apart) -> None:
    model(apart, "host2", b"2")
    model(apart, "host3", b"3")
    with Cluster(hosts=apart.names, backend="ring") as cluster:
        with pytest.raises(UsageError, match=r"^no host has ~/nosuch: .* on host1, host2, host3, localhost\)"):
            cluster.share("~/nosuch")
        with pytest.raises(UsageError, match=r"^no host has ~/models: .* on host1\)"):
            cluster.share("~/models", source=0)
        with pytest.raises(
            CannotCopy, match=r"^host3: the home folder and the root of the file system are never shared\.$"
        ):
            cluster.share("~", source="host3")
        result = cluster.share("~/models/it's a model", source=2, overwrite=True)
        assert result.source == "host3"
        assert [weights(apart, name) for name in apart.names] == [b"3"] * 3


def test_what_only_the_notebooks_machine_has_goes_through_the_first_host(apart: Apart) -> None:
    """No rank runs there; the first host gets it over the lifeline, and the link may be cut."""
    content = os.urandom(9 << 20)
    (apart.work / "weights here").write_bytes(content)
    apart.hosts.slow_towards("host1", 40)
    with Cluster(hosts=apart.names, backend="ring") as cluster:
        results = []
        target = apart.work.parent / "to"
        for name in apart.names:
            (apart.home(name) / "to").mkdir()

        def share() -> None:
            results.append(cluster.share("weights here", to="~/to"))

        sharing = threading.Thread(target=share)
        sharing.start()
        assert eventually(
            lambda: any(
                each.stat().st_size > 2 << 20 for each in (apart.home("host3") / "to").glob(".allranks-*/part-*")
            )
        )
        apart.hosts.link("host1", "down")
        assert comes_true(cluster, lambda now: any(rank.state not in ("idle", "running") for rank in now.ranks), WITHIN)
        apart.hosts.link("host1", "up")
        sharing.join(120)
        (result,) = results
        assert result.source == "localhost" and not target.exists()
        assert [(apart.home(name) / "to" / "weights here").read_bytes() == content for name in apart.names] == [
            True
        ] * 3
        assert values(cluster, "import allranks; allranks.shared('weights here').parent.name") == ["to"] * 3
        (apart.work / "weights here").write_bytes(content[::-1])
        assert cluster.share("weights here", to="~/to", source="localhost").hosts["host2"].nbytes == len(content)
