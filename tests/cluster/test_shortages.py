"""What the machine lacks is named when ranks cannot start."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.needs import need

pytestmark = pytest.mark.slow

STARTS = """
import allranks
try:
    allranks.Cluster(2).up().down()
except allranks.errors.CannotStart as error:
    print(error)
"""


def started(before: str = "", **options: object) -> str:
    program = [sys.executable, "-c", f"{before}\n{STARTS}"]
    done = subprocess.run(program, capture_output=True, text=True, timeout=200, **options)  # type: ignore[call-overload]
    assert not done.returncode, done.stderr
    return str(done.stdout)


@pytest.fixture
def little_room(tmp_path: Path) -> Iterator[Path]:
    """A folder in which nothing can be written but a few small files."""
    need(sys.platform == "linux" and os.geteuid() == 0, "root on Linux can make a small file system")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(tmp_path)], check=True)
    yield tmp_path
    subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


def test_a_full_folder_is_named(little_room: Path) -> None:
    said = started(env={**os.environ, "TMPDIR": str(little_room)})
    assert f"{little_room}, the folder for temporary files, is full." in said


def test_a_folder_that_was_removed_is_named(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    said = started(f"import tempfile\ntempfile.tempdir = {str(gone)!r}")  # as it is once the notebook has used it
    assert f"{gone}, the folder for temporary files, cannot be used: No such file or directory. Create it, or" in said


def test_too_few_files_are_named() -> None:
    said = started(preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)))
    assert "A process may open only 64 files here: run `ulimit -n 4096`" in said
