"""A short version of `tests.jaccl.lab.soak`: no leak, no crash, and every next world right."""

from __future__ import annotations

import pytest

from .conftest import NewWorld
from .lab.soak import ALL, soak


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "driver"), ALL, ids=map("-".join, ALL))
def test_worlds_that_are_broken_at_random_moments_are_right_again(
    backend: str, driver: str, new_world: NewWorld
) -> None:
    with new_world(backend, LAB_RDMA_ERR=driver) as world:
        soak(f"{backend} {driver}", world, breaks=20, reforms=8)
