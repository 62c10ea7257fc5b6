"""What a start took, step by step; over several hosts: tests/hosts/test_hosts.py."""

from __future__ import annotations

import allranks
from allranks.cluster.start_times import BAR, StartTimes, Step


def test_the_steps_of_a_start_follow_each_other() -> None:
    with allranks.Cluster(2, backend="ring", name="times") as cluster:
        times = cluster.start_times
        assert times is not None
    assert [(each.name, each.host) for each in times.steps] == [
        ("start Python, import", "localhost"),
        ("connect the ranks", "localhost"),
        ("form the world", ""),
        ("make it ready", ""),
    ]
    assert all(each.seconds > 0 for each in times.steps) and 0 < times.steps[0].began < times.steps[0].ended
    assert all(one.ended == next_one.began for one, next_one in zip(times.steps, times.steps[1:], strict=False))
    assert times.steps[-1].ended <= times.seconds


def test_a_bar_shows_when_each_step_was() -> None:
    text = str(StartTimes(2.0, (Step("log in", "mac1", 0.0, 1.0), Step("form the world", "", 1.5, 2.0))))
    assert text.splitlines() == [
        "Started in 2.00 s:",
        "step            host  time",
        f"log in          mac1  1.00 s  {'█' * (BAR // 2)}",
        f"form the world        500 ms  {' ' * (BAR * 3 // 4)}{'█' * (BAR // 4)}",
    ]
