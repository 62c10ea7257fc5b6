"""Whether ranks can take a cell is checked once, and again only if the world did not stay whole meanwhile."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from allranks.cluster.live_ranks import LiveRanks
from allranks.head.state.monitor import Monitor
from tests.head.whole_world import whole_world


class Live:
    """`whole` and `_refuse_if_busy` are noted, and `happens` while busy ranks are waited for."""

    refuse_if_unable: Any = LiveRanks.refuse_if_unable

    def __init__(self, monitor: Monitor, happens: Any) -> None:
        self.ranks: Any = SimpleNamespace(monitor=monitor)
        self._happens, self.asked = happens, list[Any]()

    def whole(self) -> Any:
        self.asked.append(self.ranks)
        return self.ranks

    def _refuse_if_busy(self, _ranks: Any, _chosen: Any) -> None:
        self._happens(self)


def breaks(live: Live) -> None:
    live.ranks.monitor.state = "broken"


def restarts(live: Live) -> None:
    live.ranks = SimpleNamespace(monitor=whole_world())


def dies(live: Live) -> None:
    live.ranks.monitor.died(1, "killed")


@pytest.mark.parametrize(
    ("happens", "times"),
    [(lambda _live: None, 1), (breaks, 2), (restarts, 2), (dies, 2)],
    ids=["nothing", "breaks", "restarts", "dies"],
)
def test_a_world_that_stayed_whole_is_not_looked_at_again(happens: Any, times: int) -> None:
    live = Live(whole_world(), happens)
    assert live.refuse_if_unable([0, 1]) is live.ranks
    assert len(live.asked) == times
