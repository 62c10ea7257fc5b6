"""What a user asked for, before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from allranks import Cluster
from allranks.check_arguments import slow_text, writable
from allranks.errors import UsageError
from allranks.hosts_from_options import hosts_of


def test_a_variable_without_a_value_in_a_hostfile_is_empty_as_mlx_launch_has_it() -> None:
    _, _, env = hosts_of(None, None, '{"envs": ["A=b=c", "EMPTY"], "hosts": [{"ssh": "localhost"}]}', 1)
    assert env == {"A": "b=c", "EMPTY": ""}


def test_a_file_in_the_home_folder_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert writable("--save", "~/run.txt") == tmp_path / "run.txt"
    assert not (tmp_path / "run.txt").exists()
    with pytest.raises(UsageError, match=r"--save ~/no/run.txt: No such file or directory\."):
        writable("--save", "~/no/run.txt")


def test_ranks_that_others_start_need_nothing_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("allranks.check_arguments.OF_A_RANK", 1 << 60)
    with pytest.raises(UsageError, match="a rank needs about"):
        Cluster(64)
    assert Cluster(64, join=tmp_path / "ranks.json").state == "down"


def test_more_than_two_ranks_of_a_core_are_warned_of_host_by_host() -> None:
    assert slow_text({"a": 4, "b": 2}, {"a": 2, "b": 1}) == ""
    assert slow_text({"a": 5, "b": 2, "c": 8}, {"a": 2, "b": 1}) == (
        "5 ranks share the 2 cores of a (up to 4 fit): this will be slow, since ranks use a core even while they wait."
    )
    assert slow_text({"a": 5, "b": 3}, {"a": 2, "b": 1}).startswith(
        "5 ranks share the 2 cores of a (up to 4 fit); 3 ranks share the only core of b (up to 2 fit): this will be"
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"join": "ranks.json", "timeout": float("nan")}, "--timeout nan: use a number of seconds"),
        ({"join": "ranks.json", "timeout": -1}, "--timeout -1: use a number of seconds"),
        ({"ipp_profile": "lab", "timeout": -1}, "--timeout -1: use a number of seconds"),
        ({"join": "ranks.json", "n": 0}, "-n 0: a world needs at least 1 rank"),
        ({"n": 2, "timeout": 5}, "--timeout is for --join and --ipp-profile"),
        ({"n": 2, "ranks_per_host": 3}, "--ranks-per-host needs --hosts or --hostfile"),
        ({"ranks_per_host": 3}, "--ranks-per-host needs --hosts or --hostfile"),
    ],
)
def test_what_would_be_ignored_or_waited_for_without_end_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Cluster(**given)
