"""What `Cluster.measure` reports, from the world's own ranks and after it has ended."""

from __future__ import annotations

import pytest

from allranks import Cluster
from allranks.errors import NoCluster

CODE = "held = mx.ones(1_000_000)\nmx.eval(mx.distributed.all_sum(held))\ndel held\nlog(loss=1); log(loss=rank)"


def test_a_world_is_measured_from_the_reset_on_and_after_its_end() -> None:
    cluster = Cluster(n=2)
    with pytest.raises(NoCluster):
        cluster.measure()
    with cluster:
        cluster.run(CODE, timing=True).check()
        found = cluster.measure()
        assert found.logged == {"loss": 0.5} and len(found.snapshot.ranks) == 2
        assert found.rss is not None and found.rss > 10_000_000
        assert found.mlx_peak is not None and found.mlx_peak >= 4_000_000
        assert found.transfer is not None and found.transfer > 0 and found.wait is not None
        cluster.reset_measurements()
        again = cluster.measure()
        assert (again.logged, again.wait, again.transfer) == ({}, None, None)
        assert (again.mlx_peak or 0) < 4_000_000
        cluster.run("log(score=2)").check()
        assert not any("get_peak_memory" in run.code for run in cluster.runs)
    ended = cluster.measure()
    assert ended.logged == {"score": 2.0} and len(ended.snapshot.ranks) == 2 and ended.rss
