"""Which files of the working folder are sent."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from allranks.errors import UsageError
from allranks.files import notebook_folder as folder_module
from allranks.files.notebook_folder import LEADS_OUT, NO_FILE, SECRET, TOO_LARGE, Folder
from tests.needs import need_tool


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "study"
    folder.mkdir()
    return folder


def put(root: Path, texts: dict[str, str]) -> None:
    """Write files."""
    for name, text in texts.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_everything_beside_the_notebook_is_sent_and_the_notebook_is_not(work: Path) -> None:
    put(work, {"train.py": "x", "data/points.csv": "1", "study.ipynb": "{}"})
    put(work, {".git/HEAD": "ref", "lib/__pycache__/a.pyc": "x", "env/pyvenv.cfg": "", "env/big": "x"})
    (work / "programme").write_text("#!/bin/sh\n")
    (work / "programme").chmod(0o755)
    found = Folder(work).scan()
    assert sorted(found.files) == ["data/points.csv", "programme", "train.py"]
    assert found.files["programme"].mode == 0o100755 and found.files["train.py"].mode == 0o100644
    assert found.left_out == {}


def test_what_git_ignores_is_left_out(work: Path) -> None:
    need_tool("git", "apt install git")
    (work.parent / ".gitignore").write_text("*.log\n/study/top.txt\n/other.txt\n")
    put(work, {"a.log": "", "top.txt": "", "other.txt": "", "build/x": "", "keep/build/y": "", "deep/build/z": ""})
    put(work, {"deep/a.tmp": "", "deep/keep.tmp": "", "deep/down/b.tmp": "", "deep/kept.log": ""})
    put(work, {".gitignore": "/build/\n*.tmp\n", "deep/.gitignore": "!keep.tmp\nbuild\n!kept.log\n"})
    for command in (["init", "-q", "."], ["add", "-N", "."]):
        subprocess.run(["git", *command], cwd=work.parent, check=True, capture_output=True)
    listed = subprocess.run(
        ["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=work, check=True, capture_output=True, text=True
    ).stdout
    found = Folder(work).scan()
    assert sorted(found.files) == sorted(filter(None, listed.split("\0")))
    assert "deep/kept.log" in found.files and "other.txt" in found.files


def test_a_folder_that_git_ignores_as_a_whole_can_be_sent(work: Path) -> None:
    need_tool("git", "apt install git")
    subprocess.run(["git", "init", "-q", "."], cwd=work.parent, check=True)
    (work.parent / ".gitignore").write_text("study/\n")
    put(work, {"train.py": "x"})
    assert list(Folder(work).scan().files) == ["train.py"]


def test_a_changed_gitignore_is_read_again(work: Path) -> None:
    put(work, {".gitignore": "*.csv\n", "a.csv": "", "a.txt": ""})
    folder = Folder(work)
    assert sorted(folder.scan().files) == [".gitignore", "a.txt"]
    (work / ".gitignore").write_text("*.txt\n\n")
    assert sorted(folder.scan().files) == [".gitignore", "a.csv"]
    (work / ".gitignore").unlink()
    assert sorted(folder.scan().files) == ["a.csv", "a.txt"]


def test_a_new_gitignore_beside_another_is_read(work: Path) -> None:
    put(work, {".gitignore": "*.csv\n", "sub/a.log": ""})
    folder = Folder(work)
    assert sorted(folder.scan().files) == [".gitignore", "sub/a.log"]
    put(work, {"sub/.gitignore": "*.log\n"})
    assert sorted(folder.scan().files) == [".gitignore", "sub/.gitignore"]


def test_a_copy_in_the_folder_is_not_sent_again(work: Path) -> None:
    put(work, {"train.py": "x", "run/.allranks/sent": "", "run/train.py": "x"})
    assert list(Folder(work).scan().files) == ["train.py"]


def test_secrets_are_sent_only_when_named(work: Path) -> None:
    put(work, {".env": "KEY=1", ".env.example": "", "sub/server.key": "", "sub/id_rsa": "", "train.py": ""})
    found = Folder(work).scan()
    assert sorted(found.files) == [".env.example", "train.py"]
    assert found.left_out == {".env": SECRET, "sub/id_rsa": SECRET, "sub/server.key": SECRET}
    named = Folder(work, include=["sub/server.key"]).scan()
    assert sorted(named.files) == [".env.example", "sub/server.key", "train.py"]


def test_what_is_named_is_sent_though_it_is_ignored(work: Path) -> None:
    put(work, {".gitignore": "data/\n", "data/a": "", "data/b": "", "study.ipynb": ""})
    assert sorted(Folder(work, include=["data/a", "*.ipynb"]).scan().files) == [".gitignore", "data/a", "study.ipynb"]


def test_links_that_lead_out_and_what_is_no_file_are_named(work: Path) -> None:
    put(work, {"sub/a.txt": "x"})
    (work / "inside").symlink_to("sub/a.txt")
    (work / "sub" / "up").symlink_to("../sub")
    (work / "outside").symlink_to("../elsewhere")
    (work / "absolute").symlink_to(work / "sub")
    os.mkfifo(work / "pipe")
    found = Folder(work).scan()
    assert sorted(found.files) == ["inside", "sub/a.txt", "sub/up"]
    assert found.files["inside"].mode == 0o120000
    assert found.left_out == {"absolute": LEADS_OUT, "outside": LEADS_OUT, "pipe": NO_FILE}


def test_the_largest_files_beyond_the_limit_are_left_out(work: Path) -> None:
    put(work, {"a": "x" * 100, "b": "x" * 3000, "c": "x" * 2000, "d": "x" * 50})
    found = Folder(work, limit=2500).scan()
    assert sorted(found.files) == ["a", "c", "d"]
    assert found.left_out == {"b": TOO_LARGE} and found.sizes == {"b": 3000}
    assert sorted(Folder(work, limit=10_000).scan().files) == ["a", "b", "c", "d"]


def test_a_folder_of_very_many_files_is_bounded_too(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_module, "MOST_FILES", 3)
    put(work, {"a": "1", "b": "22", "c": "333", "d": "4444"})
    assert sorted(Folder(work).scan().files) == ["a", "b", "c"]
    assert sorted(Folder(work, limit=1000).scan().files) == ["a", "b", "c", "d"], "with --limit, only bytes count"


def test_modules_are_the_last_to_be_left_out(work: Path) -> None:
    put(work, {"train.py": "x" * 3000, "a": "x" * 2000, "b": "x" * 10})
    assert sorted(Folder(work, limit=3500).scan().files) == ["b", "train.py"]


def test_a_pattern_that_names_no_file_is_refused(work: Path) -> None:
    put(work, {".gitignore": "data/\n", "data/a": ""})
    folder = Folder(work)
    folder.refuse_if_absent("data/a")
    for pattern in (".git", "nosuch*"):
        with pytest.raises(UsageError, match=r"no file in .* matches"):
            folder.refuse_if_absent(pattern)


@pytest.mark.parametrize("which", ["home", "root", "gone"])
def test_the_home_folder_is_too_much(which: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    path = {"home": tmp_path, "root": Path("/"), "gone": tmp_path / "gone"}[which]
    with pytest.raises(UsageError, match="no longer there" if which == "gone" else "a folder of their own"):
        Folder(path).scan()


def test_names_with_odd_characters_are_kept(work: Path) -> None:
    odd = [b"a b", b"it's", b'"q"', b"new\nline", "ümlaut".encode(), b"\xff\xfe", b"-n", b"*"]
    for name in odd:
        Path(os.fsdecode(os.fsencode(work) + b"/" + name)).write_text("x")
    assert sorted(map(os.fsencode, Folder(work).scan().files)) == sorted(odd)


def test_a_user_who_stops_it_does_not_wait_for_all_files(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_module, "LOOK_EVERY", 10)
    put(work, {f"{number}.txt": "" for number in range(30)})
    looked: list[int] = []

    def go_on() -> None:
        looked.append(len(looked))
        if len(looked) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Folder(work).scan(go_on)
    assert looked == [0, 1, 2]
