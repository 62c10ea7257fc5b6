"""A host process looks through folders while ranks and notebooks make and remove some in them."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread

import pytest

from allranks.machine import protect_from_cleaners
from allranks.machine.lease import busy_at
from allranks.machine.protect_from_cleaners import KeptFromCleaners

OLD = time.time() - 4 * 86400


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[list[Path]]:
    """Two of a cluster: one with a file that stays, the other made and removed again and again."""
    kept, other = tmp_path / "kept", tmp_path / "other"
    (kept / "rank-0").mkdir(parents=True)
    stop = Event()

    def change() -> None:
        while not stop.is_set():
            for folder in (other, kept):
                (folder / "saved" / "rank-1").mkdir(parents=True)
            shutil.rmtree(other)
            shutil.rmtree(kept / "saved")

    thread = Thread(target=change)
    thread.start()
    yield [kept, other]
    stop.set()
    thread.join()


def test_folders_that_go_meanwhile_end_no_use_of_the_others(
    folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protect_from_cleaners, "EVERY", -86400.0)
    file = folders[0] / "rank-0" / "busy"
    file.touch()
    kept = KeptFromCleaners()
    for _ in range(3000):
        kept.use(folders)
    os.utime(file, (OLD, OLD))
    kept.use(folders)
    assert file.stat().st_atime > OLD + 86400


def test_folders_that_go_meanwhile_are_no_sign_of_a_cell(folders: list[Path]) -> None:
    file = folders[0] / "rank-0" / "busy"
    file.touch()
    os.utime(file, (OLD, OLD))
    assert {round(busy_at(folders)) for _ in range(3000)} == {round(OLD)}
