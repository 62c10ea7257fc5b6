"""Who waits for whom before ranks enter ``init``; with real ranks: tests/hosts, tests/jaccl."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest

from allranks.head.world import forming
from allranks.head.world.choose_network import Tried, _rates
from allranks.messages.requests import HostTried, MayConnect
from allranks_backends.plan import Host, Placement
from allranks_backends.registry import get_backend
from allranks_backends.unsupported_operations import limits

PORTS = [5000, 5001, 5002]


@pytest.mark.parametrize(
    ("hosts", "tells", "told"),
    [
        (("one", "two", "three"), [5000, 5001, None], [None, None, 5000]),
        (("one", "one", "two"), [5000, 5001, None], [None, None, 5000]),
        (("one", "one", "one"), [None] * 3, [None] * 3),
    ],
)
def test_the_last_rank_of_a_ring_is_told_that_the_others_listen(
    hosts: tuple[str, ...], tells: list[int | None], told: list[int | None]
) -> None:
    """It connects first, and would lose a second if its neighbour did not listen yet."""
    backend = get_backend("ring")
    placements = [
        Placement(rank, Host(name, addresses=("10.0.0.1",)), 0, (PORTS[rank],)) for rank, name in enumerate(hosts)
    ]
    plan, refused = backend.plan(placements), forming.refusals(limits(backend, None))
    requests = [forming._request(plan, backend, rank, 0, refused) for rank in range(3)]
    assert [each.tells_of for each in requests] == tells
    assert [each.told_of for each in requests] == told
    assert requests[2].after == (PORTS[:2] if len(set(hosts)) == 1 else []), "it sees the ranks of its own host listen"


class Ranks:
    """Three ranks on three hosts, to which things happen one after another: each wait sees one more."""

    def __init__(self, *happens: Callable[[Ranks], None]) -> None:
        self.ranks = [SimpleNamespace(uuid=f"rank {rank}", listens=None, dead=None) for rank in range(3)]
        self.answers = {rank: Future[Any]() for rank in range(3)}
        self.left, self.told = list(happens), list[tuple[str, object]]()

    def wait(self, settled: Callable[[], bool], _: float) -> bool:
        assert not self.told, "a rank was told before the others listened"
        self.left.pop(0)(self)
        return settled()

    def tell(self, uuid: str, request: object) -> None:
        self.told.append((uuid, request))


def listens(rank: int, port: int) -> Callable[[Ranks], None]:
    def happens(ranks: Ranks) -> None:
        ranks.ranks[rank].listens = port

    return happens


def dies(ranks: Ranks) -> None:
    ranks.ranks[1].dead = "killed"


def fails(ranks: Ranks) -> None:
    ranks.answers[1].set_exception(RuntimeError("MLX cannot be imported there"))


@pytest.mark.parametrize(
    "happens",
    [
        (listens(1, 5001), listens(0, 4000), listens(0, 5000)),
        (listens(0, 5000), dies),
        (listens(0, 5000), fails),
    ],
    ids=["all listen", "one dies", "one fails"],
)
def test_only_the_last_rank_is_told_and_not_before_the_others_listen(
    happens: tuple[Callable[[Ranks], None], ...],
) -> None:
    """A port of an earlier world does not count. Once a rank has failed, nobody waits for it."""
    backend, ranks = get_backend("ring"), Ranks(*happens)
    placements = [Placement(rank, Host(f"host{rank}", addresses=("10.0.0.1",)), 0, (PORTS[rank],)) for rank in range(3)]
    forming._let_connect(backend.plan(placements), backend, cast(Any, ranks), cast(Any, ranks), ranks.answers)
    assert not ranks.left and ranks.told == [("rank 2", MayConnect(PORTS[0]))]


def test_a_network_in_which_a_pair_was_not_tried_is_not_taken_for_faster() -> None:
    all_pairs: Tried = {("a", "b"): HostTried("", 5.0), ("b", "c"): HostTried("", 3.0)}
    one_pair: Tried = {("a", "b"): HostTried("", 90.0)}
    cut: Tried = all_pairs | {("b", "c"): HostTried("no answer within 3 s")}
    assert _rates([all_pairs, one_pair, cut, {}], 2) == [3.0, 0.0, 0.0, 0.0]


def test_all_hosts_are_asked_for_ports_before_the_first_is_waited_for() -> None:
    hosts, did = [Host("a"), Host("b"), Host("a")], list[str]()

    def ask(host: Host, count: int) -> Callable[[], list[int]]:
        did.append(f"ask {host.name}")

        def wait() -> list[int]:
            did.append(f"wait {host.name}")
            return list(range(5000, 5000 + count))

        return wait

    placed = forming.place(hosts, get_backend("ring"), 1, ask)
    assert did == ["ask a", "ask b", "wait a", "wait b"]
    assert [(each.rank, each.local_rank) for each in placed] == [(0, 0), (1, 0), (2, 1)]
    assert not set(placed[0].ports) & set(placed[2].ports)
