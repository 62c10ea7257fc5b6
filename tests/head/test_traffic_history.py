"""The last ten minutes of traffic and states."""

from __future__ import annotations

import dataclasses

from allranks.head.state.traffic_history import History
from allranks_backends.views import RankView, Snapshot


def test_a_dashboard_that_is_opened_late_draws_the_states_that_ranks_had() -> None:
    ranks = (RankView(0, "a", state="running"), RankView(1, "b", state="waiting", since=0.5, effective=1e9))
    now = Snapshot("main", "ring", "whole", 1, ranks, at=100.0)
    history = History()
    history.add(now)
    (past,) = history.snapshots(dataclasses.replace(now, at=200.0, ranks=()))
    assert past.at == 100.0
    assert [(view.rank, view.state, view.since, view.effective) for view in past.ranks] == [
        (0, "running", None, None),
        (1, "waiting", 0.5, 1e9),
    ]
