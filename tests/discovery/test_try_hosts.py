"""Which ranks the doctor starts to try what `up` does."""

from __future__ import annotations

import pytest

from allranks.discovery.try_hosts import _few
from allranks_backends.plan import Host


@pytest.mark.parametrize(
    ("backend", "hosts", "started"),
    [
        ("ring", "AAAABBBB", "AABB"),
        ("ring", "ABABABAB", "ABAB"),
        ("ring", "AABACAAAD", "AABACAAD"),  # C and D may be connected to A only
        ("mpi", "ABACAD", "ABACD"),
    ],
)
def test_few_ranks_are_started_and_hosts_have_no_new_neighbors(backend: str, hosts: str, started: str) -> None:
    assert "".join(host.name for host in _few([Host(name) for name in hosts], backend)) == started
