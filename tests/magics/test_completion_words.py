"""What a word after ``%distributed`` may become."""

from __future__ import annotations

from pathlib import Path

import pytest

from allranks.hosts.ssh.config import configured_hosts
from allranks.magics.completion_words import words
from allranks.magics.parsers import GROUPS, cell_parser, line_parser

CLUSTERS, HOSTS = ["lab", "main"], ["localhost", "mac1", "mac2"]
RUNS = ["1", "2", "baseline"]


def completed(line: str, magic: str = "%distributed") -> list[str] | None:
    parser = line_parser() if magic == "%distributed" else cell_parser(magic.strip("%"))
    *before, word = line.split(" ")
    return words(
        parser,
        before,
        word,
        user_ns={"weights": 1, "_hidden": 2},
        ranks=range(12),
        on_ranks=lambda begins: [name for name in ("weights", "batch") if name.startswith(begins)],
        hosts=lambda: HOSTS,
        clusters=lambda: CLUSTERS,
        runs=lambda: RUNS,
    )


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("attach ", CLUSTERS),
        ("attach l", ["lab"]),
        ("up --hosts ", HOSTS),
        ("up --hosts mac1,ma", ["mac1,mac2"]),
        ("setup --hosts mac2,", ["mac2,localhost", "mac2,mac1"]),
        ("doctor --hosts mac", ["mac1", "mac2"]),
        ("share model --from mac", ["mac1", "mac2"]),
        ("share model --from 1", ["1", "10", "11"]),
        ("push weights -r 0,1", ["0,1", "0,10", "0,11"]),
        ("heal --from 3", ["3"]),
        ("bench --ops all_sum,all_", ["all_sum,all_max", "all_sum,all_min", "all_sum,all_gather"]),
        ("bench --compare ring,m", ["ring,mpi"]),
        ("pull b", ["batch"]),
        ("push ", ["weights"]),
        ("runs b", ["baseline"]),
        ("runs --as t", ["tensorboard"]),
        ("runs --hide ", RUNS),
        ("runs --rename b", ["baseline"]),
        ("save runs/a b", ["batch"]),
        ("save runs/a --no", ["--no-wait"]),
        ("load runs/a ", []),
        ("no-such-verb ", []),
    ],
)
def test_values(line: str, expected: list[str]) -> None:
    assert completed(line) == expected


def test_ranks_of_a_cell() -> None:
    assert completed("0,3", "%%rank") == ["0,3"]
    assert completed("-r 1", "%%distributed") == ["1", "10", "11"]


@pytest.mark.parametrize(
    "line",
    [
        *("up --hostfile ", "up --python /usr/b", "up --load ", "down --save ", "timeline ", "bench --save a"),
        *("output --save ", "share mod", "save ru", "load ru", "runs --export a"),
    ],
)
def test_files_are_left_to_ipython(line: str) -> None:
    assert completed(line) is None


def test_the_help_lists_every_verb_once_in_a_group() -> None:
    text = line_parser().format_help()
    listed = [verb for verbs in GROUPS.values() for verb in verbs]
    assert sorted(listed) == sorted(completed("") or [])
    for verb in listed:
        assert sum(line.startswith(f"  {verb} ") for line in text.splitlines()) == 1, verb
    assert all(f"{group}:" in text for group in GROUPS) and "usage: %distributed VERB" in text


def test_the_hosts_of_the_configuration_of_ssh(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "lab").write_text("Host studio-1 studio-2\n  User anna\n")
    (tmp_path / "config").write_text(
        'Include more/*\nHost *\n  ServerAliveInterval 5\nHost mac1 *.lab !mac9\nhost = "mac2"\n# Host no\nHost mac1\n'
    )
    assert configured_hosts(tmp_path / "config") == ["mac1", "mac2", "studio-1", "studio-2"]
    assert configured_hosts(tmp_path / "none") == []
