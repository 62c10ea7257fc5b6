"""The copy of the working folder on a host: what came from the notebook, and what did not."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from allranks.messages.requests import CommitFiles, FileEntry, FilesCommitted, FolderOpened, OpenFolder, Piece
from allranks.messages.requests.file_requests import CHANGED, NOT_OURS
from allranks.rank.files import synced_folder
from allranks.rank.files.synced_folder import IN_THE_WAY, LINK, begin, commit, drop, open_folder, put

THEN = 1_600_000_000_123_456_789


def opened(
    folder: str, *, here: str = "/nowhere", sample: list[tuple[bytes, int, int]] | None = None, origin: str = "a"
) -> FolderOpened:
    return open_folder(OpenFolder(here=here, sample=sample or [], folder=folder, origin=origin))


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return opened(str(tmp_path / "copy")).folder


def send(
    folder: str,
    files: dict[str, bytes],
    *,
    remove: list[str] | None = None,
    overwrite: bool = False,
    mode: int = 0o100644,
    mtime: int = THEN,
    origin: str = "a",
) -> FilesCommitted:
    entries = [FileEntry(os.fsencode(path), len(data), mtime, mode) for path, data in files.items()]
    begin(folder, "t")
    if any(files.values()):
        pieces = [Piece(number, 0) for number, data in enumerate(files.values()) if data]
        put(folder, "t", pieces, [data for data in files.values() if data])
    return commit_all(folder, entries, [os.fsencode(each) for each in remove or []], overwrite=overwrite, origin=origin)


def commit_all(
    folder: str, files: list[FileEntry], remove: list[bytes], *, overwrite: bool = False, origin: str = "a"
) -> FilesCommitted:
    return commit(
        CommitFiles(
            folder=folder, origin=origin, transfer="t", files=list(enumerate(files)), remove=remove, overwrite=overwrite
        )
    )


def has(folder: str) -> dict[str, str]:
    """What is in the folder, without what is known of it."""
    root = Path(folder)
    return {
        str(path.relative_to(root)): path.read_text()
        for path in sorted(root.rglob("*"))
        if path.is_file() and ".allranks" not in path.parts
    }


def known(folder: str) -> list[bytes]:
    return [entry.path for entry in opened(folder).files]


def test_files_arrive_with_their_time_and_are_known_afterwards(folder: str) -> None:
    assert send(folder, {"a.py": b"1", "sub/b": b"", "c d\n": b"3"}).refused == []
    assert has(folder) == {"a.py": "1", "c d\n": "3", "sub/b": ""}
    assert os.stat(f"{folder}/a.py").st_mtime_ns == THEN
    assert known(folder) == [b"a.py", b"sub/b", b"c d\n"]
    assert not list(Path(folder, ".allranks", "incoming").iterdir())


def test_files_in_pieces_that_come_in_any_order(folder: str) -> None:
    begin(folder, "t")
    put(folder, "t", [Piece(0, 3)], [b"def"])
    put(folder, "t", [Piece(0, 0)], [b"abc"])
    commit_all(folder, [FileEntry(b"a", 6, THEN, 0o100755)], [])
    assert has(folder) == {"a": "abcdef"} and os.access(f"{folder}/a", os.X_OK)


def test_nothing_changes_where_a_file_is_not_whole(folder: str) -> None:
    send(folder, {"a": b"old"})
    begin(folder, "t")
    put(folder, "t", [Piece(0, 0), Piece(1, 0)], [b"new", b"ha"])
    with pytest.raises(OSError, match="b was changed while it was sent"):
        commit_all(folder, [FileEntry(b"a", 3, THEN, 0o100644), FileEntry(b"b", 4, THEN, 0o100644)], [])
    assert has(folder) == {"a": "old"}
    drop(folder, "t")
    assert not list(Path(folder, ".allranks", "incoming").iterdir())


def test_links_arrive_as_links(folder: str) -> None:
    assert send(folder, {"link": b"sub/b"}, mode=LINK).refused == []
    assert os.readlink(f"{folder}/link") == "sub/b"
    assert send(folder, {"link": b"sub/c"}, mode=LINK, mtime=THEN + 1).refused == []
    assert os.readlink(f"{folder}/link") == "sub/c"


def test_what_is_gone_at_the_notebook_goes_and_so_do_empty_folders(folder: str) -> None:
    send(folder, {"sub/deep/a": b"1", "sub/b": b"2"})
    assert send(folder, {}, remove=["sub/deep/a"]).refused == []
    assert has(folder) == {"sub/b": "2"} and not Path(folder, "sub/deep").exists()


def test_a_file_may_take_the_place_of_a_folder_and_the_other_way_round(folder: str) -> None:
    send(folder, {"a/b": b"1"})
    assert send(folder, {"a": b"2"}, remove=["a/b"]).refused == []
    assert send(folder, {"a/b": b"3"}, remove=["a"]).refused == []
    assert has(folder) == {"a/b": "3"}


def test_a_package_that_goes_leaves_nothing_that_python_could_import(folder: str) -> None:
    send(folder, {"lib/__init__.py": b"", "lib/x.py": b"", "lib/y.py": b""})
    compiled = Path(folder, "lib", "__pycache__")
    compiled.mkdir()
    for name in ("__init__", "x", "y"):
        (compiled / f"{name}.cpython-311.pyc").touch()
    send(folder, {}, remove=["lib/x.py"])
    assert sorted(each.name[:4] for each in compiled.iterdir()) == ["__in", "y.cp"]
    send(folder, {}, remove=["lib/__init__.py", "lib/y.py"])
    assert not Path(folder, "lib").exists()


def test_what_did_not_come_from_the_notebook_stays(folder: str) -> None:
    send(folder, {"a": b"1", "log": b"1"})
    Path(folder, "log").write_text("written by a rank")
    Path(folder, "own").write_text("own")
    refused = send(folder, {"log": b"22", "own": b"33", "a": b"44"}, mtime=THEN + 1).refused
    assert dict(refused) == {b"log": CHANGED, b"own": NOT_OURS}
    assert has(folder) == {"a": "44", "log": "written by a rank", "own": "own"}
    for _ in range(2):
        assert dict(send(folder, {}, remove=["log", "own"]).refused) == {b"log": CHANGED}
    assert has(folder) == {"a": "44", "log": "written by a rank", "own": "own"}


def test_it_is_replaced_where_the_user_says_so(folder: str) -> None:
    Path(folder, "own").write_text("own")
    assert send(folder, {"own": b"33"}, overwrite=True).refused == []
    assert has(folder) == {"own": "33"} and known(folder) == [b"own"]


def test_a_file_that_is_equal_already_counts_as_sent(folder: str) -> None:
    Path(folder, "own").write_text("33")
    assert send(folder, {"own": b"33"}).refused == []
    assert send(folder, {"own": b"444"}, mtime=THEN + 1).refused == []
    assert has(folder) == {"own": "444"}


def test_a_file_that_was_changed_there_is_reported_when_the_folder_is_opened(folder: str) -> None:
    send(folder, {"a": b"1", "b": b"1", "c": b"1"})
    Path(folder, "a").write_text("changed")
    Path(folder, "b").unlink()
    again = opened(folder)
    assert [entry.path for entry in again.files] == [b"c"]
    assert [entry.path for entry in again.changed] == [b"a"], "what is missing is sent again"


@pytest.mark.parametrize("path", ["../out", "/tmp/out", "sub/../../out", "link/out", ".allranks/sent"])
def test_nothing_outside_is_written(folder: str, path: str) -> None:
    Path(folder, "link").symlink_to("..")
    assert [why for _, why in send(folder, {path: b"1"}).refused if "out of the folder" in why]
    assert not Path(folder, "..", "out").exists() and not Path("/tmp/out").exists()


@pytest.mark.parametrize("overwrite", [False, True])
def test_nothing_outside_is_removed(folder: str, tmp_path: Path, overwrite: bool) -> None:
    """A folder of the copy was moved to a larger disk, and a link leads there now."""
    send(folder, {"data/points": b"1", "data/deep/more": b"2"})
    Path(folder, "data").rename(tmp_path / "larger")
    Path(folder, "data").symlink_to(tmp_path / "larger")
    refused = send(folder, {}, remove=["data/points", "data/deep/more"], overwrite=overwrite).refused
    assert [path for path, why in refused if "out of the folder" in why] == [b"data/points", b"data/deep/more"]
    assert (tmp_path / "larger" / "points").read_text() == "1" and (tmp_path / "larger" / "deep" / "more").exists()


def test_a_folder_that_is_a_hosts_home_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for path in ("~", str(tmp_path), "/"):
        with pytest.raises(PermissionError, match="home folder"):
            opened(path)


def test_the_notebooks_own_folder_is_recognised(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    now = os.stat(tmp_path / "a")
    same = [(b"a", now.st_ino, now.st_ctime_ns)]
    assert opened(str(tmp_path / "copy"), here=str(tmp_path), sample=same).same
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "a").write_text("1")
    assert not opened(str(tmp_path / "copy"), here=str(tmp_path / "other"), sample=same).same


def test_hosts_that_share_a_folder_give_it_one_identity(folder: str, tmp_path: Path) -> None:
    again, other = opened(folder), opened(str(tmp_path / "other"))
    assert again.identity == opened(folder).identity != other.identity


def test_hosts_that_open_a_shared_folder_at_once_agree_on_its_identity(tmp_path: Path) -> None:
    for number in range(50):
        with ThreadPoolExecutor(4) as hosts:
            all_of_them = hosts.map(lambda _: opened(f"{tmp_path}/{number}"), range(4))  # noqa: B023
        assert len({each.identity for each in all_of_them}) == 1


def test_what_was_begun_long_ago_is_forgotten(folder: str) -> None:
    begin(folder, "old")
    begin(folder, "new")
    put(folder, "old", [Piece(0, 0)], [b"1"])
    put(folder, "new", [Piece(0, 0)], [b"1"])
    os.utime(Path(folder, ".allranks", "incoming", "old"), (0, 0))
    opened(folder)
    assert [each.name for each in Path(folder, ".allranks", "incoming").iterdir()] == ["new"]


def test_a_process_that_ends_in_the_middle_leaves_each_file_old_or_new_and_known(folder: str) -> None:
    """Each file is in a state that counts as sent, so the next sync replaces it."""
    names = [f"f{number}" for number in range(40)]
    send(folder, dict.fromkeys(names, b"old"))
    program = f"""
        import os, signal
        from tests.rank.test_synced_folder import send, THEN
        replace, done = os.replace, 0
        def ends(source, target):
            global done
            done += 1
            if done == 20:
                os.kill(os.getpid(), signal.SIGKILL)
            replace(source, target)
        os.replace = ends
        send({folder!r}, {{name: b"newer" for name in {names!r}}}, mtime=THEN + 1)
    """
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], cwd=Path(__file__).parents[2])
    assert ended.returncode == -signal.SIGKILL
    contents = set(has(folder).values())
    assert contents == {"old", "newer"}
    again = opened(folder)
    assert len(again.files) == 40 and again.changed == []
    drop(folder, "t")
    assert send(folder, dict.fromkeys(names, b"newest"), mtime=THEN + 2).refused == []
    assert set(has(folder).values()) == {"newest"}


def test_what_is_known_may_be_damaged(folder: str) -> None:
    send(folder, {"a": b"1"})
    Path(folder, ".allranks", "sent").write_bytes(b"\xff damaged")
    assert opened(folder).files == []
    assert send(folder, {"a": b"1"}, mtime=THEN + 1).refused == [], "it is equal, and known again"
    assert synced_folder.OURS.decode() not in has(folder)


def test_folders_of_several_notebooks_in_one_target_leave_each_other_alone(folder: str) -> None:
    send(folder, {"a": b"1", "same": b"1"})
    assert opened(folder, origin="b").files == []
    refused = send(folder, {"a": b"2", "b": b"2", "same": b"1"}, remove=["a"], origin="b").refused
    assert dict(refused) == {b"a": NOT_OURS}
    assert send(folder, {}, remove=["b"]).refused == []
    assert has(folder) == {"a": "1", "b": "2", "same": "1"}
    assert [entry.path for entry in opened(folder).files] == [b"a"]
    assert [entry.path for entry in opened(folder, origin="b").files] == [b"same", b"b"]


def test_what_is_in_the_way_is_named(folder: str) -> None:
    Path(folder, "a").mkdir()
    Path(folder, "a", "own").touch()
    Path(folder, "b").touch()
    assert dict(send(folder, {"a": b"1", "b/c": b"1", "d": b"1"}).refused) == {b"a": IN_THE_WAY, b"b/c": IN_THE_WAY}
    assert has(folder) == {"a/own": "", "b": "", "d": "1"}


def test_nothing_is_written_to_a_transfer_that_is_over(folder: str) -> None:
    """A part that comes late would leave a file with a hole."""
    begin(folder, "t")
    drop(folder, "t")
    with pytest.raises(FileNotFoundError):
        put(folder, "t", [Piece(0, 5)], [b"late"])


def test_a_folder_that_another_notebook_does_not_let_go_of(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synced_folder, "LOCKED_WITHIN", 0.2)
    with open(Path(folder, ".allranks", "lock"), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(TimeoutError, match="another notebook"):
            send(folder, {"a": b"1"})
    drop(folder, "t")
    assert send(folder, {"a": b"1"}).refused == []
