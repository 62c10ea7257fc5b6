"""Who waits for whom before ranks enter ``init``; with real ranks: tests/hosts, tests/jaccl."""

from __future__ import annotations

import pytest

from allranks.head.world import forming
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
