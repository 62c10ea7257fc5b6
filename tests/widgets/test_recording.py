"""Snapshots as JSON and back, and recordings that are shown again."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from allranks_backends.views import Collective, RankView, Snapshot
from allranks_widgets import Dashboard, Recorder, from_json, replay, to_json
from allranks_widgets.recording import read
from tests.widgets import streams


@pytest.mark.parametrize(("size", "hosts"), [(1, 1), (4, 1), (16, 4)])
def test_a_snapshot_survives_json(size: int, hosts: int) -> None:
    snapshot = streams.snapshot(size, hosts, 12.3, at=1e9)
    assert from_json(to_json(snapshot)) == snapshot


def test_what_is_unknown_stays_unknown_and_zero_stays_zero() -> None:
    ranks = (RankView(0, "a", cpu=0.0, rss=None), RankView(1, "b", line=0))
    snapshot = from_json(to_json(Snapshot("main", "ring", "whole", 1, ranks)))
    assert (snapshot.ranks[0].cpu, snapshot.ranks[0].rss, snapshot.ranks[1].cpu) == (0.0, None, None)


def test_fields_of_newer_versions_are_passed_over() -> None:
    plain = json.loads(to_json(streams.snapshot(2, 1, 1.0)))
    plain["moons"] = 2
    plain["ranks"][0]["colour"] = "green"
    plain["links"][0]["link"]["length"] = 0.8
    assert from_json(json.dumps(plain)) == streams.snapshot(2, 1, 1.0)


def test_recordings_of_0_1_are_read() -> None:
    plain = json.loads(to_json(streams.snapshot(2, 1, 1.0)))
    plain["epoch"] = plain.pop("generation")
    called = plain["ranks"][0]["collective"]
    called["seq"] = called.pop("number")
    assert from_json(json.dumps(plain)) == streams.snapshot(2, 1, 1.0)


def test_defaults_are_left_out() -> None:
    snapshot = Snapshot(
        "main", "ring", "whole", 1, (RankView(0, "a", collective=Collective(1, "all_sum", (), "f", 0)),)
    )
    rank = {
        "rank": 0,
        "host": "a",
        "collective": {"number": 1, "op": "all_sum", "shape": [], "dtype": "f", "nbytes": 0},
    }
    expected = {"name": "main", "backend": "ring", "state": "whole", "generation": 1, "ranks": [rank]}
    assert json.loads(to_json(snapshot)) == expected


@pytest.mark.parametrize("name", ["some.jsonl", "some.jsonl.gz"])
def test_a_recording_is_read_as_it_was_written(tmp_path: Path, name: str) -> None:
    snapshot, items = streams.snapshot(4, 1, 0.0, at=100.0), streams.training(4)
    with Recorder(tmp_path / name) as recorder:
        recorder.show(snapshot)
        recorder.output(items, at=100.5)
    first, second = read(tmp_path / name)
    assert (first.at, first.snapshot, first.output) == (100.0, snapshot, [])
    assert (second.at, second.snapshot, second.output) == (100.5, None, streams.as_sent(items))


def test_a_replay_ends_with_the_last_state_and_all_output(tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    with Recorder(path) as recorder:
        for step in range(20):
            recorder.show(streams.snapshot(4, 1, step / 5, at=100.0))
        recorder.output(streams.training(4), at=103.9)
    dashboard = Dashboard()
    assert replay(path, dashboard, speed=50).wait(60)
    last = from_json(dashboard.frame)
    assert dataclasses.replace(last, at=0.0) == streams.snapshot(4, 1, 3.8, at=-3.8)
    assert len(dashboard._kept.everything()) == len(streams.training(4))


def test_a_replay_can_be_stopped(tmp_path: Path) -> None:
    with Recorder(tmp_path / "long.jsonl") as recorder:
        for step in range(3):
            recorder.show(streams.snapshot(1, 1, step * 1000.0))
    playing = replay(tmp_path / "long.jsonl", Dashboard(), speed=10)
    assert repr(playing) == "<Replay of long.jsonl, 200 s: shown>"
    playing.stop()
    assert playing.wait(0)
    assert repr(playing) == "<Replay of long.jsonl, 200 s: over>"


def test_a_speed_that_makes_no_sense_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="above 0"):
        replay(tmp_path / "x", Dashboard(), speed=0)
