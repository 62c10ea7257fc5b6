"""What is shared: found by path or by id, listed, and read in blocks."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from allranks.machine import shared_tree
from allranks.machine.shared_tree import LEADS_OUT, NO_FILE, ContentChanged, Found, SharedFile, find, hub_cache, scan

KEY = bytes(range(32))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def found(path: str) -> Found:
    it = find(os.fsencode(path))
    assert it is not None
    return it


CACHES = [
    ({}, "~/.cache/huggingface/hub"),
    ({"XDG_CACHE_HOME": "/x"}, "/x/huggingface/hub"),
    ({"HF_HOME": "~/hf", "XDG_CACHE_HOME": "/x"}, "~/hf/hub"),
    ({"HUGGINGFACE_HUB_CACHE": "/old", "HF_HOME": "/hf"}, "/old"),
    ({"HF_HUB_CACHE": "$HOME/new", "HUGGINGFACE_HUB_CACHE": "/old"}, "~/new"),
]


@pytest.mark.parametrize(("environment", "cache"), CACHES)
def test_the_hugging_face_cache_is_where_the_environment_says(
    environment: dict[str, str], cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert hub_cache() == os.fsencode(os.path.expanduser(cache))


@pytest.mark.parametrize("environment", [environment for environment, _ in CACHES])
def test_the_cache_is_that_of_huggingface_hub(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("huggingface_hub")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    code = "from huggingface_hub.constants import HF_HUB_CACHE; print(HF_HUB_CACHE)"  # read when it is imported
    theirs = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert hub_cache() == os.fsencode(os.path.abspath(theirs))


def test_a_repository_is_found_by_its_id_and_by_each_path_in_it(home: Path) -> None:
    repo = home / ".cache" / "huggingface" / "hub" / "models--mlx-community--Qwen3-0.6B-4bit"
    (repo / "snapshots" / "abc").mkdir(parents=True)
    whole = Found(os.fsencode(repo.parent), os.fsencode(repo.name), "mlx-community/Qwen3-0.6B-4bit")
    assert find(b"mlx-community/Qwen3-0.6B-4bit") == whole
    assert found(str(repo / "snapshots" / "abc")) == found("~/.cache/huggingface/hub/" + repo.name) == whole
    (home / "link").symlink_to(repo / "snapshots" / "abc")
    assert found("link") == whole
    assert find(b"mlx-community/Qwen3") is None and find(b"nosuch") is None
    assert found(str(repo.parent)) == Found(os.fsencode(repo.parent.parent), b"hub")
    (repo.parent / "datasets--squad").mkdir()
    assert found("squad").repo == "squad"


def test_a_path_comes_before_an_id(home: Path) -> None:
    (home / ".cache" / "huggingface" / "hub" / "models--a--b").mkdir(parents=True)
    (home / "a" / "b").mkdir(parents=True)
    assert found("a/b") == Found(os.fsencode(home / "a"), b"b")


def test_what_is_listed_and_what_is_left_out(home: Path) -> None:
    root = home / "it's \n here"
    (root / "sub" / "empty").mkdir(parents=True)
    (root / "sub" / "file").write_text("text")
    (root / "sub" / ".allranks").mkdir()
    (root / "inside").symlink_to("sub/file")
    (root / "dangling").symlink_to("sub/nosuch")
    (root / "absolute").symlink_to(root / "sub" / "file")
    (root / "out").symlink_to("../other")
    with socket.socket(socket.AF_UNIX) as it:
        it.bind("socket")
        os.rename("socket", root / "socket")
        manifest = scan(found(root.name))
    name = os.fsencode(root.name)
    listed = {each.path[len(name) :]: (each.is_file, each.is_link, each.target) for each in manifest.entries}
    assert listed == {
        b"/sub/file": (True, False, b""),
        b"/sub/empty": (False, False, b""),
        b"/inside": (False, True, b"sub/file"),
        b"/dangling": (False, True, b"sub/nosuch"),
    }
    assert {path[len(name) :]: why for path, why in manifest.left_out} == {
        b"/absolute": LEADS_OUT,
        b"/out": LEADS_OUT,
        b"/socket": NO_FILE,
    }


def test_what_is_only_on_its_way_into_the_cache_is_not_listed(home: Path) -> None:
    blobs = home / ".cache" / "huggingface" / "hub" / "models--a--b" / "blobs"
    blobs.mkdir(parents=True)
    for name in ("0123", "4567.incomplete"):
        (blobs / name).write_text("x")
    assert [each.path for each in scan(found("a/b")).entries] == [b"models--a--b/blobs/0123"]


def test_one_file(home: Path) -> None:
    (home / "real").write_text("text")
    (home / "file").symlink_to("real")
    (entry,) = scan(found("file")).entries
    assert (entry.path, entry.is_file, entry.size) == (b"file", True, 4)


def test_blocks_have_digests_that_say_where_they_belong(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_tree, "BLOCK", 4)
    (home / "file").write_text("aaaaaaaab")
    now = os.stat("file")
    file = SharedFile(KEY, 0, b"file", now.st_size, now.st_mtime_ns)
    blocks = [file.block(number) for number in range(file.blocks)]
    assert [data for _, data in blocks] == [b"aaaa", b"aaaa", b"b"]
    assert len({digest for digest, _ in blocks}) == 3
    assert file.digest() == SharedFile(KEY, 0, b"file", now.st_size, now.st_mtime_ns).digest()
    assert file.digest() != SharedFile(KEY, 1, b"file", now.st_size, now.st_mtime_ns).digest()
    os.utime("file", (1, 1))
    with pytest.raises(ContentChanged, match="file was changed while it was shared"):
        file.block(0)


def test_a_pipe_that_takes_the_place_of_a_file_is_not_waited_for(home: Path) -> None:
    (home / "file").write_text("text")
    now = os.stat("file")
    file = SharedFile(KEY, 0, b"file", now.st_size, now.st_mtime_ns)
    os.unlink("file")
    os.mkfifo("file")
    with pytest.raises(ContentChanged, match="file is no file any more"):
        file.block(0)


def test_a_folder_below_the_home_folder_is_recognised_through_a_link(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "real" / "work" / "model").mkdir(parents=True)
    (home / "link").symlink_to("real")
    (home / "link" / "models").symlink_to(home)
    monkeypatch.setenv("HOME", str(home / "link"))
    monkeypatch.chdir(home / "real" / "work")
    assert found("model").parent_elsewhere == b"~/work"
    assert found("~/work").parent_elsewhere == b"~"
    assert found("~/models/real").parent_elsewhere == b"~/models"
    assert found(str(home / "real")).parent_elsewhere == os.fsencode(home)
