"""Ranks of one machine share its files; tests/hosts/test_share.py has other hosts."""

from __future__ import annotations

import os
import signal
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from allranks import Cluster
from allranks.errors import CellInterrupted, UsageError
from tests.waiting import WITHIN, eventually


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "work"
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "weights").write_bytes(b"1234")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return folder


@pytest.fixture
def pair(work: Path) -> Iterator[Cluster]:
    with Cluster(2, backend="ring") as cluster:
        yield cluster


def test_ranks_of_one_host_share_one_copy_and_find_it_by_name(pair: Cluster, work: Path) -> None:
    result = pair.share("model")
    assert str(result) == (
        f"model: 1 file (4 B) on localhost; all ranks run there. Nothing was sent.\nlocalhost: {work}/model"
    )
    code = "import allranks; str(allranks.shared('model'))"
    assert [rank.value for rank in pair.run(code).check().values()] == [f"{work}/model"] * 2
    pair.share("model/weights")
    code = "allranks.shared('weights').read_bytes()"
    assert [rank.value for rank in pair.run(code).check().values()] == [b"1234"] * 2


def test_a_name_that_was_not_shared_says_what_to_type(pair: Cluster) -> None:
    failed = pair.run("import allranks; allranks.shared('Qwen3')")
    assert {str(error) for error in failed.errors.values()} == {
        "FileNotFoundError: 'Qwen3' was not shared to this host: run %distributed share Qwen3 (line 1)"
    }


def test_what_is_not_there_is_said(pair: Cluster, work: Path) -> None:
    with pytest.raises(UsageError, match=rf"no host has nosuch: .* \(relative ones begin at {work} on localhost\)"):
        pair.share("nosuch")
    with pytest.raises(UsageError, match=r"--from mac9: no such rank or host. Hosts: localhost"):
        pair.share("model", source="mac9")
    with pytest.raises(UsageError, match=r"--from 2: no such rank or host"):
        pair.share("model", source=2)


def test_ctrl_c_after_all_is_in_place_says_so(pair: Cluster, tmp_path: Path) -> None:
    code = f"""
        import pathlib, time
        import allranks.rank.files.shared_names as names
        give_names = names.give_names
        def slow(*arguments):
            pathlib.Path({str(tmp_path)!r}, "begun").touch()
            while not pathlib.Path({str(tmp_path)!r}, "go").exists():
                time.sleep(0.01)
        names.give_names = slow
    """
    pair.run(textwrap.dedent(code)).check()

    def press() -> None:
        assert eventually((tmp_path / "begun").exists)
        os.kill(os.getpid(), signal.SIGINT)

    pressing = threading.Thread(target=press)
    pressing.start()
    with pytest.raises(CellInterrupted, match=r"^stopped once it was in place on all hosts\. Run the share again"):
        pair.share("model")
    (tmp_path / "go").touch()
    pressing.join(WITHIN)
