"""Which hosts new ranks join."""

from __future__ import annotations

import pytest

from allranks.head.world.healing import grown
from allranks_backends.plan import Host


@pytest.mark.parametrize(
    ("before", "size", "together", "after"),
    [
        ("ab", 4, False, "abba"),
        ("ab", 4, True, "abbb"),
        ("abc", 7, False, "abccbaa"),
        ("aab", 4, False, "aabb"),
        ("abc", 2, False, "ab"),
        ("a", 3, False, "aaa"),
    ],
)
def test_new_ranks_join_the_host_with_the_fewest(before: str, size: int, together: bool, after: str) -> None:
    hosts = grown([Host(name, False) for name in before], size, together=together)
    assert "".join(host.name for host in hosts) == after
