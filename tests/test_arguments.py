"""What a user asked for, before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from allranks.arguments import hosts_of, writable
from allranks.errors import UsageError


def test_a_variable_without_a_value_in_a_hostfile_is_empty_as_mlx_launch_has_it() -> None:
    _, _, env = hosts_of(None, None, '{"envs": ["A=b=c", "EMPTY"], "hosts": [{"ssh": "localhost"}]}', 1)
    assert env == {"A": "b=c", "EMPTY": ""}


def test_a_file_in_the_home_folder_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert writable("--save", "~/run.txt") == tmp_path / "run.txt"
    assert not (tmp_path / "run.txt").exists()
    with pytest.raises(UsageError, match=r"--save ~/no/run.txt: No such file or directory\."):
        writable("--save", "~/no/run.txt")
