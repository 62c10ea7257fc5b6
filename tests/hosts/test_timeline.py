"""Clocks of several hosts: these share one clock in truth, and the offset that is found is within its stated bound."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from allranks import Cluster
from tests.hosts.lab import Hosts

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(300)]


def test_the_offset_found_is_within_its_bound(hosts3: Hosts, tmp_path: Path) -> None:
    with Cluster(hosts=hosts3.names[:2], backend="ring") as cluster:
        code = "for _ in range(20): mx.eval(mx.distributed.all_sum(mx.ones(10)))"
        timeline = cluster.run(code, timeline=True, timeout=60).check().timeline
    assert timeline is not None
    clocks = timeline.clocks
    first, second = hosts3.names[:2]
    assert list(clocks.offset) == [first, second] and clocks.offset[first] == 0.0
    assert abs(clocks.offset[second]) <= clocks.error[second] < 5, "the figure printed says how close it was here"
    assert clocks.collectives and "aligned to within" in str(timeline)
    print(f"offset {clocks.offset[second] * 1e6:.1f} us, error {clocks.error[second] * 1e6:.1f} us")

    timeline.save(tmp_path / "trace.json")
    content = json.loads((tmp_path / "trace.json").read_text())
    assert content["otherData"]["clock error of each host (us)"][second] == pytest.approx(clocks.error[second] * 1e6)
    hosts = [event["args"]["name"] for event in content["traceEvents"] if event["name"] == "process_name"]
    assert hosts == [first, second], "a group of tracks for each host"
